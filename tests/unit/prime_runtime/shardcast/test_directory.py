"""What a node has heard: the newest record of each server, and what was announced, both bounded."""

from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost, make_key, write_checkpoint
from prime_protocol.gossip.messages import HeadSeen, ServingRecord
from prime_protocol.weights.transfer import make_manifest_link
from prime_runtime.shardcast import directory as module
from prime_runtime.shardcast.directory import ServerDirectory
from support.shard_hosts import announce, make_tensors


@pytest.fixture
async def origin(tmp_path: Path) -> ShardHost:
    host = ShardHost(tmp_path, "origin", key=TRAINER)
    host.url = "http://127.0.0.1:1"
    return host


async def test_the_newest_record_counts_until_it_expires(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    known = ServerDirectory()
    known.learn(origin.record())
    assert [server.node for server in known.servers(signed.digest)] == [TRAINER.node]
    newer = origin.say(ServingRecord(urls=(), depth=0, slots_free=0, manifests=(signed.digest,)))
    known.learn(newer)
    assert list(known.servers(signed.digest)) == [], "without a URL nobody is served"
    assert len(known) == 1
    server = known.get(TRAINER.node)
    assert server is not None
    assert server.frame == newer.frame
    assert known.expire(newer.payload.expires_at_ms - 1) == []
    assert known.expire(newer.payload.expires_at_ms) == [TRAINER.node]
    assert known.get(TRAINER.node) is None


async def test_announcements_give_links_and_outlive_their_envelopes(origin: ShardHost, tmp_path: Path) -> None:
    (signed,) = origin.publish(write_checkpoint(tmp_path / "c0", make_tensors(1)), 0)
    known = ServerDirectory()
    said = announce(origin, signed)
    known.learn(said)
    known.expire(2**62)
    (link,) = known.links()
    assert link == make_manifest_link(signed.manifest)
    found = known.find_announcement(link)
    assert found == said.message
    other = type(link)(root=link.root, base=link.base, transport_bytes=1)
    assert known.find_announcement(other) is None


async def test_memory_is_bounded(origin: ShardHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVERS_MAX", 3)
    monkeypatch.setattr(module, "ANNOUNCED_MAX", 2)
    known = ServerDirectory()
    for number in range(5):
        host = ShardHost(tmp_path, f"node{number}", key=make_key(f"node{number}"))
        host.url = "http://127.0.0.1:1"
        known.learn(host.record())
    assert len(known) == 3
    assert known.get(make_key("node4").node) is not None
    for step in range(4):
        (signed,) = origin.publish(write_checkpoint(tmp_path / f"c{step}", make_tensors(step, tensors=step + 1)), step)
        known.learn(announce(origin, signed))
    assert [announced.step for announced in known.announced()] == [3, 2]
    known.drop(make_key("node4").node)
    assert known.get(make_key("node4").node) is None


async def test_tree_heads_are_not_its_business(origin: ShardHost) -> None:
    known = ServerDirectory()
    note = (
        b"example.org/log\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n\xe2\x80\x94 example.org/log AAAAAAAA\n"
    )
    gossip = origin.record()
    known.learn(type(gossip)(gossip.payload, HeadSeen.__new__(HeadSeen), gossip.digest, note))
    assert len(known) == 0
