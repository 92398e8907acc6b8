"""Hostile bytes into all that gossip reads: nothing opens that was not sealed, nothing parses that is not printed."""

import pytest

from fuzz.harness import assert_survives
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import Accusation
from prime_protocol.gossip.guard import GossipAccepted, GossipRejected
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    HeadSeen,
    PeerRecord,
    PeersReply,
    PeersRequest,
    ServingRecord,
    open_peer_record,
)
from prime_protocol.wire.addresses import PeerAddress, ServerUrl
from prime_protocol.wire.codec import decode, encode
from support.gossip_network import (
    ANN,
    NETWORK,
    NOW_MS,
    RUN,
    TRAINER,
    accusation,
    announced,
    guard,
    head_seen,
    peer_record,
    sealed,
    serving,
    topic_of,
)

pytestmark = pytest.mark.fuzz

FRAMES = {
    GossipKind.ANNOUNCED: sealed(announced(), TRAINER),
    GossipKind.SERVING: sealed(serving(), ANN),
    GossipKind.HEAD_SEEN: sealed(head_seen(), ANN),
}
PEER_RECORD = sealed(peer_record(ANN, "/ip4/203.0.113.9/tcp/1", "/dns6/node.example/tcp/2"), ANN, run=None)


def test_frames_survive_the_guard_and_only_what_was_sealed_is_accepted() -> None:
    ours = guard()

    def judge(raw: bytes) -> None:
        for kind in FRAMES:
            verdict = ours.validate(topic_of(kind), raw, run=RUN, now_ms=NOW_MS)
            if isinstance(verdict, GossipAccepted):
                assert raw == FRAMES[kind]
        if isinstance(verdict, GossipRejected) and raw not in FRAMES.values():
            raise RemoteError("frame", verdict.reason)

    assert_survives(judge, list(FRAMES.values()))


def test_cards_survive_and_only_what_was_sealed_opens() -> None:
    def parse(raw: bytes) -> None:
        open_peer_record(raw, network=NETWORK, now_ms=NOW_MS)
        assert raw == PEER_RECORD

    assert_survives(parse, [PEER_RECORD])


@pytest.mark.parametrize(
    "example",
    [
        announced(),
        serving(),
        head_seen(),
        accusation(),
        peer_record(ANN),
        PeersRequest(record=PEER_RECORD),
        PeersReply(records=(PEER_RECORD, PEER_RECORD)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_bodies_survive_and_what_decodes_is_canonical(
    example: CheckpointAnnounced | ServingRecord | HeadSeen | Accusation | PeerRecord | PeersRequest | PeersReply,
) -> None:
    def parse(raw: bytes) -> None:
        assert encode(decode(type(example), raw)) == raw

    assert_survives(parse, [encode(example)])


def test_addresses_survive_and_print_as_they_were_read() -> None:
    def parse(raw: bytes) -> None:
        text = raw.decode("latin-1")
        if text.startswith("/"):
            assert str(PeerAddress.parse(text)) == text
        else:
            assert str(ServerUrl.parse(text)) == text

    examples = [*serving().urls, "http://[2001:db8::1]:80", f"/ip6/2001:db8::1/tcp/9/p2p/{ANN.peer_id()}"]
    assert_survives(parse, [text.encode() for text in examples])
