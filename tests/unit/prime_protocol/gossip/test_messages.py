"""A gossiped message opens only as what it is, where it belongs and while it counts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.constants import (
    ADDRESSES_MAX,
    CLOCK_SKEW_MS_MAX,
    GOSSIP_FRAME_BYTES_MAX,
    GOSSIP_LIFE_MS,
    GOSSIP_MANIFESTS_MAX,
    GOSSIP_REPEAT_MS,
    GOSSIP_REPEATS,
    PROTOCOL_VERSION,
    RELAYED_HEADS_PER_S,
    RELAYED_SERVING_PER_S,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import (
    MESSAGE_KINDS,
    TOPIC_KINDS,
    GossipKind,
    GossipMessage,
    HeadSeen,
    PeerRecord,
    ReceivedGossip,
    ServingRecord,
    compute_repeat_ms,
    get_frame_kind,
    get_topic,
    open_gossip,
    open_peer_record,
    seal_gossip,
)
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, RunId
from prime_protocol.wire.signing import PEER_ID_PREFIX, Signature, WalletKey
from support.gossip_network import (
    ANN,
    BOB,
    NETWORK,
    NOW_MS,
    RUN,
    TRAINER,
    announced,
    head_seen,
    peer_record,
    sealed,
    serving,
    topic_of,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "gossip.json").read_text())
EXAMPLES: list[GossipMessage] = [announced(), serving(), head_seen()]


def opened(frame: bytes, kind: GossipKind, *, run: RunId = RUN, now_ms: int = NOW_MS) -> ReceivedGossip:
    return open_gossip(topic_of(kind), frame, network=NETWORK, run=run, now_ms=now_ms)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_opens_on_the_topic_of_its_kind(message: GossipMessage) -> None:
    frame = sealed(message)
    gossip = opened(frame, MESSAGE_KINDS[type(message)])
    assert gossip.message == message
    assert (gossip.frame, gossip.kind, gossip.payload.sender) == (frame, MESSAGE_KINDS[type(message)], TRAINER.node)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_opens_on_no_other_topic(message: GossipMessage) -> None:
    for kind in set(TOPIC_KINDS) - {MESSAGE_KINDS[type(message)]}:
        with pytest.raises(RemoteError, match=r"^Payload\.kind: .* not what this topic carries"):
            opened(sealed(message), kind)


def test_a_message_of_another_run_or_network_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^Payload\.run"):
        opened(sealed(announced(), run=RunId("other")), GossipKind.ANNOUNCED)
    with pytest.raises(RemoteError, match=r"^Payload\.run"):
        opened(sealed(announced(), run=None), GossipKind.ANNOUNCED)
    name = get_topic(NetworkId("main"), RUN, GossipKind.ANNOUNCED)
    with pytest.raises(RemoteError, match=r"^Payload\.network"):
        open_gossip(name, sealed(announced()), network=NetworkId("main"), run=RUN, now_ms=NOW_MS)


def test_a_message_counts_only_in_its_time() -> None:
    frame = sealed(announced())
    life = GOSSIP_LIFE_MS
    opened(frame, GossipKind.ANNOUNCED, now_ms=NOW_MS + life - 1)
    with pytest.raises(RemoteError, match=r"^Payload\.expires_at_ms"):
        opened(frame, GossipKind.ANNOUNCED, now_ms=NOW_MS + life)
    with pytest.raises(RemoteError, match=r"^Payload\.issued_at_ms"):
        opened(frame, GossipKind.ANNOUNCED, now_ms=NOW_MS - CLOCK_SKEW_MS_MAX - 1)


def test_a_frame_above_the_limit_of_gossip_is_not_even_decoded() -> None:
    with pytest.raises(RemoteError, match="limit of gossip"):
        opened(bytes(GOSSIP_FRAME_BYTES_MAX + 1), GossipKind.ANNOUNCED)


def sealed_as(kind: str, body: bytes) -> bytes:
    return seal_envelope(
        TRAINER, kind=kind, body=body, network=NETWORK, run=RUN, sequence=1, issued_at_ms=NOW_MS, life_ms=60_000
    )


def test_only_kinds_of_gossip_are_gossip() -> None:
    for kind in ("heartbeat", GossipKind.PEER_RECORD):
        with pytest.raises(RemoteError, match=r"^Payload\.kind"):
            opened(sealed_as(kind, encode(announced())), GossipKind.ANNOUNCED)
        with pytest.raises(RemoteError, match=r"^frame: is a "):
            get_frame_kind(sealed_as(kind, encode(announced())), NETWORK)


def test_a_body_that_is_not_the_message_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^CheckpointAnnounced"):
        opened(sealed_as(GossipKind.ANNOUNCED, b"\x00"), GossipKind.ANNOUNCED)


def test_a_body_that_only_newer_software_understands_is_told_apart() -> None:
    letter = decode(Payload, sealed_as(GossipKind.ANNOUNCED, b"\x00")[65:])
    raw = encode(replace(letter, version=PROTOCOL_VERSION + 1))
    from prime_protocol.wire.envelope import _signed_digest

    with pytest.raises(RemoteError, match=rf"^Payload\.version: is {PROTOCOL_VERSION + 1}, newer than ours"):
        opened(bytes(Signature(TRAINER.sign(_signed_digest(raw)))) + raw, GossipKind.ANNOUNCED)


def test_a_delta_names_its_base_and_a_keyframe_has_none() -> None:
    announced(kind=ManifestKind.DELTA, base=Digest(bytes(32)))
    with pytest.raises(RemoteError, match=r"^base"):
        announced(kind=ManifestKind.DELTA)
    with pytest.raises(RemoteError, match=r"^base"):
        announced(base=Digest(bytes(32)))


def test_a_serving_record_names_servers_and_manifests_once_each() -> None:
    assert ServingRecord(urls=(), depth=0, slots_free=0, manifests=()).urls == ()
    with pytest.raises(RemoteError, match=r"^urls\[1\]"):
        serving(urls=("http://a.example:1", "http://a.example:1/../secret"))
    with pytest.raises(RemoteError, match=r"^urls: name the same twice"):
        serving(urls=("http://a.example:1",) * 2)
    with pytest.raises(RemoteError, match=r"^manifests: name the same twice"):
        serving(manifests=(Digest(bytes(32)),) * 2)


def test_the_largest_records_fit_a_frame() -> None:
    urls = tuple(f"http://{'a' * 60}.{'b' * 60}{number}.cc:65535" for number in range(ADDRESSES_MAX))
    manifests = tuple(Digest(bytes([number]) * 32) for number in range(GOSSIP_MANIFESTS_MAX))
    assert len(sealed(serving(urls=urls, manifests=manifests))) < 4_096


def test_a_seen_head_is_a_signed_tree_head_in_form() -> None:
    assert head_seen(9).head == TreeHead("prime.example/log", 9, Digest(b"t" * 32))
    with pytest.raises(RemoteError, match=r"^note: is no tree head"):
        HeadSeen(note=b"hello")


def test_a_peer_record_holds_addresses_of_its_sender_alone() -> None:
    own = sealed(peer_record(ANN), ANN, run=None)
    gossip = open_peer_record(own, network=NETWORK, now_ms=NOW_MS)
    assert isinstance(gossip.message, PeerRecord)
    assert gossip.message.parsed[0].node == gossip.payload.sender == ANN.node
    with pytest.raises(RemoteError, match=r"^PeerRecord\.addresses\[0\]"):
        open_peer_record(sealed(peer_record(BOB), ANN, run=None), network=NETWORK, now_ms=NOW_MS)


def test_a_peer_record_belongs_to_no_run_and_runs_out() -> None:
    with pytest.raises(RemoteError, match=r"^Payload\.run"):
        open_peer_record(sealed(peer_record(ANN), ANN), network=NETWORK, now_ms=NOW_MS)
    with pytest.raises(RemoteError, match=r"^Payload\.expires_at_ms"):
        open_peer_record(sealed(peer_record(ANN), ANN, run=None), network=NETWORK, now_ms=NOW_MS + GOSSIP_LIFE_MS)
    with pytest.raises(RemoteError, match=r"^Payload\.kind"):
        open_peer_record(sealed(serving(), ANN, run=None), network=NETWORK, now_ms=NOW_MS)


def test_a_peer_record_names_each_address_once_and_strictly() -> None:
    with pytest.raises(RemoteError, match=r"^addresses: name the same twice"):
        peer_record(ANN, "/ip4/203.0.113.9/tcp/1", "/ip4/203.0.113.9/tcp/1")
    with pytest.raises(RemoteError, match=r"^addresses\[0\]"):
        peer_record(ANN, "/ip4/203.0.113.9/udp/1")


def test_a_peer_id_of_another_kind_of_key_is_no_address() -> None:
    assert ANN.peer_id().startswith("16Uiu2HA"), PEER_ID_PREFIX
    with pytest.raises(RemoteError, match=r"^addresses\[0\]"):
        PeerRecord(addresses=("/ip4/203.0.113.9/tcp/1/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5",))


@pytest.mark.parametrize("nodes", [0, 1, 100, 10_000, 100_000])
def test_all_nodes_together_post_no_more_than_the_relay_takes(nodes: int) -> None:
    assert nodes * 1000 / compute_repeat_ms(GossipKind.SERVING, nodes) <= RELAYED_SERVING_PER_S
    assert nodes * 1000 / compute_repeat_ms(GossipKind.HEAD_SEEN, nodes) <= RELAYED_HEADS_PER_S
    assert compute_repeat_ms(GossipKind.ANNOUNCED, nodes) == GOSSIP_REPEAT_MS


def test_with_ten_thousand_nodes_a_serving_record_still_outlives_its_repetition() -> None:
    frame = seal_gossip(ANN, serving(), network=NETWORK, run=RUN, sequence=1, now_ms=NOW_MS)
    letter = opened(frame, GossipKind.SERVING).payload
    assert letter.expires_at_ms - letter.issued_at_ms == GOSSIP_LIFE_MS > compute_repeat_ms(GossipKind.SERVING, 10_000)
    assert GOSSIP_REPEATS * compute_repeat_ms(GossipKind.SERVING, 100) <= GOSSIP_LIFE_MS


def opened_vector(vector: dict[str, Any]) -> ReceivedGossip:
    network, run, frame = NetworkId(VECTORS["network"]), RunId(VECTORS["run"]), bytes.fromhex(vector["frame"])
    if vector["kind"] == GossipKind.PEER_RECORD:
        return open_peer_record(frame, network=network, now_ms=VECTORS["now_ms"])
    name = get_topic(network, run, GossipKind(vector["kind"]))
    return open_gossip(name, frame, network=network, run=run, now_ms=VECTORS["now_ms"])


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["why"])
def test_a_frame_of_another_implementation_opens(vector: dict[str, Any]) -> None:
    gossip = opened_vector(vector)
    key = WalletKey.from_secret(bytes.fromhex(VECTORS["secret"]))
    assert (gossip.payload.sender, VECTORS["peer_id"]) == (key.node, key.peer_id())
    assert {name: shown(getattr(gossip.message, name)) for name in vector["message"]} == vector["message"]
    assert get_topic(NetworkId("main"), RunId("run-1"), GossipKind.ANNOUNCED) == VECTORS["topic_of_announced"]


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [shown(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
def test_a_wrong_frame_of_another_implementation_is_refused_by_name(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteError) as refusal:
        opened_vector(vector)
    assert refusal.value.field == vector["field"]
