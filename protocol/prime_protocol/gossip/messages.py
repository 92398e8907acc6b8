"""What nodes tell each other without being asked: new weights, who serves them, which tree heads they were shown.

Each message is the body of a signed envelope, so it is worth the same whether it came over libp2p or from the
coordinator over HTTP. A topic carries one kind of one run. Whether a message is new, and may be said by its sender, is
decided by gossip_guard.py; how it travels is prime_runtime's work.

Gossip for nodes that libp2p does not reach: the same frames, handed in to the coordinator and asked for over HTTP.

The coordinator adds nothing to a frame and can forge none: its author's signature is what counts, here as in gossip.
What it does choose is which frames a node gets to see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated

from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    ENVELOPE_LIFE_MS_MAX,
    FRAME_BYTES_MAX,
    GOSSIP_FRAME_BYTES_MAX,
    GOSSIP_LIFE_MS_MIN,
    GOSSIP_MANIFESTS_MAX,
    GOSSIP_NOTE_BYTES_MAX,
    GOSSIP_PARENTS_MAX,
    GOSSIP_REPEAT_MS,
    GOSSIP_REPEATS,
    HEADS_PER_S,
    PEER_RECORD_BYTES_MAX,
    PEER_RECORDS_MAX,
    PROTOCOL_VERSION,
    RELAY_FRAMES_MAX,
    RELAY_WAIT_MS_MAX,
    SENT_BYTES_MAX,
    SERVING_PER_S,
    SHARD_BYTES_MAX,
    SHARDS_MAX,
    SLOTS_FREE_MAX,
    TREE_DEPTH_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.addresses import PeerAddress, ServerUrl
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.envelope import Payload, Uint, check_time, open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.rpc import Endpoint
from prime_protocol.wire.signing import WalletKey

Address = Annotated[str, Size(1, ADDRESS_CHARS_MAX)]


class GossipKind(StrEnum):
    """The envelope's kind of each message here."""

    ANNOUNCED = "gossip.announced"
    SERVING = "gossip.serving"
    HEAD_SEEN = "gossip.head-seen"
    PEER_RECORD = "gossip.peer-card"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAnnounced:
    """Trainer: these weights are out."""

    step: Step
    root: Digest
    """The checkpoint's, the same for a keyframe and a delta that lead to the same weights."""
    manifest: Digest
    """SHA-256 of the signed manifest's frame: what to ask a parent for first."""
    manifest_bytes: Annotated[int, Range(1, FRAME_BYTES_MAX)]
    kind: ManifestKind
    base: Digest | None
    """Root of the checkpoint that a delta is applied to; None for a keyframe."""
    transport_bytes: Annotated[int, Range(1, SHARDS_MAX * SHARD_BYTES_MAX)]
    """Size of all shards together."""

    def __post_init__(self) -> None:
        if (self.base is not None) != (self.kind is ManifestKind.DELTA):
            raise RemoteError("base", f"is {self.base} in a {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRecord:
    """Node: fetch from me. The sender of the envelope is the node."""

    urls: Annotated[tuple[Address, ...], Size(0, ADDRESSES_MAX)]
    """Where its shard server listens, best first; none: it serves nobody."""
    depth: Annotated[int, Range(0, TREE_DEPTH_MAX)]
    """Hops from the origin, which is 0."""
    slots_free: Annotated[int, Range(0, SLOTS_FREE_MAX)]
    """Uploads it could take on just now."""
    manifests: Annotated[tuple[Digest, ...], Size(0, GOSSIP_MANIFESTS_MAX)]
    """What it serves, newest first; one that is still arriving counts."""
    parents: Annotated[tuple[NodeId, ...], Size(0, GOSSIP_PARENTS_MAX)] = ()
    """Who gave it most of the newest, most first. Shown to people; nobody chooses by it."""
    sent_bytes: Annotated[int, Range(0, SENT_BYTES_MAX)] = 0
    """What it has passed on since it was started, by its own count."""

    def __post_init__(self) -> None:
        for index, url in enumerate(self.urls):
            try:
                ServerUrl.parse(url)
            except RemoteError as error:
                raise RemoteError(f"urls[{index}]", error.problem) from None
        _check_distinct("urls", self.urls)
        _check_distinct("manifests", self.manifests)
        _check_distinct("parents", self.parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSeen:
    """Node: this is the tree head I was shown. Two that tell different histories convict the log."""

    note: Annotated[bytes, Size(1, GOSSIP_NOTE_BYTES_MAX)]
    """The signed note, byte for byte. Its form is checked here; its signatures by whoever knows the log's key."""

    def __post_init__(self) -> None:
        try:
            TreeHead.parse(SignedNote.parse(self.note).text)
        except RemoteError as error:
            raise RemoteError("note", f"is no tree head: {error}") from None

    @property
    def head(self) -> TreeHead:
        """As claimed: nothing is verified."""
        return TreeHead.parse(SignedNote.parse(self.note).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """Node: dial me here. Passed on by others when asked for peers, so it names the key that must answer."""

    addresses: Annotated[tuple[Address, ...], Size(1, ADDRESSES_MAX)]
    """Of libp2p, best first. Each ends in the peer id of the sender's own key."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.addresses):
            try:
                PeerAddress.parse(address)
            except RemoteError as error:
                raise RemoteError(f"addresses[{index}]", error.problem) from None
        _check_distinct("addresses", self.addresses)

    @property
    def parsed(self) -> tuple[PeerAddress, ...]:
        return tuple(PeerAddress.parse(address) for address in self.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersRequest:
    """Asks a connected peer for others. Unsigned: the connection has proven who asks."""

    record: Annotated[bytes, Size(0, PEER_RECORD_BYTES_MAX)]
    """Frame of the asker's own peer card; empty where it cannot be dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReply:
    """The answer to PeersWanted."""

    records: Annotated[tuple[Annotated[bytes, Size(1, PEER_RECORD_BYTES_MAX)], ...], Size(0, PEER_RECORDS_MAX)]
    """Frames of peer cards that are still alive, the answerer's own among them where it can be dialled."""


GossipMessage = CheckpointAnnounced | ServingRecord | HeadSeen | PeerRecord

MESSAGE_TYPES: dict[GossipKind, type[GossipMessage]] = {
    GossipKind.ANNOUNCED: CheckpointAnnounced,
    GossipKind.SERVING: ServingRecord,
    GossipKind.HEAD_SEEN: HeadSeen,
    GossipKind.PEER_RECORD: PeerRecord,
}
MESSAGE_KINDS: dict[type[GossipMessage], GossipKind] = {message: kind for kind, message in MESSAGE_TYPES.items()}
TOPIC_KINDS = (GossipKind.ANNOUNCED, GossipKind.SERVING, GossipKind.HEAD_SEEN)
"""What is gossiped. A peer card is handed out on request only."""


@dataclass(frozen=True, slots=True)
class ReceivedGossip:
    """A message whose envelope was opened."""

    payload: Payload
    message: GossipMessage
    digest: Digest
    """SHA-256 of the frame."""
    frame: bytes
    """As it came, to be passed on."""

    @property
    def kind(self) -> GossipKind:
        return MESSAGE_KINDS[type(self.message)]


def get_topic(network: NetworkId, run: RunId, kind: GossipKind) -> str:
    """The name of the GossipSub topic that carries one kind of one run."""
    return f"/prime/{network}/{run}/{kind}"


def compute_repeat_ms(kind: GossipKind, known_nodes: int) -> int:
    """How long a node waits before it says the same again, so that all of them together stay in the budget."""
    per_s = {GossipKind.SERVING: SERVING_PER_S, GossipKind.HEAD_SEEN: HEADS_PER_S}.get(kind)
    spread_ms = known_nodes * 1000 // per_s if per_s else 0
    return max(GOSSIP_REPEAT_MS, spread_ms)


def compute_life_ms(kind: GossipKind, known_nodes: int) -> int:
    """How long an envelope of this kind counts: two repetitions may get lost, and cards pass through many hands."""
    if kind is GossipKind.PEER_RECORD:
        return ENVELOPE_LIFE_MS_MAX
    return min(ENVELOPE_LIFE_MS_MAX, max(GOSSIP_LIFE_MS_MIN, GOSSIP_REPEATS * compute_repeat_ms(kind, known_nodes)))


def seal_gossip(
    key: WalletKey,
    message: GossipMessage,
    *,
    network: NetworkId,
    run: RunId | None,
    sequence: int,
    now_ms: int,
    known_nodes: int,
) -> bytes:
    """The frame of one message. A peer card belongs to no run."""
    kind = MESSAGE_KINDS[type(message)]
    frame = seal_envelope(
        key,
        kind=kind,
        body=encode(message),
        network=network,
        run=run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=compute_life_ms(kind, known_nodes),
    )
    assert len(frame) <= GOSSIP_FRAME_BYTES_MAX, f"a {kind} of {len(frame)} bytes"
    return frame


def open_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId, now_ms: int) -> ReceivedGossip:
    """The message of a frame that came on a topic, or RemoteError. Whether it is new is for the guard."""
    gossip = decode_gossip(topic_name, frame, network=network, run=run)
    check_time(gossip.payload, now_ms)
    return gossip


def open_peer_record(frame: bytes, *, network: NetworkId, now_ms: int) -> ReceivedGossip:
    """A peer card, or RemoteError. Every address in it names the sender's own key."""
    gossip = _decode_frame(frame, network, (GossipKind.PEER_RECORD,))
    check_time(gossip.payload, now_ms)
    if gossip.payload.run is not None:
        raise RemoteError("Payload.run", f"is {gossip.payload.run} in a peer card, which belongs to no run")
    assert isinstance(gossip.message, PeerRecord)
    for index, address in enumerate(gossip.message.parsed):
        if address.node != gossip.payload.sender:
            raise RemoteError(f"PeerRecord.addresses[{index}]", f"is of {address.node}, the sender is not")
    return gossip


def decode_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId) -> ReceivedGossip:
    """As `open_gossip`, at any time: for the guard, which treats what came late unlike what is forged."""
    gossip = _decode_frame(frame, network, TOPIC_KINDS)
    if gossip.payload.run != run:
        raise RemoteError("Payload.run", f"is {gossip.payload.run}, this is about {run}")
    if get_topic(network, run, gossip.kind) != topic_name:
        raise RemoteError("Payload.kind", f"is {gossip.kind}, which is not what this topic carries")
    return gossip


def _decode_frame(frame: bytes, network: NetworkId, kinds: Sequence[GossipKind]) -> ReceivedGossip:
    if len(frame) > GOSSIP_FRAME_BYTES_MAX:
        raise RemoteError("envelope", f"is {len(frame)} bytes, the limit of gossip is {GOSSIP_FRAME_BYTES_MAX}")
    payload = open_envelope(frame, network=network).payload
    if payload.kind not in kinds:
        raise RemoteError("Payload.kind", f"is {payload.kind}, expected {' or '.join(kinds)}")
    try:
        message = decode(MESSAGE_TYPES[GossipKind(payload.kind)], payload.body)
    except RemoteError as error:
        if payload.version <= PROTOCOL_VERSION:
            raise
        raise RemoteError(
            "Payload.version", f"is {payload.version}, newer than ours, and so is the body: {error}"
        ) from None
    return ReceivedGossip(payload, message, Digest(sha256(frame).digest()), frame)


def _check_distinct(field: str, items: Sequence[object]) -> None:
    if len(set(items)) != len(items):
        raise RemoteError(field, "name the same twice")


GossipFrame = Annotated[bytes, Size(1, GOSSIP_FRAME_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPublish:
    """Node or trainer: let the others of this run have this frame."""

    frame: GossipFrame
    """The envelope of an Announced, Serving or HeadSeen, by whoever sealed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPublishReply:
    """What became of the frame. One that breaks the rules is refused instead."""

    is_new: bool
    reason: Annotated[str, Size(0, 200)]
    """Why it was not taken where it is not new: known, older than what is known, or too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPoll:
    """Node: what do the others say? The answer may wait until there is something."""

    seen: Uint
    """The cursor of the last answer; 0 at first."""
    wait_ms: Annotated[int, Range(0, RELAY_WAIT_MS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPollReply:
    """The answer: what is new since the cursor, and what a node needs to take part in gossip itself."""

    cursor: Uint
    trainer: NodeId
    """Whose announcements count in this run."""
    nodes: Uint
    """Nodes that serve in this run: how often each may say so depends on it."""
    peers: Annotated[tuple[Annotated[str, Size(1, ADDRESS_CHARS_MAX)], ...], Size(0, ADDRESSES_MAX)]
    """Where the coordinator itself can be dialled over libp2p; none: it does not gossip."""
    frames: Annotated[tuple[GossipFrame, ...], Size(0, RELAY_FRAMES_MAX)]
    """Announcements first, newest step first; then some of the serving records; then a few seen heads."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.peers):
            try:
                PeerAddress.parse(address)
            except RemoteError as error:
                raise RemoteError(f"peers[{index}]", error.problem) from None


RELAY_PUBLISH = Endpoint("share", RelayPublish, RelayPublishReply, is_idempotent=True)
RELAY_POLL = Endpoint("records", RelayPoll, RelayPollReply, is_idempotent=True)
