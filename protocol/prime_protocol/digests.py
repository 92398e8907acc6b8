"""How the parts of a statement become one digest, so that no two statements share their bytes.

Every hash of several fields outside the Merkle tree is made here. Signatures are in signing.py.
"""

from hashlib import sha256

from prime_protocol.ids import Digest

PREFIX = "prime-swarm/"


def frame_fields(domain: str, *fields: bytes) -> bytes:
    """The domain, then the fields, each behind its length as 4 bytes big-endian."""
    framed = bytearray()
    for field in (f"{PREFIX}{domain}".encode(), *fields):
        framed += len(field).to_bytes(4, "big") + field
    return bytes(framed)


def digest_fields(domain: str, *fields: bytes) -> Digest:
    """SHA-256 of the framed fields."""
    return Digest(sha256(frame_fields(domain, *fields)).digest())
