"""The engine process of a cheater. It is started in place of the honest one, with the same arguments:

    python -m prime_lab.cheats.process NAME -m prime_node.engine.child --engine torch ...

`write_interpreter` writes the file that a node's setting `engine.python` names, so the node itself is unchanged: this
is what a dishonest owner can do. A validator that does not read invents the results of the check: every file is valid,
as most are, and read proofs are drawn from the distribution of real ones.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from prime_lab.cheats.proof_forgery import measure_ignoring_proofs
from prime_lab.cheats.registry import CHEATS, LAZY, PROOF_CHEATS, VALIDATOR_CHEATS, open_cheat
from prime_node.engine import child
from prime_node.engine import frames as values
from prime_node.engine.child import ChildOptions, CommandReader, ReplyWriter, main, open_engine
from prime_node.engine.frames import CheckRowsJob
from prime_node.engine.interface import Engine
from prime_node.engine.measurement import ClaimedRow, RowMeasurement, split_spans
from prime_protocol.constants import READ_PROOF_PROBES, TOPLOC_CHUNK_TOKENS, TOPLOC_K
from prime_protocol.proofs.toploc_verify import ChunkReport

PERFECT_CHUNK = ChunkReport(
    k=TOPLOC_K,
    exponent_mismatches=0,
    sign_mismatches=0,
    mantissa_error_sum=0,
    mantissa_error_median=0,
    decoy_hits=0,
    exponents_seen=8,
    collisions=0,
    leading_zeros=0,
)


def check_without_reading(
    engine: Engine, request: CheckRowsJob, inbox: CommandReader, outbox: ReplyWriter
) -> Iterator[None]:
    """Stands in for the engine's own check; computes nothing."""
    for frame in request.claims:
        outbox.send(values.encode_measurement(make_perfect_row(values.decode_claim(frame))))
        yield
    rng = np.random.default_rng(int.from_bytes(request.submission[:8], "big") + request.block)
    for reader in request.readers:
        outbox.send(values.encode_projections(reader, rng.normal(0.0, 1.0, READ_PROOF_PROBES).tolist()))


def make_perfect_row(claim: ClaimedRow) -> RowMeasurement:
    """The measurement of an honest row."""
    tokens = len(claim.sequence.output)
    nothing = np.zeros(tokens)
    return RowMeasurement(
        row=claim.sequence.number,
        tokens=tokens,
        chunks=(PERFECT_CHUNK,) * -(-tokens // TOPLOC_CHUNK_TOKENS),
        proof_problem="",
        spans=tuple(split_spans(nothing, nothing)),
        margin_max=0.0,
        margin_at=0,
        margin_sum=0.0,
        logprob_error_max=0.0,
        logprob_error_at=0,
        logprob_error_sum=0.0,
        eos_logprob=0.0,
    )


HONEST_ARGV = ("-m", "prime_node.engine.child")


def write_interpreter(path: Path, name: str) -> Path:
    """A file that looks like a Python interpreter and runs the cheat instead."""
    assert name in CHEATS | VALIDATOR_CHEATS
    words = shlex.join([sys.executable, "-m", __spec__.name if __spec__ else __name__, name])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o700)
    return path


def replace_function(name: str, function: Callable[..., object]) -> None:
    assert callable(getattr(child, name)), f"the engine's process has no function {name}"
    setattr(child, name, function)


def run(argv: list[str]) -> int:
    name, *words = argv
    assert tuple(words[: len(HONEST_ARGV)]) == HONEST_ARGV, f"started with {words}"

    def make(options: ChildOptions) -> Engine:
        return open_cheat(name, open_engine(options))

    # The owner of a machine can change any program on it: these stand in for the engine's own functions.
    if name in PROOF_CHEATS:
        replace_function("measure_row", measure_ignoring_proofs)
    if name == LAZY:
        replace_function("run_check", check_without_reading)

    return main(words[len(HONEST_ARGV) :], make)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
