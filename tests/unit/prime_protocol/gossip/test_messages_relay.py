"""Records travel in bounds, and name only peers that can be dialled."""

from typing import Any

import pytest

from prime_protocol.constants import GOSSIP_FRAME_BYTES_MAX, RELAY_FRAMES_MAX, RELAY_WAIT_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import (
    RELAY_POLL,
    RELAY_PUBLISH,
    RelayPoll,
    RelayPollReply,
    RelayPublish,
    RelayPublishReply,
)
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey

KEY = WalletKey.from_secret(b"\x01" * 32)


def records(**changes: Any) -> RelayPollReply:
    usual = {
        "cursor": 7,
        "trainer": NodeId(b"\x02" * 20),
        "nodes": 3,
        "peers": (f"/ip4/10.0.0.1/tcp/4001/p2p/{KEY.peer_id()}",),
        "frames": (b"a frame",),
    }
    return RelayPollReply(**usual | changes)


@pytest.mark.parametrize(
    "message",
    [
        RelayPublish(frame=b"a frame"),
        RelayPublishReply(is_new=False, reason="known"),
        RelayPoll(seen=0, wait_ms=RELAY_WAIT_MS_MAX, wants_peers=True, record=b"a record"),
        records(),
        records(peers=(), frames=()),
    ],
)
def test_every_message_comes_back_as_it_was(message: Any) -> None:
    assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (
            lambda: decode(RelayPublish, encode(RelayPublish(frame=b"x")).replace(b"\xc4\x01x", b"\xc4\x00")),
            "RelayPublish.frame",
        ),
        (lambda: RelayPublish(frame=bytes(GOSSIP_FRAME_BYTES_MAX + 1)), "RelayPublish.frame"),
        (lambda: RelayPoll(seen=0, wait_ms=RELAY_WAIT_MS_MAX + 1, wants_peers=False, record=b""), "RelayPoll.wait_ms"),
        (lambda: records(frames=(b"x",) * (RELAY_FRAMES_MAX + 1)), "RelayPollReply.frames"),
        (lambda: records(peers=("/ip4/10.0.0.1/tcp/4001",)), "RelayPollReply.peers[0]"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        message = make()
        decode(type(message), encode(message))
    assert caught.value.field in (field, field.partition(".")[2])


def test_both_questions_may_be_asked_again() -> None:
    assert (RELAY_PUBLISH.path, RELAY_PUBLISH.is_idempotent) == ("/api/relay-publish", True)
    assert (RELAY_POLL.path, RELAY_POLL.is_idempotent) == ("/api/relay-poll", True)
