"""Signed notes (c2sp.org/signed-note): a text, an empty line, then one line per signature. Ed25519 only.

What a text says is not known here; see treehead.py. Signing is deterministic, so a private key is all it needs.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prime_protocol.constants import (
    COSIGNATURE_TIME_S_MAX,
    ED25519_KEY_BYTES,
    ED25519_SIGNATURE_BYTES,
    KEY_ID_BYTES,
    KEY_NAME_BYTES_MAX,
    NOTE_BYTES_MAX,
    NOTE_SIGNATURES_MAX,
)
from prime_protocol.errors import RemoteError

DASH = "\u2014 "
TIME_BYTES = 8
CONTROL = re.compile(r"[\x00-\x1f]")
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
        check_name("verifier_key.name", self.name)
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


class Signed(NamedTuple):
    """A verified signature: whose, and for a cosignature when."""

    key: VerifierKey
    time_s: int | None


@dataclass(frozen=True, slots=True)
class Note:
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
        if CONTROL.search(whole.replace("\n", "")):
            raise RemoteError("note", "has a control character")
        # The last empty line parts text and signatures: the text may hold empty lines of its own.
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

    def signed_by(self, trusted: Iterable[VerifierKey]) -> list[Signed]:
        """Every trusted key that signed. Unknown keys are passed over; a trusted key's bad signature is an error."""
        keys, signed = list(trusted), []
        for number, line in enumerate(self.signatures):
            named = [key for key in keys if key.name == line.name and key.key_id == line.key_id]
            # Key ids are short: two trusted keys may share one, and then either may have signed.
            found = [one for key in named if (one := _verify(key, self.text, line.signature))]
            if named and not found:
                raise RemoteError(f"note.signatures[{number}]", f"is not a valid signature of {line.name}")
            signed += found
        return signed


def sign_text(text: str, name: str, key: Ed25519PrivateKey) -> NoteSignature:
    verifier = VerifierKey.of(name, key)
    return NoteSignature(name, verifier.key_id, key.sign(text.encode()))


def cosign_text(text: str, name: str, key: Ed25519PrivateKey, *, time_s: int) -> NoteSignature:
    assert 0 <= time_s <= COSIGNATURE_TIME_S_MAX
    verifier = VerifierKey.of(name, key, SignatureKind.COSIGNATURE)
    signature = key.sign(cosigned_message(text, time_s))
    return NoteSignature(name, verifier.key_id, time_s.to_bytes(TIME_BYTES, "big") + signature)


def cosigned_message(text: str, time_s: int) -> bytes:
    """The heading keeps a cosignature from ever passing as a log's own signature."""
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def _verify(key: VerifierKey, text: str, signature: bytes) -> Signed | None:
    time_s, message = None, text.encode()
    if key.kind is SignatureKind.COSIGNATURE:
        time_s = int.from_bytes(signature[:TIME_BYTES], "big")
        message, signature = cosigned_message(text, time_s), signature[TIME_BYTES:]
        if time_s > COSIGNATURE_TIME_S_MAX:
            return None
    if len(signature) != ED25519_SIGNATURE_BYTES:
        return None
    try:
        Ed25519PublicKey.from_public_bytes(key.public_key).verify(signature, message)
    except InvalidSignature:
        return None
    return Signed(key, time_s)


def _parse_signature(number: int, line: str) -> NoteSignature:
    where = f"note.signatures[{number}]"
    name, space, encoded = line.removeprefix(DASH).partition(" ")
    if not line.startswith(DASH) or not space:
        raise RemoteError(where, "must be an em dash, a name and a signature, parted by single spaces")
    check_name(f"{where}.name", name)
    raw = decode_base64(where, encoded)
    if len(raw) <= KEY_ID_BYTES:
        raise RemoteError(where, f"is {len(raw)} bytes, expected more than {KEY_ID_BYTES}")
    return NoteSignature(name, raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES:])


def check_name(where: str, name: str) -> None:
    """A key name: not empty, not too long, and without spaces, plus signs or control characters."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise RemoteError(where, "is not valid Unicode") from None
    if not 0 < length <= KEY_NAME_BYTES_MAX:
        raise RemoteError(where, f"is {length} bytes, expected 1 to {KEY_NAME_BYTES_MAX}")
    if "+" in name or CONTROL.search(name) or any(letter.isspace() for letter in name):
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
