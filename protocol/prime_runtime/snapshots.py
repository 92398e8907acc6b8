"""The state after some entry, kept on disk so that a start need not fold the whole log again.

Nothing rests on it. One that is damaged, was made by other code or is not of this log is left alone, and the log is
folded from its beginning. Whether it is of this log is for its reader to find out.
"""

import io
import logging
import pickle
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import prime_protocol
from prime_protocol.constants import DIGEST_BYTES
from prime_protocol.state import State
from prime_runtime.mirror import write_whole

log = logging.getLogger(__name__)
MAGIC = b"prime-coordinator state 1\n"
HEAD_BYTES = len(MAGIC) + 2 * DIGEST_BYTES
PLAIN = {
    ("builtins", "frozenset"),
    ("builtins", "range"),
    ("builtins", "set"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "deque"),
}
"""What a state is made of beside our own types."""


def write_snapshot(path: Path, state: State) -> None:
    """Whole or not at all, in place of the one before."""
    body = pickle.dumps(state, protocol=5)
    write_whole(path, MAGIC + code_digest() + sha256(body).digest() + body, mode=0o600)


def read_snapshot(path: Path) -> State | None:
    """The state that was kept; None where there is none that this code could have written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read %s: %s", path, error.strerror)
        return None
    body = data[HEAD_BYTES:]
    if data[:HEAD_BYTES] != MAGIC + code_digest() + sha256(body).digest():
        log.info("%s is damaged or of another release, and is not used", path)
        return None
    try:
        state = _Unpickler(io.BytesIO(body)).load()
    except Exception as error:  # boundary: whatever a made-up file does to the reader, there is still the log
        log.warning("%s cannot be read: %r", path, error)
        return None
    return state if isinstance(state, State) else None


class _Unpickler(pickle.Unpickler):
    """Makes states and nothing else: a pickle can name any function, and would have it called."""

    def find_class(self, module: str, name: str) -> Any:
        is_ours = module.startswith("prime_protocol.") and "." not in name
        if is_ours or (module, name) in PLAIN:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a state")


@cache
def code_digest() -> bytes:
    """Of the rules: a state that others have made is not ours, even if it looks the same."""
    folder = Path(prime_protocol.__file__).parent
    code = sha256()
    for path in sorted(folder.rglob("*.py")):
        data = path.read_bytes()
        code.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return code.digest()
