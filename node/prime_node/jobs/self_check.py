"""A worker's check of its own file before it is sent: all of it on a new kind of engine, else a drawn sample.

A broken GPU must not cost its owner the stake, and a second prefill of every file costs up to a fifth of a GPU. So a
kind of engine (engine, versions, device, precision, model) is checked in full until it has passed WHOLE_CHECKS files,
and again from the first file that fails. After that a sample of an eighth of the rows is read, whole rows, because all
chunks of a row share one prefill; one file in sixteen is still read whole. Rows are drawn once the file is finished,
from the operating system's randomness: no engine, library or host can know while it generates which rows are read.
A sample with any trace of evidence is no verdict: then the whole file is read, and that decides.

docs/operating/engines.md states the chance to notice a fault.
"""

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path

from prime_node.engine.interface import EngineFacts
from prime_node.engine.lifecycle import EngineSession
from prime_node.engine.machine_class import get_engine_class
from prime_node.jobs.examination import Examination, check_with_model, get_row_lengths, list_claims
from prime_node.jobs.file_checks import RowWeigher
from prime_node.jobs.step_context import StepContext
from prime_protocol.constants import EVIDENCE_BEYOND_LIMIT
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)

WHOLE_CHECKS = 3
"""Files of a kind of engine that are checked in full before samples are enough."""
SAMPLE_SHARE = 8
"""One row in this many is read again."""
SAMPLE_ROWS_MIN = 4
WHOLE_EVERY = 16
"""Of a known kind of engine, one file in this many is still checked in full."""
CLASSES_KEPT = 64
"""Kinds of engines remembered. A node meets a few; each new version of a library is one more."""

DrawBytes = Callable[[int], bytes]


class PassedChecks:
    """How many files each kind of engine has passed in full, on disk."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is remembered, and every file is checked in full."""
        self._path = path
        self._passed = {} if path is None else load_counts(path)

    def is_known(self, kind: str) -> bool:
        return self._passed.get(kind, 0) >= WHOLE_CHECKS

    def record(self, kind: str, *, is_valid: bool) -> None:
        """The result of a check in full."""
        passed = min(self._passed.pop(kind, 0) + 1, WHOLE_CHECKS) if is_valid else 0
        self._passed[kind] = passed
        while len(self._passed) > CLASSES_KEPT:
            del self._passed[next(iter(self._passed))]
        if self._path is not None:
            write_atomic(self._path, json.dumps(self._passed).encode())


def load_counts(path: Path) -> dict[str, int]:
    """Empty where the file is missing or damaged: then the engines are checked in full again."""
    try:
        found = json.loads(path.read_bytes())
        return {str(kind): int(passed) for kind, passed in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s is lost, so engines are checked in full again: %s", path, error)
        return {}


class SelfCheck:
    """Checks finished files as a validator would."""

    def __init__(self, passed: PassedChecks, draw: DrawBytes = secrets.token_bytes) -> None:
        self._passed = passed
        self._draw = draw

    async def check(self, checked: Examination, context: StepContext, session: EngineSession) -> None:
        """LocalError: the file must not be sent."""
        if checked.file is None or checked.flaws:
            raise describe_failure(checked)
        kind = name_engine_kind(session.facts, session.software)
        lengths, drawn = get_row_lengths(checked.file), self._draw(Digest.SIZE)
        rows = draw_rows(len(lengths), drawn) if self._passed.is_known(kind) else list(range(len(lengths)))
        if len(rows) < len(lengths):
            if await is_sample_clean(checked, context, session, rows, Digest(drawn)):
                return
            log.warning("the sample of this node's own file has unusual numbers: checking all of it")
        examined = await check_with_model(checked, context, session, Digest(drawn))
        self._passed.record(kind, is_valid=examined.is_valid)
        if not examined.is_valid:
            raise describe_failure(examined)


def describe_failure(examined: Examination) -> LocalError:
    return LocalError(f"the file fails its self-check: {examined.judge().reason}")


async def is_sample_clean(
    checked: Examination, context: StepContext, session: EngineSession, rows: Sequence[int], seed: Digest
) -> bool:
    """Whether these rows show less evidence than one number beyond its limit, and usual means."""
    assert checked.file is not None
    claims = list_claims(checked.file.rows, context.beacon)
    measured = await session.process.check([claims[row] for row in rows], context.sampling, seed)
    own = get_engine_class(session.facts)
    weigher = RowWeigher(context.terms.get_tolerance(checked.file.engine_class, own))
    weigher.add(measured)
    weighed, flaws = weigher.finish(is_whole=True)
    return not flaws and weighed.evidence < EVIDENCE_BEYOND_LIMIT


def draw_rows(rows: int, drawn: bytes) -> list[int]:
    """The rows to read, in file order; all of them in one draw of WHOLE_EVERY."""
    if drawn[0] % WHOLE_EVERY == 0:
        return list(range(rows))
    # Sorted by a hash, which is a uniform choice without replacement.
    order = sorted(range(rows), key=lambda row: sha256(drawn + row.to_bytes(8, "big")).digest())
    return sorted(order[: count_sample(rows)])


def count_sample(rows: int) -> int:
    return min(rows, max(SAMPLE_ROWS_MIN, -(-rows // SAMPLE_SHARE)))


def name_engine_kind(facts: EngineFacts, software: Sequence[str]) -> str:
    """What decides which numbers an engine computes: a digest of its versions, device, precision and model."""
    parts = (*map(str, astuple(facts)), *software)
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
