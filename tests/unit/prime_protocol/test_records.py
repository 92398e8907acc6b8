"""Records travel in bounds, and name only peers that can be dialled."""

from typing import Any

import pytest

from prime_protocol.codec import decode, encode
from prime_protocol.constants import GOSSIP_FRAME_BYTES_MAX, RECORDS_MAX, RECORDS_WAIT_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.records import RECORDS, SHARE, Records, RecordsWanted, Share, Shared
from prime_protocol.signing import WalletKey

KEY = WalletKey.from_secret(b"\x01" * 32)


def records(**changes: Any) -> Records:
    usual = {
        "cursor": 7,
        "trainer": NodeId(b"\x02" * 20),
        "nodes": 3,
        "peers": (f"/ip4/10.0.0.1/tcp/4001/p2p/{KEY.peer_id()}",),
        "frames": (b"a frame",),
    }
    return Records(**usual | changes)


@pytest.mark.parametrize(
    "message",
    [
        Share(frame=b"a frame"),
        Shared(is_new=False, reason="known"),
        RecordsWanted(seen=0, wait_ms=RECORDS_WAIT_MS_MAX),
        records(),
        records(peers=(), frames=()),
    ],
)
def test_every_message_comes_back_as_it_was(message: Any) -> None:
    assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: decode(Share, encode(Share(frame=b"x")).replace(b"\xc4\x01x", b"\xc4\x00")), "Share.frame"),
        (lambda: Share(frame=bytes(GOSSIP_FRAME_BYTES_MAX + 1)), "Share.frame"),
        (lambda: RecordsWanted(seen=0, wait_ms=RECORDS_WAIT_MS_MAX + 1), "RecordsWanted.wait_ms"),
        (lambda: records(frames=(b"x",) * (RECORDS_MAX + 1)), "Records.frames"),
        (lambda: records(peers=("/ip4/10.0.0.1/tcp/4001",)), "Records.peers[0]"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        message = make()
        decode(type(message), encode(message))
    assert caught.value.field in (field, field.partition(".")[2])


def test_both_questions_may_be_asked_again() -> None:
    assert (SHARE.path, SHARE.is_idempotent) == ("/api/share", True)
    assert (RECORDS.path, RECORDS.is_idempotent) == ("/api/records", True)
