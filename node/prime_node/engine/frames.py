"""What the node and its engine's process say to each other over a pipe: one frame a message, bounded, strictly read.

A frame is the number of its kind (1 byte), its length (4 bytes, big-endian) and the canonical msgpack of one message.
Arrays travel as their bytes; see frame_values.py. The engine reads strangers' text, so what it answers is parsed like a
stranger's.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from prime_protocol.codec import Range, Size, decode, encode
from prime_protocol.constants import (
    LOOKS_BYTES,
    OUTPUT_TOKENS_MAX,
    READERS_TOLD_MAX,
    ROLLOUT_FILE_BYTES_MAX,
    ROLLOUT_ROWS_MAX,
    VOCAB_SIZE_MAX,
)
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.rollouts import Finish

PIPE_BYTES_MAX = 2 * ROLLOUT_FILE_BYTES_MAX
"""Longest frame: all rows of the largest rollout file, and room."""
HEAD_BYTES = 5
TENSORS_MAX = 2**14
PROBLEM_BYTES_MAX = 4096

Array = Annotated[bytes, Size(0, PIPE_BYTES_MAX)]
Seed = Annotated[bytes, Size(8, 8)]
Note = Annotated[bytes, Size(0, PROBLEM_BYTES_MAX)]
"""Text for people. As bytes, since an engine's last words may hold anything."""
Job = Uint


# --- The node asks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWanted:
    job: Job
    folder: Note
    """Path, as the file system has it."""
    changed: Annotated[tuple[str, ...], Size(0, TENSORS_MAX)] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFrame:
    temperature: float
    eos: Annotated[tuple[Annotated[int, Range(0, VOCAB_SIZE_MAX)], ...], Size(0, 1024)]
    tokens_max: Annotated[int, Range(1, OUTPUT_TOKENS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFrame:
    number: Uint
    prompt: Array
    seed: Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWanted:
    job: Job
    sampling: SamplingFrame
    orders: Annotated[tuple[OrderFrame, ...], Size(1, ROLLOUT_ROWS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFrame:
    number: Uint
    prompt: Array
    output: Array
    seed: Seed
    logprobs: Array
    proofs: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWanted:
    job: Job
    sampling: SamplingFrame
    seed: Digest
    """Decoys come from it."""
    claims: Annotated[tuple[ClaimFrame, ...], Size(1, ROLLOUT_ROWS_MAX)]
    submission: Digest
    readers: Annotated[tuple[NodeId, ...], Size(0, READERS_TOLD_MAX)]
    """Whose looks at this submission to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonWanted:
    """Nobody waits for the rest of this job."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWanted:
    job: Job


# --- The engine answers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The process runs and can be asked."""

    software: Annotated[tuple[str, ...], Size(0, 32)]
    """Names and versions of what computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    engine: str
    device: str
    precision: str
    hidden: Uint
    vocabulary: Uint
    context_max: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The engine has got further."""

    steps: Uint
    """Times it looked up from its work."""
    tokens: Uint
    """Of the rows that are done."""
    rows: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFrame:
    number: Uint
    tokens: Array
    logprobs: Array
    finish: Annotated[int, Range(0, max(Finish))]
    proofs: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersFrame:
    row: Uint
    tokens: Uint
    reports: Array
    """Chunk reports, as 32-bit integers."""
    spans: Array
    """What the tokens of each chunk gave, as 64-bit floats."""
    proof_problem: Note
    margin_max: float
    margin_at: Uint
    margin_sum: float
    logprob_error_max: float
    logprob_error_at: Uint
    logprob_error_sum: float
    eos_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksFrame:
    """A reader's looks at the claims, when all of them were read."""

    reader: NodeId
    looks: Annotated[bytes, Size(0, LOOKS_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job cannot be done here; whether the process goes on is for it to show."""

    job: Job
    problem: Note


Request = LoadWanted | GenerateWanted | CheckWanted | AbandonWanted | StopWanted
Reply = Ready | Loaded | Progress | CompletionFrame | NumbersFrame | LooksFrame | Done | Failed
KINDS: tuple[type[Any], ...] = (
    LoadWanted,
    GenerateWanted,
    CheckWanted,
    AbandonWanted,
    StopWanted,
    Ready,
    Loaded,
    Progress,
    CompletionFrame,
    NumbersFrame,
    LooksFrame,
    Done,
    Failed,
)


def pack(message: Request | Reply) -> bytes:
    """The frame of a message."""
    body = encode(message)
    assert len(body) <= PIPE_BYTES_MAX, "the rows of a rollout file fit into a frame"
    return bytes([KINDS.index(type(message))]) + len(body).to_bytes(HEAD_BYTES - 1, "big") + body


def read_head(head: bytes) -> tuple[type[Any], int]:
    """Kind and length of the frame that follows."""
    number, length = head[0], int.from_bytes(head[1:], "big")
    if number >= len(KINDS):
        raise RemoteError("frame", f"has the unknown kind {number}")
    if length > PIPE_BYTES_MAX:
        raise RemoteError("frame", f"is {length} bytes, the limit is {PIPE_BYTES_MAX}")
    return KINDS[number], length


def read_body(kind: type[Any], body: bytes) -> Any:
    return decode(kind, body, bytes_max=PIPE_BYTES_MAX)
