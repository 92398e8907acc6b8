"""Messages between the node and its engine's process: one frame per message, bounded and strictly parsed. Pure.

A frame is the number of its kind (1 byte), its length (4 bytes, big-endian) and the canonical msgpack of one message.
Arrays travel as little-endian bytes. The engine processes untrusted text, so its replies are parsed as strictly as
those of a peer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.interface import (
    Completion,
    EngineCapacity,
    EngineFacts,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_protocol.constants import (
    OUTPUT_TOKENS_MAX,
    READ_PROOF_PROBES,
    READERS_MAX,
    ROLLOUT_FILE_BYTES_MAX,
    ROLLOUT_ROWS_MAX,
    TENSORS_MAX,
    VOCAB_SIZE_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId

PIPE_BYTES_MAX = 2 * ROLLOUT_FILE_BYTES_MAX
"""Longest frame: all rows of the largest rollout file, with a margin."""
HEADER_BYTES = 5
PROBLEM_BYTES_MAX = 4096

ArrayBytes = Annotated[bytes, Size(0, PIPE_BYTES_MAX)]
SeedBytes = Annotated[bytes, Size(8, 8)]
TextBytes = Annotated[bytes, Size(0, PROBLEM_BYTES_MAX)]
"""Text as bytes, since an engine's output may not be valid UTF-8."""
JobNumber = Uint


# --- Commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    job: JobNumber
    folder: TextBytes
    """Path, in the file system's encoding."""
    changed: Annotated[tuple[str, ...], Size(0, TENSORS_MAX)] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFrame:
    temperature: float
    eos: Annotated[tuple[Annotated[int, Range(0, VOCAB_SIZE_MAX)], ...], Size(0, 1024)]
    tokens_max: Annotated[int, Range(1, OUTPUT_TOKENS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFrame:
    number: Uint
    prompt: ArrayBytes
    seed: SeedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob:
    """Completions that join those of other jobs. Their numbers differ from all that are in flight."""

    job: JobNumber
    sampling: SamplingFrame
    requests: Annotated[tuple[RequestFrame, ...], Size(1, ROLLOUT_ROWS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFrame:
    number: Uint
    prompt: ArrayBytes
    output: ArrayBytes
    seed: SeedBytes
    logprobs: ArrayBytes
    proofs: ArrayBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRowsJob:
    job: JobNumber
    sampling: SamplingFrame
    seed: Digest
    """Seed of the decoy evaluations."""
    claims: Annotated[tuple[ClaimFrame, ...], Size(1, ROLLOUT_ROWS_MAX)]
    submission: Digest
    readers: Annotated[tuple[NodeId, ...], Size(0, READERS_MAX)]
    """The readers whose projections of this block to compute."""
    block: Uint
    """Number of the block of the submission that the claims are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """The node no longer waits for this job."""

    job: JobNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEngine:
    job: JobNumber


# --- Replies --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady:
    """The process is ready for jobs."""

    software: Annotated[tuple[str, ...], Size(0, 32)]
    """Names and versions of the libraries that compute."""


MachineText = Annotated[str, Size(0, 200)]
"""Part of the description of a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    engine: str
    device: str
    precision: str
    hidden: Uint
    vocabulary: Uint
    context_max: Uint
    version: MachineText
    attention: MachineText
    tensor_parallel: Uint
    device_model: MachineText
    driver: MachineText


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFrame:
    """How much the engine can generate at once with the checkpoint that it has loaded."""

    sequences_max: Uint
    kv_tokens: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """The engine has made progress."""

    steps: Uint
    """Steps of the engine since its process started."""
    running: Uint
    """Completions that are generated now, of all jobs."""
    waiting: Uint
    """Completions that wait for a place in the running batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFrame:
    number: Uint
    tokens: ArrayBytes
    logprobs: ArrayBytes
    finish: Annotated[int, Range(0, max(FinishReason))]
    proofs: ArrayBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementFrame:
    row: Uint
    tokens: Uint
    reports: ArrayBytes
    """Chunk reports as 32-bit integers."""
    spans: ArrayBytes
    """Margins and log-prob errors of each chunk, as 64-bit floats."""
    proof_problem: TextBytes
    margin_max: float
    margin_at: Uint
    margin_sum: float
    logprob_error_max: float
    logprob_error_at: Uint
    logprob_error_sum: float
    eos_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProofFrame:
    """The projections of one reader over all claims, as 64-bit floats; empty without two output tokens."""

    reader: NodeId
    projections: Annotated[bytes, Size(0, 8 * READ_PROOF_PROBES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    job: JobNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job failed. The process may go on or exit."""

    job: JobNumber
    problem: TextBytes


EngineCommand = LoadJob | GenerateJob | CheckRowsJob | CancelJob | StopEngine
EngineReply = (
    EngineReady
    | ModelLoaded
    | EngineProgress
    | CompletionFrame
    | MeasurementFrame
    | ReadProofFrame
    | JobDone
    | JobFailed
    | CapacityFrame
)
FRAME_KINDS: tuple[type[Any], ...] = (
    LoadJob,
    GenerateJob,
    CheckRowsJob,
    CancelJob,
    StopEngine,
    EngineReady,
    ModelLoaded,
    EngineProgress,
    CompletionFrame,
    MeasurementFrame,
    ReadProofFrame,
    JobDone,
    JobFailed,
    CapacityFrame,
)


def encode_frame(message: EngineCommand | EngineReply) -> bytes:
    """The frame of a message."""
    body = encode(message)
    assert len(body) <= PIPE_BYTES_MAX, "the rows of a rollout file fit into a frame"
    return bytes([FRAME_KINDS.index(type(message))]) + len(body).to_bytes(HEADER_BYTES - 1, "big") + body


def decode_frame_header(head: bytes) -> tuple[type[Any], int]:
    """Kind and length of the frame that follows."""
    number, length = head[0], int.from_bytes(head[1:], "big")
    if number >= len(FRAME_KINDS):
        raise RemoteError("frame", f"has the unknown kind {number}")
    if length > PIPE_BYTES_MAX:
        raise RemoteError("frame", f"is {length} bytes, the limit is {PIPE_BYTES_MAX}")
    return FRAME_KINDS[number], length


def decode_frame_body(kind: type[Any], body: bytes) -> Any:
    return decode(kind, body, bytes_max=PIPE_BYTES_MAX)


T = TypeVar("T", bound=np.generic)
REPORT_INTS, SPAN_FLOATS = len(ChunkReport._fields), len(ReplayedChunk._fields)
TABLE_FIELDS = ("reports", "spans")
"""Fields that hold tables as bytes."""
INT32, FLOAT32, FLOAT64 = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")


def encode_array(array: NDArray[Any], dtype: "np.dtype[Any]") -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def decode_array(field: str, data: bytes, dtype: "np.dtype[T]") -> NDArray[T]:
    if len(data) % dtype.itemsize:
        raise RemoteError(field, f"has {len(data)} bytes, not a multiple of {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def encode_sampling(sampling: Sampling) -> SamplingFrame:
    eos = tuple(sorted(sampling.eos))
    return SamplingFrame(temperature=float(sampling.temperature), eos=eos, tokens_max=sampling.tokens_max)


def decode_sampling(frame: SamplingFrame) -> Sampling:
    return Sampling(temperature=frame.temperature, eos=frozenset(frame.eos), tokens_max=frame.tokens_max)


def encode_request(request: GenerateRequest) -> RequestFrame:
    return RequestFrame(
        number=request.number, prompt=encode_array(request.prompt, INT32), seed=request.seed.to_bytes(8, "big")
    )


def decode_request(frame: RequestFrame) -> GenerateRequest:
    seed = int.from_bytes(frame.seed, "big")
    return GenerateRequest(number=frame.number, prompt=decode_array("prompt", frame.prompt, INT32), seed=seed)


def encode_claim(claim: ClaimedRow) -> ClaimFrame:
    sequence = claim.sequence
    return ClaimFrame(
        number=sequence.number,
        prompt=encode_array(sequence.prompt, INT32),
        output=encode_array(sequence.output, INT32),
        seed=sequence.seed.to_bytes(8, "big"),
        logprobs=encode_array(claim.logprobs, FLOAT32),
        proofs=claim.proofs,
    )


def decode_claim(frame: ClaimFrame) -> ClaimedRow:
    sequence = TokenSequence(
        number=frame.number,
        prompt=decode_array("prompt", frame.prompt, INT32),
        output=decode_array("output", frame.output, INT32),
        seed=int.from_bytes(frame.seed, "big"),
    )
    return ClaimedRow(
        sequence=sequence, logprobs=decode_array("logprobs", frame.logprobs, FLOAT32), proofs=frame.proofs
    )


def encode_facts(facts: EngineFacts) -> ModelLoaded:
    return ModelLoaded(**{name: getattr(facts, name) for name in EngineFacts.__slots__})


def decode_facts(frame: ModelLoaded) -> EngineFacts:
    return EngineFacts(**{name: getattr(frame, name) for name in EngineFacts.__slots__})


def encode_capacity(capacity: EngineCapacity) -> CapacityFrame:
    return CapacityFrame(sequences_max=capacity.sequences_max, kv_tokens=capacity.kv_tokens)


def decode_capacity(frame: CapacityFrame) -> EngineCapacity:
    return EngineCapacity(sequences_max=frame.sequences_max, kv_tokens=frame.kv_tokens)


def encode_completion(done: Completion) -> CompletionFrame:
    return CompletionFrame(
        number=done.number,
        tokens=encode_array(done.tokens, INT32),
        logprobs=encode_array(done.logprobs, FLOAT32),
        finish=int(done.finish),
        proofs=done.proofs,
    )


def decode_completion(frame: CompletionFrame) -> Completion:
    return Completion(
        number=frame.number,
        tokens=decode_array("tokens", frame.tokens, INT32),
        logprobs=decode_array("logprobs", frame.logprobs, FLOAT32),
        finish=FinishReason(frame.finish),
        proofs=frame.proofs,
    )


def encode_measurement(numbers: RowMeasurement) -> MeasurementFrame:
    plain = {name: getattr(numbers, name) for name in MeasurementFrame.__slots__ if name not in TABLE_FIELDS}
    reports = np.array(numbers.chunks, np.int32).reshape(len(numbers.chunks), REPORT_INTS)
    plain["proof_problem"] = numbers.proof_problem.encode()[:PROBLEM_BYTES_MAX]
    spans = np.array(numbers.spans, np.float64).reshape(len(numbers.spans), SPAN_FLOATS)
    return MeasurementFrame(reports=encode_array(reports, INT32), spans=encode_array(spans, FLOAT64), **plain)


def decode_measurement(frame: MeasurementFrame) -> RowMeasurement:
    chunks = decode_table("reports", frame.reports, INT32, REPORT_INTS)
    spans = decode_table("spans", frame.spans, FLOAT64, SPAN_FLOATS)
    if not np.isfinite(spans).all() or (spans < 0).any() or (spans[:, :1] < 1).any():
        raise RemoteError("spans", "has a number that is not finite, below 0, or counts no token")
    plain = {name: getattr(frame, name) for name in MeasurementFrame.__slots__ if name not in TABLE_FIELDS}
    plain["proof_problem"] = frame.proof_problem.decode(errors="replace")
    return RowMeasurement(
        chunks=tuple(map(ChunkReport._make, chunks.tolist())),
        spans=tuple(map(decode_span, spans.tolist())),
        **plain,
    )


def encode_projections(reader: NodeId, projections: Sequence[float]) -> ReadProofFrame:
    return ReadProofFrame(reader=reader, projections=encode_array(np.array(projections), FLOAT64))


def decode_projections(frame: ReadProofFrame) -> tuple[float, ...]:
    found = decode_array("projections", frame.projections, FLOAT64)
    if len(found) not in (0, READ_PROOF_PROBES) or not np.isfinite(found).all():
        raise RemoteError("projections", f"are {len(found)} numbers, allowed is 0 or {READ_PROOF_PROBES} finite ones")
    return tuple(found.tolist())


def decode_span(values: list[float]) -> ReplayedChunk:
    found = ReplayedChunk._make(values)
    return found._replace(
        tokens=int(found.tokens),
        margin_at=int(found.margin_at),
        logprob_error_at=int(found.logprob_error_at),
        losers=int(found.losers),
    )


def decode_table(field: str, data: bytes, dtype: "np.dtype[T]", columns: int) -> NDArray[T]:
    flat = decode_array(field, data, dtype)
    if len(flat) % columns:
        raise RemoteError(field, f"has {len(flat)} numbers, not a multiple of {columns}")
    return flat.reshape(-1, columns)
