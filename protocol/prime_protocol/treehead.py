"""Tree heads: which log, how many entries, which root; a signed note in the text form of c2sp.org/tlog-checkpoint.

Whether two heads tell one history is for merkle.verify_consistency. Keeping heads, and comparing them with those that
others were shown, is for the programs.
"""

import base64
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId
from prime_protocol.merkle import EMPTY_ROOT
from prime_protocol.note import (
    Note,
    SignatureKind,
    VerifierKey,
    check_name,
    cosign_text,
    decode_base64,
    sign_text,
)

SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
ORIGIN_PREFIX = "prime-swarm/"
"""A log's origin is this and the name of its network."""


@dataclass(frozen=True, slots=True)
class TreeHead:
    """The log's state at one moment. The name of the log's key is the origin."""

    origin: str
    size: int
    root: Digest

    def __post_init__(self) -> None:
        check_name("tree_head.origin", self.origin)
        if not 0 <= self.size <= LOG_ENTRIES_MAX:
            raise RemoteError("tree_head.size", f"is {self.size}, the limit is {LOG_ENTRIES_MAX}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise RemoteError("tree_head.root", f"is {self.root}, an empty tree's is {EMPTY_ROOT}")

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `text` gives. Extension lines, which nobody could audit, are refused."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] != "":
            raise RemoteError("tree_head", "must be three lines: origin, size, root")
        origin, size, root = lines[:3]
        if not SIZE.fullmatch(size):
            raise RemoteError("tree_head.size", "must be a decimal number without leading zeros")
        raw = decode_base64("tree_head.root", root)
        if len(raw) != DIGEST_BYTES:
            raise RemoteError("tree_head.root", f"is {len(raw)} bytes, expected {DIGEST_BYTES}")
        return cls(origin, int(size), Digest(raw))


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness says: at this time this was the largest head I had seen of this log, and all I saw were consistent."""

    witness: VerifierKey
    time_s: int
    """Unix seconds, by the witness's clock."""


def network_of(origin: str) -> NetworkId:
    """The network whose log calls itself by this origin."""
    if not origin.startswith(ORIGIN_PREFIX):
        raise RemoteError("tree_head.origin", f"is {origin}, expected {ORIGIN_PREFIX} and a network's name")
    return NetworkId(origin.removeprefix(ORIGIN_PREFIX))


def sign_tree_head(head: TreeHead, key: Ed25519PrivateKey) -> bytes:
    """The signed note. Two signed heads that are not of one history are proof against the log, for ever."""
    return Note(head.text, (sign_text(head.text, head.origin, key),)).encode()


def cosign_tree_head(raw: bytes, name: str, key: Ed25519PrivateKey, *, time_s: int) -> bytes:
    """The note with one more line. A witness opens the head and checks its consistency before it calls this."""
    note = Note.parse(raw)
    cosignature = cosign_text(TreeHead.parse(note.text).text, name, key, time_s=time_s)
    return Note(note.text, (*note.signatures, cosignature)).encode()


def open_tree_head(raw: bytes, trusted: Collection[VerifierKey]) -> TreeHead:
    """The head, if a trusted key of the log that it names signed it; else RemoteError."""
    head, _ = open_cosigned_tree_head(raw, trusted)
    return head


def open_cosigned_tree_head(raw: bytes, trusted: Collection[VerifierKey]) -> tuple[TreeHead, tuple[Cosignature, ...]]:
    """The head and who of the trusted witnesses cosigned it, each once, with the latest time."""
    note = Note.parse(raw)
    signed = note.signed_by(trusted)
    if not signed:
        raise RemoteError("note.signatures", "has none by a trusted key")
    head = TreeHead.parse(note.text)
    if not any(key.kind is SignatureKind.NOTE and key.name == head.origin for key, _ in signed):
        raise RemoteError("note.signatures", f"has none by a trusted key of the log {head.origin}")
    times: dict[VerifierKey, int] = {}
    for key, time_s in signed:
        if time_s is not None:
            times[key] = max(time_s, times.get(key, 0))
    return head, tuple(Cosignature(key, time_s) for key, time_s in times.items())
