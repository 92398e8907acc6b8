"""The signed envelope around every message that crosses a trust boundary, and the guard against replays.

A frame is a 65-byte signature followed by the canonical encoding of a Payload. The signature covers the SHA-256 of a
fixed prefix and the payload's bytes as sent, so nothing is encoded again to check it.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.constants import (
    CLOCK_SKEW_MS_MAX,
    ENVELOPE_LIFE_MS_MAX,
    FRAME_BYTES_MAX,
    KIND_CHARS_MAX,
    MANIFEST_BYTES_MAX,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    REPLAY_ENTRIES_MAX,
    REPLAY_SENDER_ENTRIES_MAX,
    SIGNATURE_BYTES,
)
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range, Size, decode, encode_flat
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, hash_bytes
from prime_protocol.wire.seen_messages import SeenMessages
from prime_protocol.wire.signing import Signature, WalletKey, recover_signer

ENVELOPE_PREFIX = b"prime-swarm envelope 1\n"

Uint = Annotated[int, Range(0, 2**63 - 1)]
"""A count, a number or a time. Half the range of msgpack, so that every language and database can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What is signed: who says what to which network, in which order, and until when."""

    version: Uint
    network: NetworkId
    run: RunId | None
    """The run it concerns; None where it concerns the network as a whole."""
    sender: NodeId
    sequence: Uint
    """Never used twice by one sender. Log entries of one sender stand in rising order."""
    issued_at_ms: Uint
    expires_at_ms: Uint
    kind: Annotated[str, Size(1, KIND_CHARS_MAX)]
    body: Annotated[bytes, Size(0, MANIFEST_BYTES_MAX)]
    """Canonical encoding of the message that `kind` names."""

    def __post_init__(self) -> None:
        life_ms = self.expires_at_ms - self.issued_at_ms
        if not 0 < life_ms <= ENVELOPE_LIFE_MS_MAX:
            raise RemoteError("expires_at_ms", f"is {life_ms} ms after issue, allowed is 1 to {ENVELOPE_LIFE_MS_MAX}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload whose signature was checked. There is no other way to make one than seal and open."""

    payload: Payload
    digest: Digest
    """SHA-256 of the frame: the name of this very envelope."""


def seal_envelope(
    key: WalletKey,
    *,
    kind: str,
    body: bytes,
    network: NetworkId,
    run: RunId | None,
    sequence: int,
    issued_at_ms: int,
    life_ms: int,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """The frame of one signed envelope. `version` selects the form of the body: see ledger/versions/upgrades.py."""
    assert 0 < life_ms <= ENVELOPE_LIFE_MS_MAX, f"an envelope lives 1 to {ENVELOPE_LIFE_MS_MAX} ms, not {life_ms}"
    # A Payload, without making one: a coordinator seals a reply to each of thousands of heartbeats a second.
    payload = encode_flat(
        {
            "body": body,
            "expires_at_ms": issued_at_ms + life_ms,
            "issued_at_ms": issued_at_ms,
            "kind": kind,
            "network": network,
            "run": run,
            "sender": key.node,
            "sequence": sequence,
            "version": version,
        }
    )
    return key.sign(_signed_digest(payload)) + payload


def open_envelope(
    frame: bytes,
    *,
    network: NetworkId,
    version_min: int = PROTOCOL_VERSION_MIN,
    bytes_max: int = FRAME_BYTES_MAX,
) -> Envelope:
    """Check form, audience and signature; the time is checked by `check_time`, repetition by the guard."""
    if not SIGNATURE_BYTES < len(frame) <= bytes_max:
        raise RemoteError("envelope", f"is {len(frame)} bytes, allowed is {SIGNATURE_BYTES + 1} to {bytes_max}")
    signature, raw = Signature(frame[:SIGNATURE_BYTES]), frame[SIGNATURE_BYTES:]
    payload = decode(Payload, raw, bytes_max=bytes_max)
    if payload.version < version_min:
        raise RemoteError("Payload.version", f"is {payload.version}, this run needs {version_min}: please upgrade")
    if payload.network != network:
        raise RemoteError("Payload.network", f"is {payload.network}, this is {network}")
    signer = recover_signer(_signed_digest(raw), signature)
    if signer != payload.sender:
        raise RemoteError("Payload.sender", f"is {payload.sender}, but {signer} signed")
    return Envelope(payload, hash_bytes(frame))


def check_time(payload: Payload, now_ms: int) -> None:
    """Refuse what is expired, or issued further in the future than clocks may differ."""
    if payload.expires_at_ms <= now_ms:
        late_ms = now_ms - payload.expires_at_ms
        raise RemoteError("Payload.expires_at_ms", f"is {late_ms} ms in the past; is the sender's clock right?")
    if payload.issued_at_ms > now_ms + CLOCK_SKEW_MS_MAX:
        early_ms = payload.issued_at_ms - now_ms
        raise RemoteError("Payload.issued_at_ms", f"is {early_ms} ms in the future; is the sender's clock right?")


class ReplayGuard:
    """Lets every (sender, sequence) pass once while its envelope is valid, in bounded memory, however the clock moves.

    It refuses what was issued before `since_ms`, since it cannot know whether a process before it let that through. A
    sender's clock may be ahead, so only the start of this process plus CLOCK_SKEW_MS_MAX leaves no gap at all.
    """

    def __init__(self, *, since_ms: int) -> None:
        self._since_ms = since_ms
        self._seen: SeenMessages[tuple[NodeId, int]] = SeenMessages()

    def admit(self, payload: Payload, now_ms: int) -> None:
        """Remember this payload, or refuse it. Call after the signature was checked."""
        check_time(payload, now_ms)
        self._seen.drop_expired(now_ms)
        issued_at_ms, expires_at_ms = payload.issued_at_ms, payload.expires_at_ms
        if issued_at_ms < self._since_ms:
            raise RemoteError("Payload.issued_at_ms", "is before this server started; seal and send again")
        if self._seen.may_be_forgotten(issued_at_ms=issued_at_ms, expires_at_ms=expires_at_ms):
            raise RemoteError("Payload.issued_at_ms", "is before this server's clock was set back; seal and send again")
        name = (payload.sender, payload.sequence)
        if name in self._seen:
            raise RemoteError("Payload.sequence", f"{payload.sequence} was used before by {payload.sender}")
        if self._seen.count_of_sender(payload.sender) >= REPLAY_SENDER_ENTRIES_MAX:
            raise RemoteError("Payload.sender", f"has {REPLAY_SENDER_ENTRIES_MAX} envelopes that still live; slow down")
        if len(self._seen) >= REPLAY_ENTRIES_MAX:
            raise RemoteError("Payload.sender", "comes while too many envelopes still live; try again later")
        self._seen.add(name, payload.sender, issued_at_ms=issued_at_ms, expires_at_ms=expires_at_ms)

    def __len__(self) -> int:
        return len(self._seen)


def _signed_digest(payload: bytes) -> Digest:
    return hash_bytes(ENVELOPE_PREFIX + payload)
