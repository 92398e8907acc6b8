"""The gossip messages (new weights, which nodes serve them, tree heads seen, accusations), and their HTTP relay.

Each message is the body of a signed envelope, so libp2p and the coordinator's relay carry the same frames. A topic
carries one kind of message of one run. The relay is for nodes that libp2p does not reach: the coordinator cannot change
or forge a frame, because its author signed it; it can only withhold frames. Whether a message is new and its sender may
send it is decided in guard.py. Transports are in prime_runtime.gossip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated

from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    BOOTSTRAP_PEERS_MAX,
    GOSSIP_FRAME_BYTES_MAX,
    GOSSIP_LIFE_MS,
    GOSSIP_MANIFESTS_MAX,
    GOSSIP_NOTE_BYTES_MAX,
    GOSSIP_PARENTS_MAX,
    GOSSIP_REPEAT_MS,
    HEAD_REPEAT_MS,
    MANIFEST_BYTES_MAX,
    PEER_RECORD_BYTES_MAX,
    PEER_RECORDS_MAX,
    PROTOCOL_VERSION,
    RECENT_FRAMES_MAX,
    RELAY_FRAMES_MAX,
    RELAY_WAIT_MS_MAX,
    RELAYED_HEADS_PER_S,
    RELAYED_SERVING_PER_S,
    SENT_BYTES_MAX,
    SHARD_BYTES_MAX,
    SHARDS_MAX,
    SLOTS_FREE_MAX,
    TREE_DEPTH_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.ledger.versions.upgrades import OLD_FORMS, make_shorter_form
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
    ACCUSATION = "gossip.accusation"
    PEER_RECORD = "gossip.peer-record"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAnnounced:
    """Trainer: these weights are out."""

    step: Step
    root: Digest
    """The checkpoint's, the same for a keyframe and a delta that lead to the same weights."""
    manifest: Digest
    """SHA-256 of the signed manifest's frame: what to ask a parent for first."""
    manifest_bytes: Annotated[int, Range(1, MANIFEST_BYTES_MAX)]
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
    """Where its shard server listens, best first; empty if it does not serve."""
    depth: Annotated[int, Range(0, TREE_DEPTH_MAX)]
    """Hops from the origin, which is 0."""
    slots_free: Annotated[int, Range(0, SLOTS_FREE_MAX)]
    """Free upload slots at the moment."""
    manifests: Annotated[tuple[Digest, ...], Size(0, GOSSIP_MANIFESTS_MAX)]
    """What it serves, newest first; one that is still arriving counts."""
    parents: Annotated[tuple[NodeId, ...], Size(0, GOSSIP_PARENTS_MAX)] = ()
    """The parents that sent it most of the newest manifest, most first. For people; no decision depends on it."""
    sent_bytes: Annotated[int, Range(0, SENT_BYTES_MAX)] = 0
    """Bytes it has served since its start, by its own count."""

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
    """Node: the tree head that I was shown. Two heads with different histories prove that the log forked."""

    note: Annotated[bytes, Size(1, GOSSIP_NOTE_BYTES_MAX)]
    """The signed note, byte for byte. Its form is checked here; a reader with the log's key verifies the signatures."""

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
    """Node: dial me here. Other nodes pass it on when asked for peers, so it names the key that must answer."""

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
    """Asks a connected peer for others. Unsigned: the connection has authenticated the peer."""

    record: Annotated[bytes, Size(0, PEER_RECORD_BYTES_MAX)]
    """Frame of the requester's own peer record; empty if it cannot be dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReply:
    """The answer to PeersRequest."""

    records: Annotated[tuple[Annotated[bytes, Size(1, PEER_RECORD_BYTES_MAX)], ...], Size(0, PEER_RECORDS_MAX)]
    """Frames of peer records that have not expired, including the sender's own if it can be dialled."""


GossipMessage = CheckpointAnnounced | ServingRecord | HeadSeen | Accusation | PeerRecord

MESSAGE_TYPES: dict[GossipKind, type[GossipMessage]] = {
    GossipKind.ANNOUNCED: CheckpointAnnounced,
    GossipKind.SERVING: ServingRecord,
    GossipKind.HEAD_SEEN: HeadSeen,
    GossipKind.ACCUSATION: Accusation,
    GossipKind.PEER_RECORD: PeerRecord,
}
MESSAGE_KINDS: dict[type[GossipMessage], GossipKind] = {message: kind for kind, message in MESSAGE_TYPES.items()}
TOPIC_KINDS = (GossipKind.ANNOUNCED, GossipKind.SERVING, GossipKind.HEAD_SEEN, GossipKind.ACCUSATION)
"""Kinds that are gossiped. A peer record is sent on request only."""


@dataclass(frozen=True, slots=True)
class ReceivedGossip:
    """A message whose envelope was opened."""

    payload: Payload
    message: GossipMessage
    digest: Digest
    """SHA-256 of the frame."""
    frame: bytes
    """As received, to be forwarded."""

    @property
    def kind(self) -> GossipKind:
        return MESSAGE_KINDS[type(self.message)]


def get_topic(network: NetworkId, run: RunId, kind: GossipKind) -> str:
    """The name of the GossipSub topic that carries one kind of one run."""
    return f"/prime/{network}/{run}/{kind}"


def get_frame_kind(frame: bytes, network: NetworkId) -> GossipKind:
    """The kind that a frame claims, by which the guard validates it. RemoteError: it is not gossiped."""
    kind = open_envelope(frame, network=network).payload.kind
    if kind not in TOPIC_KINDS:
        raise RemoteError("frame", f"is a {kind}; shared are {', '.join(TOPIC_KINDS)}")
    return GossipKind(kind)


def compute_repeat_ms(kind: GossipKind, known_nodes: int) -> int:
    """How long a node waits before it repeats a message. The coordinator's relay gets every repetition; gossip gets the
    share that budget.py draws."""
    if kind is GossipKind.SERVING:
        return max(GOSSIP_REPEAT_MS, known_nodes * 1000 // RELAYED_SERVING_PER_S)
    if kind is GossipKind.HEAD_SEEN:
        return max(HEAD_REPEAT_MS, known_nodes * 1000 // RELAYED_HEADS_PER_S)
    return GOSSIP_REPEAT_MS


def seal_gossip(
    key: WalletKey,
    message: GossipMessage,
    *,
    network: NetworkId,
    run: RunId | None,
    sequence: int,
    now_ms: int,
) -> bytes:
    """The frame of one message. A peer record belongs to no run."""
    kind = MESSAGE_KINDS[type(message)]
    frame = seal_envelope(
        key,
        kind=kind,
        body=encode(message),
        network=network,
        run=run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=GOSSIP_LIFE_MS,
    )
    assert len(frame) <= GOSSIP_FRAME_BYTES_MAX, f"a {kind} of {len(frame)} bytes"
    return frame


def open_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId, now_ms: int) -> ReceivedGossip:
    """The message of a frame from a topic, or RemoteError. The guard decides whether it is new."""
    gossip = decode_gossip(topic_name, frame, network=network, run=run)
    check_time(gossip.payload, now_ms)
    return gossip


def open_peer_record(frame: bytes, *, network: NetworkId, now_ms: int) -> ReceivedGossip:
    """A peer record, or RemoteError. Every address in it names the sender's own key."""
    gossip = _decode_frame(frame, network, (GossipKind.PEER_RECORD,))
    check_time(gossip.payload, now_ms)
    if gossip.payload.run is not None:
        raise RemoteError("Payload.run", f"is {gossip.payload.run} in a peer record, which belongs to no run")
    assert isinstance(gossip.message, PeerRecord)
    for index, address in enumerate(gossip.message.parsed):
        if address.node != gossip.payload.sender:
            raise RemoteError(f"PeerRecord.addresses[{index}]", f"is of {address.node}, the sender is not")
    return gossip


def decode_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId) -> ReceivedGossip:
    """As `open_gossip`, without the check of time: the guard treats a late message unlike a forged one."""
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
class RecentRequest:
    """Node to a peer over libp2p: I join this run; what is going on in it?"""

    run: RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentReply:
    """The newest messages that the peer has accepted, announcements first. Each is worth its author's signature."""

    frames: Annotated[tuple[GossipFrame, ...], Size(0, RECENT_FRAMES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPublish:
    """Node or trainer: forward this frame to the other nodes of the run."""

    frame: GossipFrame
    """The envelope of a message of TOPIC_KINDS; the sender need not be its author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPublishReply:
    """Whether the frame was new. One that breaks the rules gets a refusal instead."""

    is_new: bool
    reason: Annotated[str, Size(0, 200)]
    """Why it was ignored: known, older than what is known, or too many. Empty if it was new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPoll:
    """Node: send me the gossip of others. The answer may wait until there is some."""

    seen: Uint
    """The cursor of the last answer; 0 at first."""
    wait_ms: Annotated[int, Range(0, RELAY_WAIT_MS_MAX)]
    wants_peers: bool
    """Whether the answer names peers to dial over libp2p."""
    record: Annotated[bytes, Size(0, PEER_RECORD_BYTES_MAX)]
    """The frame of the asker's own peer record, which the coordinator gives to others; empty if it cannot be dialled,
    or did not change since the last poll."""


OLD_FORMS[RelayPoll] = (make_shorter_form(RelayPoll, 2, {"wants_peers": False, "record": b""}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPollReply:
    """The answer: frames that are new since the cursor, and what a node needs to join gossip itself."""

    cursor: Uint
    trainer: NodeId
    """Whose announcements count in this run."""
    nodes: Uint
    """Number of nodes that serve in this run; the repeat interval of a serving record depends on it."""
    peers: Annotated[tuple[Annotated[str, Size(1, ADDRESS_CHARS_MAX)], ...], Size(0, BOOTSTRAP_PEERS_MAX)]
    """Where to start in libp2p, if it was asked for: the coordinator's own addresses, if it gossips, and one address
    each of some nodes of the run. The others are hearsay until the peer proves its key."""
    frames: Annotated[tuple[GossipFrame, ...], Size(0, RELAY_FRAMES_MAX)]
    """Announcements first, newest step first; then some of the serving records; then a few seen heads and
    accusations."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.peers):
            try:
                PeerAddress.parse(address)
            except RemoteError as error:
                raise RemoteError(f"peers[{index}]", error.problem) from None


RELAY_PUBLISH = Endpoint("relay-publish", RelayPublish, RelayPublishReply, is_idempotent=True)
RELAY_POLL = Endpoint("relay-poll", RelayPoll, RelayPollReply, is_idempotent=True)
