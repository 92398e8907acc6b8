"""What reading a row again comes to, in numbers: proofs against hidden states, tokens against the replayed draw. Pure.

It runs in the engine's process, so that logits and hidden states stay there. What the numbers mean is for checks.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.interface import ForwardResult, TokenSequence
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.toploc import build_proofs, parse_proofs
from prime_protocol.proofs.toploc_verify import ChunkReport, verify_proofs
from prime_protocol.wire.ids import Digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimedRow:
    """A row of a rollout file, as its author says it was made."""

    sequence: TokenSequence
    logprobs: NDArray[np.float32]
    proofs: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMeasurement:
    """What one row gave when it was read again."""

    row: int
    tokens: int
    chunks: tuple[ChunkReport, ...]
    """One for each proof; none where the proofs cannot be read."""
    proof_problem: str
    """Why the proofs cannot be read, else empty. No honest program writes such a proof."""
    spans: tuple[ReplayedChunk, ...]
    """What the tokens of each chunk gave."""
    margin_max: float
    margin_at: int
    """Which output token has the largest margin."""
    margin_sum: float
    logprob_error_max: float
    logprob_error_at: int
    logprob_error_sum: float
    eos_logprob: float
    """Log-prob of the likeliest end token where the row ends."""


def measure_row(claim: ClaimedRow, result: ForwardResult, *, seed: Digest) -> RowMeasurement:
    """Compare what a row says with what this machine's model says of its tokens."""
    tokens, hidden = result.hidden_bits.shape
    if tokens != len(claim.sequence.output):
        raise LocalError(f"the engine read {tokens} of {len(claim.sequence.output)} tokens")
    problem, chunks = "", []
    try:
        proofs = parse_proofs(claim.proofs, tokens=tokens, hidden=hidden)
    except RemoteError as error:
        problem = str(error)
    else:
        chunks = verify_proofs(proofs, result.hidden_bits, seed=seed)
    margins = require_finite("margins", result.margins)
    errors = np.abs(require_finite("log-probs", result.logprobs) - claim.logprobs.astype(np.float64))
    return RowMeasurement(
        row=claim.sequence.number,
        tokens=tokens,
        chunks=tuple(chunks),
        proof_problem=problem,
        spans=tuple(add_bf16_noise(list(split_spans(margins, errors)), result, seed)),
        margin_max=float(margins.max()),
        margin_at=int(margins.argmax()),
        margin_sum=float(margins.sum()),
        logprob_error_max=float(errors.max()),
        logprob_error_at=int(errors.argmax()),
        logprob_error_sum=float(errors.sum()),
        eos_logprob=float(require_finite("end log-probs", result.eos_logprobs[-1:])[0]),
    )


def split_spans(margins: NDArray[np.float64], errors: NDArray[np.float64]) -> Iterator[ReplayedChunk]:
    for start in range(0, len(margins), TOPLOC_CHUNK_TOKENS):
        some, wrong = margins[start : start + TOPLOC_CHUNK_TOKENS], errors[start : start + TOPLOC_CHUNK_TOKENS]
        yield ReplayedChunk(
            tokens=len(some),
            margin_max=float(some.max()),
            margin_at=start + int(some.argmax()),
            margin_sum=float(some.sum()),
            logprob_error_max=float(wrong.max()),
            logprob_error_at=start + int(wrong.argmax()),
            logprob_error_sum=float(wrong.sum()),
        )


def add_bf16_noise(spans: list[ReplayedChunk], result: ForwardResult, seed: Digest) -> Iterator[ReplayedChunk]:
    """How noisy this machine's own reading in the run's precision is, measured as if a worker had claimed it."""
    if result.bf16_hidden_bits is None or result.bf16_logprobs is None:
        yield from spans
        return
    reports = verify_proofs(build_proofs(result.bf16_hidden_bits), result.hidden_bits, seed=seed)
    errors = np.abs(require_finite("log-probs", result.logprobs) - require_finite("log-probs", result.bf16_logprobs))
    sums = np.add.reduceat(errors, range(0, len(errors), TOPLOC_CHUNK_TOKENS))
    for span, total, report in zip(spans, sums, reports, strict=True):
        yield span._replace(own_logprob_error_sum=float(total), own_mantissa_error_mean=report.mantissa_error_mean)


def require_finite(name: str, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The values are our own engine's: a hole in them is our fault, and says nothing about the row."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise LocalError(f"the engine gave {name} that are not finite: check its weights and precision")
    return wide
