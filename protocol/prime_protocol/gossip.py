"""What nodes tell each other without being asked: new weights, who serves them, which tree heads they were shown.

Each message is the body of a signed envelope, so it is worth the same whether it came over libp2p or from the
coordinator over HTTP. A topic carries one kind of one run. Whether a message is new, and may be said by its sender, is
decided by gossip_guard.py; how it travels is prime_runtime's work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated

from prime_protocol.addresses import PeerAddress, ServerUrl
from prime_protocol.codec import Range, Size, decode, encode
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
    GOSSIP_REPEATS,
    HEADS_PER_S,
    PEER_CARD_BYTES_MAX,
    PEER_CARDS_MAX,
    PROTOCOL_VERSION,
    REPEAT_MS,
    SENT_BYTES_MAX,
    SERVING_PER_S,
    SHARD_BYTES_MAX,
    SHARDS_MAX,
    SLOTS_FREE_MAX,
    TREE_DEPTH_MAX,
)
from prime_protocol.envelope import Letter, check_time, open_envelope, seal
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.manifest import Kind
from prime_protocol.note import Note
from prime_protocol.signing import WalletKey
from prime_protocol.treehead import TreeHead

Address = Annotated[str, Size(1, ADDRESS_CHARS_MAX)]


class GossipKind(StrEnum):
    """The envelope's kind of each message here."""

    ANNOUNCED = "gossip.announced"
    SERVING = "gossip.serving"
    HEAD_SEEN = "gossip.head-seen"
    PEER_CARD = "gossip.peer-card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Trainer: these weights are out."""

    step: Step
    root: Digest
    """The checkpoint's, the same for a keyframe and a delta that lead to the same weights."""
    manifest: Digest
    """SHA-256 of the signed manifest's frame: what to ask a parent for first."""
    manifest_bytes: Annotated[int, Range(1, FRAME_BYTES_MAX)]
    kind: Kind
    base: Digest | None
    """Root of the checkpoint that a delta is applied to; None for a keyframe."""
    transport_bytes: Annotated[int, Range(1, SHARDS_MAX * SHARD_BYTES_MAX)]
    """Size of all shards together."""

    def __post_init__(self) -> None:
        if (self.base is not None) != (self.kind is Kind.DELTA):
            raise RemoteError("base", f"is {self.base} in a {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
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
            TreeHead.parse(Note.parse(self.note).text)
        except RemoteError as error:
            raise RemoteError("note", f"is no tree head: {error}") from None

    @property
    def head(self) -> TreeHead:
        """As claimed: nothing is verified."""
        return TreeHead.parse(Note.parse(self.note).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCard:
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
class PeersWanted:
    """Asks a connected peer for others. Unsigned: the connection has proven who asks."""

    card: Annotated[bytes, Size(0, PEER_CARD_BYTES_MAX)]
    """Frame of the asker's own peer card; empty where it cannot be dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersKnown:
    """The answer to PeersWanted."""

    cards: Annotated[tuple[Annotated[bytes, Size(1, PEER_CARD_BYTES_MAX)], ...], Size(0, PEER_CARDS_MAX)]
    """Frames of peer cards that are still alive, the answerer's own among them where it can be dialled."""


Message = Announced | Serving | HeadSeen | PeerCard

MESSAGES: dict[GossipKind, type[Message]] = {
    GossipKind.ANNOUNCED: Announced,
    GossipKind.SERVING: Serving,
    GossipKind.HEAD_SEEN: HeadSeen,
    GossipKind.PEER_CARD: PeerCard,
}
KINDS: dict[type[Message], GossipKind] = {message: kind for kind, message in MESSAGES.items()}
TOPIC_KINDS = (GossipKind.ANNOUNCED, GossipKind.SERVING, GossipKind.HEAD_SEEN)
"""What is gossiped. A peer card is handed out on request only."""


@dataclass(frozen=True, slots=True)
class Gossip:
    """A message whose envelope was opened."""

    letter: Letter
    message: Message
    digest: Digest
    """SHA-256 of the frame."""
    frame: bytes
    """As it came, to be passed on."""

    @property
    def kind(self) -> GossipKind:
        return KINDS[type(self.message)]


def topic(network: NetworkId, run: RunId, kind: GossipKind) -> str:
    """The name of the GossipSub topic that carries one kind of one run."""
    return f"/prime/{network}/{run}/{kind}"


def repeat_ms(kind: GossipKind, known_nodes: int) -> int:
    """How long a node waits before it says the same again, so that all of them together stay in the budget."""
    per_s = {GossipKind.SERVING: SERVING_PER_S, GossipKind.HEAD_SEEN: HEADS_PER_S}.get(kind)
    spread_ms = known_nodes * 1000 // per_s if per_s else 0
    return max(REPEAT_MS, spread_ms)


def life_ms(kind: GossipKind, known_nodes: int) -> int:
    """How long an envelope of this kind counts: two repetitions may get lost, and cards pass through many hands."""
    if kind is GossipKind.PEER_CARD:
        return ENVELOPE_LIFE_MS_MAX
    return min(ENVELOPE_LIFE_MS_MAX, max(GOSSIP_LIFE_MS_MIN, GOSSIP_REPEATS * repeat_ms(kind, known_nodes)))


def seal_gossip(
    key: WalletKey,
    message: Message,
    *,
    network: NetworkId,
    run: RunId | None,
    sequence: int,
    now_ms: int,
    known_nodes: int,
) -> bytes:
    """The frame of one message. A peer card belongs to no run."""
    kind = KINDS[type(message)]
    frame = seal(
        key,
        kind=kind,
        body=encode(message),
        network=network,
        run=run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=life_ms(kind, known_nodes),
    )
    assert len(frame) <= GOSSIP_FRAME_BYTES_MAX, f"a {kind} of {len(frame)} bytes"
    return frame


def open_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId, now_ms: int) -> Gossip:
    """The message of a frame that came on a topic, or RemoteError. Whether it is new is for the guard."""
    gossip = read_gossip(topic_name, frame, network=network, run=run)
    check_time(gossip.letter, now_ms)
    return gossip


def open_card(frame: bytes, *, network: NetworkId, now_ms: int) -> Gossip:
    """A peer card, or RemoteError. Every address in it names the sender's own key."""
    gossip = _read(frame, network, (GossipKind.PEER_CARD,))
    check_time(gossip.letter, now_ms)
    if gossip.letter.run is not None:
        raise RemoteError("Letter.run", f"is {gossip.letter.run} in a peer card, which belongs to no run")
    assert isinstance(gossip.message, PeerCard)
    for index, address in enumerate(gossip.message.parsed):
        if address.node != gossip.letter.sender:
            raise RemoteError(f"PeerCard.addresses[{index}]", f"is of {address.node}, the sender is not")
    return gossip


def read_gossip(topic_name: str, frame: bytes, *, network: NetworkId, run: RunId) -> Gossip:
    """As `open_gossip`, at any time: for the guard, which treats what came late unlike what is forged."""
    gossip = _read(frame, network, TOPIC_KINDS)
    if gossip.letter.run != run:
        raise RemoteError("Letter.run", f"is {gossip.letter.run}, this is about {run}")
    if topic(network, run, gossip.kind) != topic_name:
        raise RemoteError("Letter.kind", f"is {gossip.kind}, which is not what this topic carries")
    return gossip


def _read(frame: bytes, network: NetworkId, kinds: Sequence[GossipKind]) -> Gossip:
    if len(frame) > GOSSIP_FRAME_BYTES_MAX:
        raise RemoteError("envelope", f"is {len(frame)} bytes, the limit of gossip is {GOSSIP_FRAME_BYTES_MAX}")
    letter = open_envelope(frame, network=network).letter
    if letter.kind not in kinds:
        raise RemoteError("Letter.kind", f"is {letter.kind}, expected {' or '.join(kinds)}")
    try:
        message = decode(MESSAGES[GossipKind(letter.kind)], letter.body)
    except RemoteError as error:
        if letter.version <= PROTOCOL_VERSION:
            raise
        raise RemoteError(
            "Letter.version", f"is {letter.version}, newer than ours, and so is the body: {error}"
        ) from None
    return Gossip(letter, message, Digest(sha256(frame).digest()), frame)


def _check_distinct(field: str, items: Sequence[object]) -> None:
    if len(set(items)) != len(items):
        raise RemoteError(field, "name the same twice")
