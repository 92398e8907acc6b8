"""The two operations on secp256k1 that a busy server does thousands of times a second, straight from the C library.

coincurve's own classes make half a dozen objects for each signature, a tenth of its cost; everything rarer goes through
them. Each call has memory of its own: cffi lets other threads run meanwhile. Which bytes are a signature is decided in
signing.py.
"""

from typing import Any

from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]  # a compiled module without stubs
from coincurve.context import GLOBAL_CONTEXT

CONTEXT: Any = GLOBAL_CONTEXT.ctx
RECOVERABLE = ffi.typeof("secp256k1_ecdsa_recoverable_signature *")
PUBLIC_KEY = ffi.typeof("secp256k1_pubkey *")
COMPACT = ffi.typeof("unsigned char[64]")
UNCOMPRESSED = ffi.typeof("unsigned char[65]")
LENGTH = ffi.typeof("size_t *")
NUMBER = ffi.typeof("int *")


def sign_recoverable(secret: bytes, digest: bytes) -> tuple[bytes, int]:
    """r || s and the recovery number, deterministic (RFC 6979). The secret is one that a PrivateKey was made of."""
    assert len(secret) == len(digest) == 32
    made, compact, number = ffi.new(RECOVERABLE), ffi.new(COMPACT), ffi.new(NUMBER)
    done = lib.secp256k1_ecdsa_sign_recoverable(CONTEXT, made, digest, secret, ffi.NULL, ffi.NULL)
    assert done, "a valid key signs every digest"
    lib.secp256k1_ecdsa_recoverable_signature_serialize_compact(CONTEXT, compact, number, made)
    return bytes(ffi.buffer(compact)), number[0]


def recover_key(compact: bytes, number: int, digest: bytes) -> bytes | None:
    """The 64 bytes of the public key that signed; None where no key did."""
    assert len(compact) == 64
    assert len(digest) == 32
    signature, key = ffi.new(RECOVERABLE), ffi.new(PUBLIC_KEY)
    if not lib.secp256k1_ecdsa_recoverable_signature_parse_compact(CONTEXT, signature, compact, number):
        return None
    if not lib.secp256k1_ecdsa_recover(CONTEXT, key, signature, digest):
        return None
    raw = ffi.new(UNCOMPRESSED)
    lib.secp256k1_ec_pubkey_serialize(CONTEXT, raw, ffi.new(LENGTH, 65), key, lib.SECP256K1_EC_UNCOMPRESSED)
    return bytes(ffi.buffer(raw)[1:])
