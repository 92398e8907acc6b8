"""The engine's process of a cheater. It is started in the place of the honest one, with the same words:

    python -m prime_devnet.cheating_child NAME -m prime_node.engine.child --engine torch ...

`write_interpreter` makes the file that a node's setting `engine.python` names, so that nothing of the node is changed:
what a dishonest owner can do, and no more.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

from prime_devnet.cheats import CHEATS, LAZY, LIES, PROOF_CHEATS, open_cheat
from prime_devnet.cheats_proofs import measure_blindly
from prime_devnet.cheats_verdicts import check_unread
from prime_node.engine import child
from prime_node.engine.child import Options, main, open_engine
from prime_node.engine.seam import Engine

HONEST = ("-m", "prime_node.engine.child")


def write_interpreter(path: Path, name: str) -> Path:
    """A file that looks like a Python interpreter and runs the cheat instead."""
    assert name in CHEATS | LIES
    words = shlex.join([sys.executable, "-m", __spec__.name if __spec__ else __name__, name])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o700)
    return path


def run(argv: list[str]) -> int:
    name, *words = argv
    assert tuple(words[: len(HONEST)]) == HONEST, f"started with {words}"

    def make(options: Options) -> Engine:
        return open_cheat(name, open_engine(options))

    program: Any = child
    if name in PROOF_CHEATS:
        program.measure = measure_blindly
    if name == LAZY:
        program.check = check_unread

    return main(words[len(HONEST) :], make)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
