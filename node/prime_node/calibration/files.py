"""The files that machines exchange to calibrate: completions of one engine class, and what another class measured.

A file is MAGIC, then records, each with its length (4 bytes, big-endian) before it: a header, the rows, and an empty
record. After that comes the author's signature of everything before it. Rows are canonical msgpack, in the frames of
the engine's pipe. A file from a stranger is checked as a whole before a row of it is used: its size, every length and
the signature. A row is parsed when it is read, so a file needs no more memory than its largest row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

import numpy as np

from prime_node.engine import frames
from prime_node.engine.frames import ClaimFrame, MeasurementFrame, ModelLoaded
from prime_node.engine.interface import Sampling
from prime_node.engine.machine_class import get_engine_class
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_protocol.constants import SIGNATURE_BYTES, TEMPERATURE_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, digest_fields
from prime_protocol.wire.signing import Signature, WalletKey, recover_signer

MAGIC = b"prime-swarm calibration 1\n"
LENGTH_BYTES = 4
HEADER_BYTES_MAX = 64 * 2**10
RECORD_BYTES_MAX = 64 * 2**20
"""Largest row. A completion of 2^20 tokens has 8.5 MB of proofs and 8 MB of tokens and log-probs."""
FILE_BYTES_MAX = 16 * 2**30
ROWS_MAX = 10**6
READ_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """What was run: files that differ in any of this cannot be compared."""

    weights: Digest
    """Root of the checkpoint."""
    model_files: Digest
    precision: Precision
    """Of the run that is calibrated."""
    temperature: Annotated[float, Range(0.0, TEMPERATURE_MAX)]
    eos: Annotated[tuple[Uint, ...], Size(0, 64)]
    tokens_max: Uint

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, eos=frozenset(self.eos), tokens_max=self.tokens_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEngine:
    """A machine and the engine on it, as its owner's program describes it."""

    facts: ModelLoaded
    software: Annotated[tuple[str, ...], Size(0, 32)]

    @property
    def engine_class(self) -> EngineClass:
        """RemoteError: it has none."""
        name = get_engine_class(frames.decode_facts(self.facts))
        if name is None:
            raise RemoteError("engine.facts", "does not describe an engine")
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationHeader:
    """Of either kind of file."""

    author: NodeId
    made_at_ms: Uint
    model: MeasuredModel
    writer: MeasuredEngine
    """What generated the completions."""
    reader: MeasuredEngine | None
    """What measured them; None in a file of completions."""
    source: Digest | None
    """Digest of the file of completions that was measured."""

    def __post_init__(self) -> None:
        if (self.reader is None) != (self.source is None):
            raise RemoteError("source", "is there in files of measurements only")


class CalibrationWriter:
    """Writes one file. It appears under its name when it is whole and signed."""

    def __init__(self, path: Path, header: CalibrationHeader, key: WalletKey) -> None:
        assert header.author == key.node
        self._path, self._partial = path, path.with_name(path.name + ".partial")
        self._key = key
        self._digest = sha256()
        self.rows = self.tokens = 0
        try:
            self._file: BinaryIO = self._partial.open("wb")
        except OSError as error:
            raise LocalError(f"cannot write {self._partial}: {error.strerror}") from None
        self._put(MAGIC)
        self._put_record(encode(header))

    def add_claim(self, claim: ClaimedRow) -> None:
        self._add(encode(frames.encode_claim(claim)), len(claim.sequence.output))

    def add_measurement(self, row: RowMeasurement) -> None:
        self._add(encode(frames.encode_measurement(row)), row.tokens)

    def _add(self, record: bytes, tokens: int) -> None:
        if self.rows == ROWS_MAX:
            raise LocalError(f"{self._path} has {ROWS_MAX} rows, the most that a file may have")
        self.rows += 1
        self.tokens += tokens
        self._put_record(record)

    def _put_record(self, record: bytes) -> None:
        self._put(len(record).to_bytes(LENGTH_BYTES, "big") + record)

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise LocalError(f"cannot write {self._partial}: {error.strerror}") from None
        self._digest.update(data)

    def finish(self) -> None:
        self._put_record(b"")
        self._file.write(self._key.sign(compute_signed_digest(self._digest.digest())))
        self._file.close()
        self._partial.replace(self._path)

    def __enter__(self) -> "CalibrationWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A file without rows, or one that was not finished, is removed."""
        if error is None and self.rows:
            self.finish()
        else:
            self._file.close()
            self._partial.unlink(missing_ok=True)


def compute_signed_digest(content: bytes) -> Digest:
    return digest_fields("calibration-file/1", content)


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """A file whose lengths and signature were checked."""

    path: Path
    header: CalibrationHeader
    digest: Digest
    """Of its content, which the signature covers."""
    rows: int
    begin: int
    """Where its rows begin."""

    @classmethod
    def open(cls, path: Path) -> "CalibrationFile":
        """LocalError: it cannot be read. RemoteError: it is not what its author wrote, or no such file."""
        try:
            with path.open("rb") as file:
                return cls._open(path, file)
        except OSError as error:
            raise LocalError(f"cannot read {path}: {error.strerror}") from None
        except RemoteError as error:
            raise RemoteError(f"{path}: {error.field}", error.problem) from None

    @classmethod
    def _open(cls, path: Path, file: BinaryIO) -> "CalibrationFile":
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise RemoteError("file", f"is {size} bytes, the limit is {FILE_BYTES_MAX}")
        content = sha256()
        if _take(file, len(MAGIC), content) != MAGIC:
            raise RemoteError("file", "is no calibration file, or of another version of prime-swarm")
        header = decode(CalibrationHeader, _take_record(file, HEADER_BYTES_MAX, content))
        begin, rows = file.tell(), 0
        while _skip_record(file, content):
            rows += 1
            if rows > ROWS_MAX:
                raise RemoteError("rows", f"are more than {ROWS_MAX}")
        rest = file.read(SIGNATURE_BYTES + 1)
        if len(rest) != SIGNATURE_BYTES:
            raise RemoteError("signature", f"is not the {SIGNATURE_BYTES} bytes at the end")
        digest = compute_signed_digest(content.digest())
        signer = recover_signer(digest, Signature(rest))
        if signer != header.author:
            raise RemoteError("signature", f"is by {signer}, the file says {header.author}")
        return cls(path, header, digest, rows, begin)

    def iterate_claims(self) -> Iterator[ClaimedRow]:
        """RemoteError: a row is malformed."""
        for place, frame in enumerate(self._iterate(ClaimFrame)):
            claim = frames.decode_claim(frame)
            try:
                check_claim(claim)
            except RemoteError as error:
                raise RemoteError(f"{self.path}: rows[{place}].{error.field}", error.problem) from None
            yield claim

    def iterate_measurements(self) -> Iterator[RowMeasurement]:
        return (frames.decode_measurement(frame) for frame in self._iterate(MeasurementFrame))

    def _iterate(self, kind: type[Any]) -> Iterator[Any]:
        # Compared again at the end: the file may have been changed since it was checked.
        with self.path.open("rb") as file:
            content = sha256(file.read(self.begin))
            for place in range(self.rows):
                record = _take_record(file, RECORD_BYTES_MAX, content)
                try:
                    yield decode(kind, record, bytes_max=RECORD_BYTES_MAX)
                except RemoteError as error:
                    raise RemoteError(f"{self.path}: rows[{place}].{error.field}", error.problem) from None
            _take(file, LENGTH_BYTES, content)
        if compute_signed_digest(content.digest()) != self.digest:
            raise LocalError(f"{self.path} has changed while it was read")


def check_claim(claim: ClaimedRow) -> None:
    """What an engine relies on. It checks the tokens against its vocabulary and context itself."""
    prompt, output = claim.sequence.prompt, claim.sequence.output
    if not len(prompt) or not len(output) or min(prompt.min(), output.min()) < 0:
        raise RemoteError("tokens", "are missing, or below 0")
    if len(claim.logprobs) != len(output) or not (np.isfinite(claim.logprobs) & (claim.logprobs <= 0)).all():
        raise RemoteError("logprobs", f"are {len(claim.logprobs)}, not one for each token, finite and not above 0")


def _take(file: BinaryIO, size: int, content: Any) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise RemoteError("file", "ends early")
    content.update(data)
    return data


def _take_record(file: BinaryIO, bytes_max: int, content: Any) -> bytes:
    size = int.from_bytes(_take(file, LENGTH_BYTES, content), "big")
    if size > bytes_max:
        raise RemoteError("record", f"is {size} bytes, the limit is {bytes_max}")
    return _take(file, size, content)


def _skip_record(file: BinaryIO, content: Any) -> bool:
    """Whether there was one: the empty record ends the rows."""
    size = int.from_bytes(_take(file, LENGTH_BYTES, content), "big")
    if size > RECORD_BYTES_MAX:
        raise RemoteError("record", f"is {size} bytes, the limit is {RECORD_BYTES_MAX}")
    for start in range(0, size, READ_BYTES):
        _take(file, min(READ_BYTES, size - start), content)
    return size > 0
