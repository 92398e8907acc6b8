"""How the parts of a statement become one digest, so that no two statements share their bytes.

Every hash of several fields outside the Merkle tree is made here. Signatures are in signing.py.
"""

from hashlib import sha256

from prime_protocol.ids import Digest

PREFIX = "prime-swarm/"


def hash_bytes(data: bytes) -> Digest:
    """SHA-256 of bytes that are one thing already. Its length needs no check, and it is called for every message."""
    return bytes.__new__(Digest, sha256(data).digest())


def frame_fields(domain: str, *fields: bytes) -> bytes:
    """The domain, then the fields, each behind its length as 4 bytes big-endian."""
    framed = bytearray()
    for field in (f"{PREFIX}{domain}".encode(), *fields):
        framed += len(field).to_bytes(4, "big") + field
    return bytes(framed)


def digest_fields(domain: str, *fields: bytes) -> Digest:
    """SHA-256 of the framed fields."""
    return hash_bytes(frame_fields(domain, *fields))
