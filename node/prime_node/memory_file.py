"""What must survive a crash, as a file: entries on their way, answers given, what the log was told. Written whole."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from prime_node.events import Answer, Memory, Parcel
from prime_node.home import write_whole
from prime_protocol.codec import Size, decode, encode
from prime_protocol.entries import NodeRegistered
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, RunId
from prime_protocol.messages import AUTHORED

log = logging.getLogger(__name__)

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in AUTHORED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParcel:
    kind: str
    body: bytes
    run: RunId | None
    until_ms: Uint
    file: Digest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    lease: Uint
    submission: Digest
    deadline_ms: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMemory:
    parcels: Annotated[tuple[StoredParcel, ...], Size(0, 10_000)]
    answers: Annotated[tuple[StoredAnswer, ...], Size(0, 10_000)]
    is_staked: bool
    registered: NodeRegistered | None


def encode_memory(memory: Memory) -> bytes:
    parcels = [
        StoredParcel(
            kind=type(parcel.entry).__name__,
            body=encode(parcel.entry),
            run=parcel.run,
            until_ms=parcel.until_ms,
            file=parcel.file,
        )
        for parcel in memory.parcels
    ]
    answers = [
        StoredAnswer(lease=each.lease, submission=each.submission, deadline_ms=each.deadline_ms)
        for each in memory.answers
    ]
    return encode(
        StoredMemory(
            parcels=tuple(parcels),
            answers=tuple(answers),
            is_staked=memory.is_staked,
            registered=memory.registered,
        )
    )


def decode_memory(raw: bytes) -> Memory:
    """RemoteError where the file is damaged, or of another version."""
    stored = decode(StoredMemory, raw)
    parcels = []
    for each in stored.parcels:
        if each.kind not in KINDS:
            raise RemoteError("kind", f"{each.kind} is no entry that a node writes")
        parcels.append(Parcel(decode(KINDS[each.kind], each.body), each.run, each.until_ms, each.file))
    answers = tuple(Answer(each.lease, each.submission, each.deadline_ms) for each in stored.answers)
    return Memory(tuple(parcels), answers, stored.is_staked, stored.registered)


class MemoryFile:
    """One node's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, memory: Memory) -> None:
        write_whole(self._path, encode_memory(memory))

    def load(self) -> Memory:
        """Nothing where there is none, or none that can be read: the coordinator's replies bring back the rest."""
        try:
            return decode_memory(self._path.read_bytes())
        except FileNotFoundError:
            return Memory()
        except (OSError, RemoteError) as error:
            log.warning("what was remembered in %s is lost: %s", self._path, error)
            return Memory()
