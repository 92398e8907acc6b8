"""The values of the engine's seam as the messages of frames.py, there and back. Arrays are little-endian bytes."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.frames import (
    PROBLEM_BYTES_MAX,
    ClaimFrame,
    CompletionFrame,
    Loaded,
    NumbersFrame,
    OrderFrame,
    SamplingFrame,
)
from prime_node.engine.measuring import Claim, RowNumbers
from prime_node.engine.seam import Completion, EngineFacts, Order, Sampling, Text
from prime_protocol.errors import RemoteError
from prime_protocol.rollouts import Finish
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import Span

T = TypeVar("T", bound=np.generic)
REPORT_INTS, SPAN_FLOATS = len(ChunkReport._fields), len(Span._fields)
TABLES = ("reports", "spans")
"""What a frame holds as bytes of many numbers."""
INT32, FLOAT32, FLOAT64 = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")


def to_bytes(array: NDArray[Any], dtype: "np.dtype[Any]") -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def to_array(field: str, data: bytes, dtype: "np.dtype[T]") -> NDArray[T]:
    if len(data) % dtype.itemsize:
        raise RemoteError(field, f"has {len(data)} bytes, not a multiple of {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def from_sampling(sampling: Sampling) -> SamplingFrame:
    eos = tuple(sorted(sampling.eos))
    return SamplingFrame(temperature=float(sampling.temperature), eos=eos, tokens_max=sampling.tokens_max)


def to_sampling(frame: SamplingFrame) -> Sampling:
    return Sampling(temperature=frame.temperature, eos=frozenset(frame.eos), tokens_max=frame.tokens_max)


def from_order(order: Order) -> OrderFrame:
    return OrderFrame(number=order.number, prompt=to_bytes(order.prompt, INT32), seed=order.seed.to_bytes(8, "big"))


def to_order(frame: OrderFrame) -> Order:
    seed = int.from_bytes(frame.seed, "big")
    return Order(number=frame.number, prompt=to_array("prompt", frame.prompt, INT32), seed=seed)


def from_claim(claim: Claim) -> ClaimFrame:
    text = claim.text
    return ClaimFrame(
        number=text.number,
        prompt=to_bytes(text.prompt, INT32),
        output=to_bytes(text.output, INT32),
        seed=text.seed.to_bytes(8, "big"),
        logprobs=to_bytes(claim.logprobs, FLOAT32),
        proofs=claim.proofs,
    )


def to_claim(frame: ClaimFrame) -> Claim:
    text = Text(
        number=frame.number,
        prompt=to_array("prompt", frame.prompt, INT32),
        output=to_array("output", frame.output, INT32),
        seed=int.from_bytes(frame.seed, "big"),
    )
    return Claim(text=text, logprobs=to_array("logprobs", frame.logprobs, FLOAT32), proofs=frame.proofs)


def from_facts(facts: EngineFacts) -> Loaded:
    return Loaded(**{name: getattr(facts, name) for name in EngineFacts.__slots__})


def to_facts(frame: Loaded) -> EngineFacts:
    return EngineFacts(**{name: getattr(frame, name) for name in EngineFacts.__slots__})


def from_completion(done: Completion) -> CompletionFrame:
    return CompletionFrame(
        number=done.number,
        tokens=to_bytes(done.tokens, INT32),
        logprobs=to_bytes(done.logprobs, FLOAT32),
        finish=int(done.finish),
        proofs=done.proofs,
    )


def to_completion(frame: CompletionFrame) -> Completion:
    return Completion(
        number=frame.number,
        tokens=to_array("tokens", frame.tokens, INT32),
        logprobs=to_array("logprobs", frame.logprobs, FLOAT32),
        finish=Finish(frame.finish),
        proofs=frame.proofs,
    )


def from_numbers(numbers: RowNumbers) -> NumbersFrame:
    plain = {name: getattr(numbers, name) for name in NumbersFrame.__slots__ if name not in TABLES}
    reports = np.array(numbers.chunks, np.int32).reshape(len(numbers.chunks), REPORT_INTS)
    plain["proof_problem"] = numbers.proof_problem.encode()[:PROBLEM_BYTES_MAX]
    spans = np.array(numbers.spans, np.float64).reshape(len(numbers.spans), SPAN_FLOATS)
    return NumbersFrame(reports=to_bytes(reports, INT32), spans=to_bytes(spans, FLOAT64), **plain)


def to_numbers(frame: NumbersFrame) -> RowNumbers:
    chunks = to_table("reports", frame.reports, INT32, REPORT_INTS)
    spans = to_table("spans", frame.spans, FLOAT64, SPAN_FLOATS)
    if not np.isfinite(spans).all() or (spans < 0).any() or (spans[:, :1] < 1).any():
        raise RemoteError("spans", "has a number that is not finite, below 0, or counts no token")
    plain = {name: getattr(frame, name) for name in NumbersFrame.__slots__ if name not in TABLES}
    plain["proof_problem"] = frame.proof_problem.decode(errors="replace")
    return RowNumbers(
        chunks=tuple(map(ChunkReport._make, chunks.tolist())),
        spans=tuple(map(to_span, spans.tolist())),
        **plain,
    )


def to_span(values: list[float]) -> Span:
    found = Span._make(values)
    return found._replace(
        tokens=int(found.tokens), margin_at=int(found.margin_at), logprob_error_at=int(found.logprob_error_at)
    )


def to_table(field: str, data: bytes, dtype: "np.dtype[T]", columns: int) -> NDArray[T]:
    flat = to_array(field, data, dtype)
    if len(flat) % columns:
        raise RemoteError(field, f"has {len(flat)} numbers, not a multiple of {columns}")
    return flat.reshape(-1, columns)
