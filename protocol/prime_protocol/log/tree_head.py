"""Signed tree heads: which log, how many entries, which root; as signed notes with Ed25519 signatures.

A note (c2sp.org/signed-note) is a text, an empty line and one line per signature. The text of a tree head follows
c2sp.org/tlog-checkpoint. Signing is deterministic, so it needs no randomness. Whether two heads belong to one history
is decided by merkle.verify_consistency; the programs store heads and compare them with those of other nodes.
"""

import base64
import binascii
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prime_protocol.constants import (
    COSIGNATURE_TIME_S_MAX,
    COSIGNATURES_REMEMBERED,
    DIGEST_BYTES,
    ED25519_KEY_BYTES,
    ED25519_SIGNATURE_BYTES,
    KEY_ID_BYTES,
    KEY_NAME_BYTES_MAX,
    LOG_ENTRIES_MAX,
    NOTE_BYTES_MAX,
    NOTE_SIGNATURES_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import EMPTY_ROOT
from prime_protocol.wire.ids import Digest, NetworkId, digest_fields
from prime_protocol.wire.signing import WalletKey

DASH = "\u2014 "
TIME_BYTES = 8
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
KEY_ID = re.compile(r"[0-9a-f]{8}")


class SignatureKind(IntEnum):
    """The signature type byte: what exactly is signed."""

    NOTE = 0x01
    """The text itself. A log signs like this."""

    COSIGNATURE = 0x04
    """The text under a heading with the time (c2sp.org/tlog-cosignature, v1). A witness signs like this."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key, its name, and what kind of signature it makes. Printed as `name+id+base64(kind, key)`."""

    name: str
    kind: SignatureKind
    public_key: bytes
    key_id: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_key_name("verifier_key.name", self.name)
        if len(self.public_key) != ED25519_KEY_BYTES:
            raise RemoteError(
                "verifier_key.public_key", f"is {len(self.public_key)} bytes, expected {ED25519_KEY_BYTES}"
            )
        preimage = self.name.encode() + b"\n" + bytes([self.kind]) + self.public_key
        object.__setattr__(self, "key_id", sha256(preimage).digest()[:KEY_ID_BYTES])

    @classmethod
    def of(cls, name: str, key: Ed25519PrivateKey, kind: SignatureKind = SignatureKind.NOTE) -> Self:
        return cls(name, kind, key.public_key().public_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        # The base64 may hold more plus signs; a name holds none.
        parts = text.split("+", 2)
        if len(parts) != 3:
            raise RemoteError("verifier_key", "must be name+id+key")
        name, key_id, encoded = parts
        if not KEY_ID.fullmatch(key_id):
            raise RemoteError("verifier_key.key_id", "must be 8 lower-case hex digits")
        raw = decode_base64("verifier_key.public_key", encoded)
        if raw[:1] not in (b"\x01", b"\x04"):
            raise RemoteError("verifier_key.kind", f"is {raw[:1].hex() or 'missing'}, known are 01 and 04")
        key = cls(name, SignatureKind(raw[0]), raw[1:])
        if key.key_id.hex() != key_id:
            raise RemoteError("verifier_key.key_id", f"is {key_id}, the key's is {key.key_id.hex()}")
        return key

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.kind]) + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: a key's name and id, and what that key made. Nothing about it is verified."""

    name: str
    key_id: bytes
    signature: bytes

    def __str__(self) -> str:
        return f"{DASH}{self.name} {base64.b64encode(self.key_id + self.signature).decode()}\n"


class VerifiedSignature(NamedTuple):
    """A verified signature: whose, and for a cosignature when."""

    key: VerifierKey
    time_s: int | None


@dataclass(frozen=True, slots=True)
class SignedNote:
    """A parsed note. The text means nothing until a trusted key's signature on it has been verified."""

    text: str
    """Ends in a newline."""

    signatures: tuple[NoteSignature, ...]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        if len(raw) > NOTE_BYTES_MAX:
            raise RemoteError("note", f"is {len(raw)} bytes, the limit is {NOTE_BYTES_MAX}")
        try:
            whole = raw.decode()
        except UnicodeDecodeError:
            raise RemoteError("note", "is not UTF-8") from None
        if CONTROL_CHARACTER.search(whole.replace("\n", "")):
            raise RemoteError("note", "has a control character")
        # The last empty line separates text and signatures: the text may contain empty lines too.
        text, gap, tail = whole.rpartition("\n\n")
        if not gap:
            raise RemoteError("note", "has no empty line before its signatures")
        lines = tail.split("\n")
        if lines.pop() != "" or not lines:
            raise RemoteError("note.signatures", "must be one or more whole lines")
        if len(lines) > NOTE_SIGNATURES_MAX:
            raise RemoteError("note.signatures", f"are {len(lines)}, the limit is {NOTE_SIGNATURES_MAX}")
        return cls(text + "\n", tuple(_parse_signature(number, line) for number, line in enumerate(lines)))

    def encode(self) -> bytes:
        return (self.text + "\n" + "".join(map(str, self.signatures))).encode()

    def verify_signatures(self, trusted: Iterable[VerifierKey]) -> list[VerifiedSignature]:
        """Every trusted key that signed. Unknown keys are ignored; a bad signature of a trusted key is an error."""
        keys, signed = list(trusted), []
        for number, line in enumerate(self.signatures):
            named = [key for key in keys if key.name == line.name and key.key_id == line.key_id]
            # Key ids are short: two trusted keys may share one, and then either may have signed.
            found = [one for key in named if (one := _verify_signature(key, self.text, line.signature))]
            if named and not found:
                raise RemoteError(f"note.signatures[{number}]", f"is not a valid signature of {line.name}")
            signed += found
        return signed


def sign_note(text: str, name: str, key: Ed25519PrivateKey) -> NoteSignature:
    verifier = VerifierKey.of(name, key)
    return NoteSignature(name, verifier.key_id, key.sign(text.encode()))


def cosign_note(text: str, name: str, key: Ed25519PrivateKey, *, time_s: int) -> NoteSignature:
    assert 0 <= time_s <= COSIGNATURE_TIME_S_MAX
    verifier = VerifierKey.of(name, key, SignatureKind.COSIGNATURE)
    signature = key.sign(encode_cosigned_message(text, time_s))
    return NoteSignature(name, verifier.key_id, time_s.to_bytes(TIME_BYTES, "big") + signature)


def encode_cosigned_message(text: str, time_s: int) -> bytes:
    """The heading ensures that a cosignature is never valid as a log's own signature."""
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def derive_witness_key(key: WalletKey) -> Ed25519PrivateKey:
    """The Ed25519 key with which a node cosigns heads. It follows from the wallet key, so there is no second secret."""
    return Ed25519PrivateKey.from_private_bytes(sha256(key.sign(digest_fields("witness key/1"))).digest())


@lru_cache(maxsize=COSIGNATURES_REMEMBERED)
def is_cosigned(head: "TreeHead", public_key: bytes, time_s: int, signature: bytes) -> bool:
    """Whether a witness's key signed the head with this time.

    A coordinator asks this three times of one cosignature: when it arrives, when it writes the round that the
    cosignature supports, and when the rule of that entry is applied.
    """
    if len(public_key) != ED25519_KEY_BYTES:
        return False
    try:
        message = encode_cosigned_message(head.text, time_s)
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _verify_signature(key: VerifierKey, text: str, signature: bytes) -> VerifiedSignature | None:
    time_s, message = None, text.encode()
    if key.kind is SignatureKind.COSIGNATURE:
        time_s = int.from_bytes(signature[:TIME_BYTES], "big")
        message, signature = encode_cosigned_message(text, time_s), signature[TIME_BYTES:]
        if time_s > COSIGNATURE_TIME_S_MAX:
            return None
    if len(signature) != ED25519_SIGNATURE_BYTES:
        return None
    try:
        Ed25519PublicKey.from_public_bytes(key.public_key).verify(signature, message)
    except InvalidSignature:
        return None
    return VerifiedSignature(key, time_s)


def _parse_signature(number: int, line: str) -> NoteSignature:
    where = f"note.signatures[{number}]"
    name, space, encoded = line.removeprefix(DASH).partition(" ")
    if not line.startswith(DASH) or not space:
        raise RemoteError(where, "must be an em dash, a name and a signature, parted by single spaces")
    check_key_name(f"{where}.name", name)
    raw = decode_base64(where, encoded)
    if len(raw) <= KEY_ID_BYTES:
        raise RemoteError(where, f"is {len(raw)} bytes, expected more than {KEY_ID_BYTES}")
    return NoteSignature(name, raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES:])


def check_key_name(where: str, name: str) -> None:
    """A key name: not empty, not too long, and without spaces, plus signs or control characters."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise RemoteError(where, "is not valid Unicode") from None
    if not 0 < length <= KEY_NAME_BYTES_MAX:
        raise RemoteError(where, f"is {length} bytes, expected 1 to {KEY_NAME_BYTES_MAX}")
    if "+" in name or CONTROL_CHARACTER.search(name) or any(letter.isspace() for letter in name):
        raise RemoteError(where, "has a space, a plus sign or a control character")


def decode_base64(where: str, text: str) -> bytes:
    """Standard base64 with padding; only the one text that encoding the value gives."""
    try:
        raw = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise RemoteError(where, "is not base64") from None
    if base64.b64encode(raw).decode() != text:
        raise RemoteError(where, "is not canonical base64")
    return raw


TREE_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
ORIGIN_PREFIX = "prime-swarm/"
"""A log's origin is this and the name of its network."""


@dataclass(frozen=True, slots=True)
class TreeHead:
    """The log's state at one moment. The name of the log's key is the origin."""

    origin: str
    size: int
    root: Digest

    def __post_init__(self) -> None:
        check_key_name("tree_head.origin", self.origin)
        if not 0 <= self.size <= LOG_ENTRIES_MAX:
            raise RemoteError("tree_head.size", f"is {self.size}, the limit is {LOG_ENTRIES_MAX}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise RemoteError("tree_head.root", f"is {self.root}, an empty tree's is {EMPTY_ROOT}")

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `text` gives. Extension lines are refused, because no reader could audit them."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] != "":
            raise RemoteError("tree_head", "must be three lines: origin, size, root")
        origin, size, root = lines[:3]
        if not TREE_SIZE.fullmatch(size):
            raise RemoteError("tree_head.size", "must be a decimal number without leading zeros")
        raw = decode_base64("tree_head.root", root)
        if len(raw) != DIGEST_BYTES:
            raise RemoteError("tree_head.root", f"is {len(raw)} bytes, expected {DIGEST_BYTES}")
        return cls(origin, int(size), Digest(raw))


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness says: at this time I had seen this head, and it is consistent with all I saw of this log before."""

    witness: VerifierKey
    time_s: int
    """Unix seconds, by the witness's clock."""


def parse_origin(origin: str) -> NetworkId:
    """The network whose log calls itself by this origin."""
    if not origin.startswith(ORIGIN_PREFIX):
        raise RemoteError("tree_head.origin", f"is {origin}, expected {ORIGIN_PREFIX} and a network's name")
    return NetworkId(origin.removeprefix(ORIGIN_PREFIX))


def sign_tree_head(head: TreeHead, key: Ed25519PrivateKey) -> bytes:
    """The signed note. Two signed heads of different histories are lasting proof against the log."""
    return SignedNote(head.text, (sign_note(head.text, head.origin, key),)).encode()


def cosign_tree_head(raw: bytes, name: str, key: Ed25519PrivateKey, *, time_s: int) -> bytes:
    """The note with one more line. A witness opens the head and checks its consistency before it calls this."""
    note = SignedNote.parse(raw)
    cosignature = cosign_note(TreeHead.parse(note.text).text, name, key, time_s=time_s)
    return SignedNote(note.text, (*note.signatures, cosignature)).encode()


def open_tree_head(raw: bytes, trusted: Collection[VerifierKey]) -> TreeHead:
    """The head, if a trusted key of the log that it names signed it; else RemoteError."""
    head, _ = open_cosigned_tree_head(raw, trusted)
    return head


def open_cosigned_tree_head(raw: bytes, trusted: Collection[VerifierKey]) -> tuple[TreeHead, tuple[Cosignature, ...]]:
    """The head, and the trusted witnesses that cosigned it, each once, with the latest time."""
    note = SignedNote.parse(raw)
    signed = note.verify_signatures(trusted)
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
