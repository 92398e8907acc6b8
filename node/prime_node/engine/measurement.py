"""Compares a claimed row with a forward pass: proofs with hidden states, tokens with the replayed sampling. Pure.

It runs in the engine's process, so that logits and hidden states stay there. The verdict is jobs/file_checks.py's.
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
    """A row of a rollout file, as its author claims to have generated it."""

    sequence: TokenSequence
    logprobs: NDArray[np.float32]
    proofs: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMeasurement:
    """The deviations of one row from this machine's forward pass."""

    row: int
    tokens: int
    chunks: tuple[ChunkReport, ...]
    """One for each proof; empty if the proofs cannot be parsed."""
    proof_problem: str
    """Why the proofs cannot be parsed, else empty. No honest program writes such a proof."""
    spans: tuple[ReplayedChunk, ...]
    """Margins and log-prob errors of each chunk's tokens."""
    margin_max: float
    margin_at: int
    """Position of the output token with the largest margin."""
    margin_sum: float
    logprob_error_max: float
    logprob_error_at: int
    logprob_error_sum: float
    eos_logprob: float
    """Log-prob of the likeliest end token at the end of the row."""


def measure_row(claim: ClaimedRow, result: ForwardResult, *, seed: Digest) -> RowMeasurement:
    """Compare a claimed row with this machine's forward pass over the same tokens."""
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
            losers=int((some > 0).sum()),
        )


def add_bf16_noise(spans: list[ReplayedChunk], result: ForwardResult, seed: Digest) -> Iterator[ReplayedChunk]:
    """Add this machine's own bfloat16 noise to each span, measured as if a worker had claimed those values."""
    if result.bf16_hidden_bits is None or result.bf16_logprobs is None:
        yield from spans
        return
    reports = verify_proofs(build_proofs(result.bf16_hidden_bits), result.hidden_bits, seed=seed)
    errors = np.abs(require_finite("log-probs", result.logprobs) - require_finite("log-probs", result.bf16_logprobs))
    sums = np.add.reduceat(errors, range(0, len(errors), TOPLOC_CHUNK_TOKENS))
    for span, total, report in zip(spans, sums, reports, strict=True):
        yield span._replace(own_logprob_error_sum=float(total), own_mantissa_error_mean=report.mantissa_error_mean)


def require_finite(name: str, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The values are our own engine's: a NaN in them is our fault, and no evidence about the row."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise LocalError(f"the engine computed {name} that are not finite: check its weights and precision")
    return wide
