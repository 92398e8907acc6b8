"""A public randomness chain in drand's format: its description, the times of its rounds, and the one verifier.

A round's signature is unknown until the holders of the chain's key publish it, and no holder can choose it, because a
BLS signature is unique. The League of Entropy's quicknet and a network's own chain have the same form. They differ in
who can predict a round: for quicknet only a threshold of its members together, for an own chain its operator.

Pure. Fetching rounds and keeping the secret of an own chain belong to the coordinator.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from typing import Annotated, Any

from prime_protocol.constants import (
    RANDOMNESS_KEY_BYTES,
    RANDOMNESS_PERIOD_S_MAX,
    RANDOMNESS_SECRET_BYTES,
    RANDOMNESS_SIGNATURE_BYTES,
)
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId

SCHEME = "bls-unchained-g1-rfc9380"
"""drand's name for: signatures on G1, public key on G2, the message is the round's number alone."""
HASH_TO_CURVE_DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
OWN_BEACON_PREFIX = "own/"
"""Beacon ids of chains that a network's operator runs begin with this."""

RoundSignature = Annotated[bytes, Size(RANDOMNESS_SIGNATURE_BYTES, RANDOMNESS_SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomnessChain:
    """What drand's `info` document says of a chain."""

    public_key: Annotated[bytes, Size(RANDOMNESS_KEY_BYTES, RANDOMNESS_KEY_BYTES)]
    scheme: Annotated[str, Size(1, 64)] = SCHEME
    genesis_s: Uint
    """Unix time of round 1, in seconds."""
    period_s: Annotated[int, Range(1, RANDOMNESS_PERIOD_S_MAX)]
    group_hash: Digest
    """drand's `groupHash`: the digest of the group that made the key."""
    beacon_id: Annotated[str, Size(1, 64)]

    def __post_init__(self) -> None:
        if self.scheme != SCHEME:
            raise RemoteError("randomness.scheme", f"is {self.scheme}, the one supported is {SCHEME}")

    def compute_hash(self) -> Digest:
        """The chain hash, which is the chain's name in drand's HTTP paths."""
        times = self.period_s.to_bytes(4, "big") + self.genesis_s.to_bytes(8, "big")
        suffix = b"" if self.beacon_id == "default" else self.beacon_id.encode()
        return Digest(sha256(times + self.public_key + self.group_hash + suffix).digest())

    def round_time_ms(self, number: int) -> int:
        """When the round is published."""
        assert number >= 1
        return 1000 * (self.genesis_s + self.period_s * (number - 1))

    def first_round_from(self, at_ms: int) -> int:
        """The first round that is published at this time or later."""
        passed_ms = at_ms - 1000 * self.genesis_s
        return max(1, 1 - (-passed_ms // (1000 * self.period_s)))

    @property
    def is_own(self) -> bool:
        """Whether the chain says of itself that the network's operator runs it."""
        return self.beacon_id.startswith(OWN_BEACON_PREFIX)

    def describe(self) -> str:
        """Which chain it is and who can predict it."""
        if self == QUICKNET:
            return "drand quicknet (League of Entropy); a round is predictable only by a threshold of its members"
        if self.is_own:
            return "the operator's own chain; the operator can predict every round"
        return f"chain {self.compute_hash().hex()[:16]}; the holders of its key can predict every round"


QUICKNET = RandomnessChain(
    public_key=bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
        "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
    ),
    genesis_s=1692803367,
    period_s=3,
    group_hash=Digest(bytes.fromhex("f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e")),
    beacon_id="quicknet",
)
"""The League of Entropy's chain with a round every three seconds."""


@lru_cache(maxsize=4096)
def verify_round(chain: RandomnessChain, number: int, signature: bytes) -> Digest:
    """The randomness of a round; RemoteError where the signature is not the chain's for this round.

    Two pairings take about 4 ms. The cache saves them where one process fetches, appends and replays the same round.
    """
    bls = load_bls()
    try:
        point = bls.G1Point.from_compressed_bytes(signature)
    except ValueError:
        raise RemoteError("signature", "is no point of the curve") from None
    # The library accepts several encodings of the point at infinity; a unique signature must have one encoding.
    if point.to_compressed_bytes() != signature or point == bls.G1Point.identity():
        raise RemoteError("signature", "is no point of the curve in its one encoding")
    key = parse_public_key(chain.public_key)
    if not bls.GT.pairing_check([point, -_hash_round(number)], [bls.G2Point(), key]):
        raise RemoteError("signature", f"is not the chain's signature of round {number}")
    return Digest(sha256(signature).digest())


def make_own_chain(secret: bytes, network: NetworkId, *, genesis_s: int, period_s: int) -> RandomnessChain:
    """The chain of a secret that one party holds."""
    public_key = (load_bls().G2Point() * _to_scalar(secret)).to_compressed_bytes()
    return RandomnessChain(
        public_key=public_key,
        genesis_s=genesis_s,
        period_s=period_s,
        group_hash=Digest(sha256(public_key).digest()),
        beacon_id=(OWN_BEACON_PREFIX + network)[:64],
    )


def sign_round(secret: bytes, number: int) -> bytes:
    """The signature of a round of an own chain."""
    signature: bytes = (_hash_round(number) * _to_scalar(secret)).to_compressed_bytes()
    return signature


@cache
def load_bls() -> Any:
    """The pairing library. It is loaded at the first use, because few commands need it."""
    import py_arkworks_bls12381

    return py_arkworks_bls12381


@lru_cache(maxsize=16)
def parse_public_key(raw: bytes) -> Any:
    """The point on G2; RemoteError where the bytes are none."""
    bls = load_bls()
    try:
        point = bls.G2Point.from_compressed_bytes(raw)
    except ValueError:
        raise RemoteError("randomness.public_key", "is no point of the curve") from None
    if point.to_compressed_bytes() != raw or point == bls.G2Point.identity():
        raise RemoteError("randomness.public_key", "is no point of the curve in its one encoding")
    return point


def _hash_round(number: int) -> Any:
    message = sha256(number.to_bytes(8, "big")).digest()
    return load_bls().G1Point.hash_to_curve(message, HASH_TO_CURVE_DOMAIN)


def _to_scalar(secret: bytes) -> Any:
    assert len(secret) == RANDOMNESS_SECRET_BYTES
    return load_bls().Scalar.from_be_bytes_mod_order(secret)
