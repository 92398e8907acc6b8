"""Which proofs made without the model pass on real final hidden states, under the original's rules and ours. Pure.

The forger learns from half of the texts and forges for the other half.
"""

from dataclasses import dataclass

import numpy as np

from prime_attacks.rules import DEPLOYED, PAPER
from prime_attacks.scene import digest
from prime_devnet import forgery
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, WEIGHT_BEYOND
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc import parse_proofs
from prime_protocol.toploc_plain import Bits
from prime_protocol.toploc_verify import ChunkReport, verify_proofs
from prime_protocol.weighing import heaviest, mark_proof

FORGERIES: dict[str, forgery.Forge] = {
    "constant": forgery.make_constant,
    "low degree": forgery.make_low_degree,
    "dressed constant": forgery.make_dressed,
    "learned channels": forgery.make_learned,
}
LOOSE = Tolerance(
    exponent_mismatches_max=127,
    sign_mismatches_max=127,
    mantissa_error_mean_max=127.0,
    mantissa_error_median_max=127,
    exponent_mismatches_usual=127,
    mantissa_error_mean_usual=127.0,
)
"""Bounds that allow any noise: what is left is what decoys, degree and collisions see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Chunks of one forgery that each rule lets pass."""

    forgery: str
    chunks: int
    paper: int
    deployed: int
    defaults: int
    """Ours, with a run's default bounds."""
    loose: int
    """Ours, with no bound on noise at all."""


def study(states: Bits) -> list[Passed]:
    """`states`: bf16 patterns of texts, end to end."""
    chunks = len(states) // TOPLOC_CHUNK_TOKENS
    half = chunks // 2 * TOPLOC_CHUNK_TOKENS
    known = forgery.learn(states[:half])
    rest = np.ascontiguousarray(states[half : chunks * TOPLOC_CHUNK_TOKENS])
    return [count(name, make, known, rest) for name, make in FORGERIES.items()]


def count(name: str, make: forgery.Forge, known: forgery.Known, states: Bits) -> Passed:
    tokens, hidden = states.shape
    blob = forgery.forge_row(make, known, tokens=tokens, hidden=hidden)
    reports = verify_proofs(parse_proofs(blob, tokens=tokens, hidden=hidden), states, seed=digest("forgery", name))
    return Passed(
        forgery=name,
        chunks=len(reports),
        paper=sum(PAPER.score(report) <= 1 for report in reports),
        deployed=sum(DEPLOYED.score(report) <= 1 for report in reports),
        defaults=sum(passes(report, Tolerance()) for report in reports),
        loose=sum(passes(report, LOOSE) for report in reports),
    )


def passes(report: ChunkReport, tolerance: Tolerance) -> bool:
    """Nothing beyond a limit."""
    return heaviest(mark_proof(report, tolerance, is_whole=True)) < WEIGHT_BEYOND
