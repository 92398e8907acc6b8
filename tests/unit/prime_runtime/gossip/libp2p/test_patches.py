"""The signed addresses in a gossip message: verified once, and again when they change or are not the sender's."""

from typing import Any

import pytest
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.envelope import seal_record
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr

from prime_runtime.gossip.libp2p import patches


def make_message(peer: Any, port: int) -> Any:
    record = PeerRecord(peer.get_id(), [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")])
    return rpc_pb2.RPC(senderRecord=seal_record(record, peer.get_private_key()).marshal_envelope())


def test_stored_addresses_are_not_verified_again_and_new_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    host, peer = new_host(create_new_key_pair()), new_host(create_new_key_pair())
    first, second = make_message(peer, 4001), make_message(peer, 4002)
    verified: list[Any] = []

    def verify(message: Any, *more: Any, original: Any = patches.maybe_consume_signed_record) -> bool:
        verified.append(message)
        return bool(original(message, *more))

    monkeypatch.setattr(patches, "maybe_consume_signed_record", verify)
    assert all(patches.consume_new_record(first, host, peer.get_id()) for _ in range(3))
    assert verified == [first]
    assert patches.consume_new_record(second, host, peer.get_id())
    assert verified == [first, second]
    assert [str(each) for each in host.get_peerstore().addrs(peer.get_id())] == ["/ip4/127.0.0.1/tcp/4002"]
    forged = rpc_pb2.RPC(senderRecord=second.senderRecord[:-1] + b"\x00")
    assert not patches.consume_new_record(forged, host, peer.get_id())
    assert not patches.consume_new_record(second, host, host.get_id()), "another peer's"
    assert patches.consume_new_record(rpc_pb2.RPC(), host, peer.get_id()), "a message need not carry any"
