"""Wallet keys and recoverable signatures. One secp256k1 key is a node's address, its signature and its libp2p identity.

Signatures are 65 bytes, r || s || v with v 27 or 28 and s in the lower half: the form that an Ethereum contract
recovers, and the only accepted form of each. What is signed is decided in envelope.py and typed_data.py.

A busy server signs and recovers thousands of times a second, so these two operations call the C library directly:
coincurve's own classes create half a dozen objects for each signature, a tenth of its cost. Everything else uses them.
Each call has its own memory, because cffi lets other threads run meanwhile.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import sha3
from coincurve import PrivateKey, PublicKey
from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]  # a compiled module without stubs
from coincurve.context import GLOBAL_CONTEXT

from prime_protocol.constants import SIGNATURE_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, FixedBytes, NodeId

CURVE_CONTEXT: Any = GLOBAL_CONTEXT.ctx
RECOVERABLE_SIGNATURE_TYPE = ffi.typeof("secp256k1_ecdsa_recoverable_signature *")
PUBLIC_KEY_TYPE = ffi.typeof("secp256k1_pubkey *")
COMPACT_TYPE = ffi.typeof("unsigned char[64]")
UNCOMPRESSED_KEY_TYPE = ffi.typeof("unsigned char[65]")
LENGTH_TYPE = ffi.typeof("size_t *")
NUMBER_TYPE = ffi.typeof("int *")


def sign_recoverable(secret: bytes, digest: bytes) -> tuple[bytes, int]:
    """r || s and the recovery number, deterministic (RFC 6979). The secret is one that a PrivateKey was made of."""
    assert len(secret) == len(digest) == 32
    made, compact, number = ffi.new(RECOVERABLE_SIGNATURE_TYPE), ffi.new(COMPACT_TYPE), ffi.new(NUMBER_TYPE)
    done = lib.secp256k1_ecdsa_sign_recoverable(CURVE_CONTEXT, made, digest, secret, ffi.NULL, ffi.NULL)
    assert done, "a valid key signs every digest"
    lib.secp256k1_ecdsa_recoverable_signature_serialize_compact(CURVE_CONTEXT, compact, number, made)
    return bytes(ffi.buffer(compact)), number[0]


def recover_public_key(compact: bytes, number: int, digest: bytes) -> bytes | None:
    """The 64 bytes of the public key that signed; None if the signature is not one of any key."""
    assert len(compact) == 64
    assert len(digest) == 32
    signature, key = ffi.new(RECOVERABLE_SIGNATURE_TYPE), ffi.new(PUBLIC_KEY_TYPE)
    if not lib.secp256k1_ecdsa_recoverable_signature_parse_compact(CURVE_CONTEXT, signature, compact, number):
        return None
    if not lib.secp256k1_ecdsa_recover(CURVE_CONTEXT, key, signature, digest):
        return None
    raw = ffi.new(UNCOMPRESSED_KEY_TYPE)
    lib.secp256k1_ec_pubkey_serialize(CURVE_CONTEXT, raw, ffi.new(LENGTH_TYPE, 65), key, lib.SECP256K1_EC_UNCOMPRESSED)
    return bytes(ffi.buffer(raw)[1:])


HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
S_MAX = HALF_ORDER.to_bytes(32, "big")
V_OFFSET = 27
V_BYTES = (b"\x1b", b"\x1c")
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# Identity multihash (0x00) of 37 bytes: protobuf key type 2 (secp256k1), then 33 bytes of compressed key.
PEER_ID_PREFIX = bytes.fromhex("002508021221")


class Signature(FixedBytes):
    """r || s || v."""

    __slots__ = ()
    SIZE = SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class WalletKey:
    """A private key. It prints as its address."""

    node: NodeId
    _private: PrivateKey = field(repr=False, compare=False)

    @classmethod
    def from_secret(cls, secret: bytes) -> Self:
        """From 32 secret bytes, as drawn from the system's randomness or read from a keystore."""
        if len(secret) != 32:
            raise LocalError(f"a private key is 32 bytes, this one has {len(secret)}")
        try:
            private = PrivateKey(secret)
        except ValueError:
            raise LocalError("these 32 bytes are not a valid secp256k1 private key; draw new ones") from None
        return cls(_compute_address(_encode_public_key(private.public_key)), private)

    def secret(self) -> bytes:
        """The 32 secret bytes. For the keystore and libp2p only."""
        return self._private.secret

    def sign(self, digest: Digest) -> Signature:
        """Deterministic (RFC 6979), so the same key and digest give the same bytes."""
        compact, number = sign_recoverable(self._private.secret, digest)
        return Signature(compact + V_BYTES[number])

    def peer_id(self) -> str:
        """The libp2p peer id of the same key."""
        return compute_peer_id(self._private.public_key.format(compressed=True))


def recover_signer(digest: Digest, signature: Signature) -> NodeId:
    """The address whose key made this signature; any 65 bytes that are not one honest signature are refused."""
    number = signature[64] - V_OFFSET
    if number not in (0, 1):
        raise RemoteError("signature", f"ends in {signature[64]}, expected 27 or 28")
    if signature[32:64] > S_MAX:
        raise RemoteError("signature", "has s in the upper half")
    key = recover_public_key(signature[:64], number, digest)
    if key is None:
        raise RemoteError("signature", "fits no key")
    return _compute_address(key)


def compute_peer_id(compressed_key: bytes) -> str:
    """libp2p peer id (base58 text) of a 33-byte compressed public key."""
    number = int.from_bytes(PEER_ID_PREFIX + compressed_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = BASE58[digit] + digits
    return "1" + digits  # the leading zero byte of the multihash


def compute_peer_address(peer: str) -> NodeId:
    """The address of a libp2p peer id. The id contains the public key, so no registry is needed."""
    number = 0
    if not 50 <= len(peer) <= 56:
        raise RemoteError("peer_id", f"has {len(peer)} characters, expected about 53")
    for digit in peer:
        if digit not in BASE58:
            raise RemoteError("peer_id", "is not base58")
        number = number * 58 + BASE58.index(digit)
    raw = number.to_bytes(42, "big")
    key = raw[-33:]
    if raw[:-33] != b"\x00\x00\x00" + PEER_ID_PREFIX or compute_peer_id(key) != peer:
        raise RemoteError("peer_id", "does not hold a secp256k1 key")
    try:
        return _compute_address(_encode_public_key(PublicKey(key)))
    except ValueError:
        raise RemoteError("peer_id", "does not hold a point of the curve") from None


def keccak(data: bytes) -> Digest:
    """Keccak-256 as Ethereum uses it."""
    return Digest(sha3.keccak_256(data).digest())


def _encode_public_key(key: PublicKey) -> bytes:
    return key.format(compressed=False)[1:]


def _compute_address(key: bytes) -> NodeId:
    """Of the 64 bytes of a public key."""
    return NodeId(sha3.keccak_256(key).digest()[12:])
