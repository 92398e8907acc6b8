"""A server of shards says what is new at once and the rest in time, and never more than others would pass on."""

from pathlib import Path

import pytest

from prime_protocol.constants import GOSSIP_REPEAT_MS
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, compute_repeat_ms
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.ids import Step
from prime_runtime.keys import SequenceCounter
from prime_runtime.settings.schema import ConfigError
from prime_runtime.shardcast.announcer import SERVING_MS_MIN, AnnounceSchedule, ServingSummary, make_announcement
from prime_runtime.shardcast.config import check_urls, with_ports
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from support.gossip_examples import NETWORK, NOW_MS, RUN, digest_of, key_of, serving
from support.processes.swarm import make_checkpoint

TRAINER = key_of("trainer")


def stand(*steps: int, complete: tuple[int, ...] = ()) -> ServingSummary:
    message = serving(*steps)
    whole = {digest_of(f"manifest {step}") for step in complete}
    return ServingSummary(message.urls, tuple((digest, digest in whole) for digest in message.manifests))


def test_nothing_is_said_before_there_is_something_to_serve() -> None:
    saying = AnnounceSchedule()
    assert not saying.is_serving_due(stand(), 0, known_nodes=0)
    assert saying.is_serving_due(stand(0), 0, known_nodes=0)


def test_a_new_or_completed_manifest_is_said_at_once_and_the_same_in_time() -> None:
    saying = AnnounceSchedule()
    saying.mark_serving_sent(stand(0), 1000)
    assert not saying.is_serving_due(stand(0), 1001, known_nodes=0)
    assert saying.is_serving_due(stand(0, complete=(0,)), 1001, known_nodes=0)
    assert saying.is_serving_due(stand(1, 0), 1001, known_nodes=0)
    assert not saying.is_serving_due(stand(), 1001, known_nodes=0)
    assert saying.is_serving_due(stand(), 1000 + SERVING_MS_MIN, known_nodes=0)
    assert not saying.is_serving_due(stand(0), 999 + GOSSIP_REPEAT_MS, known_nodes=0)
    assert saying.is_serving_due(stand(0), 1000 + GOSSIP_REPEAT_MS, known_nodes=0)
    many_ms = compute_repeat_ms(GossipKind.SERVING, 10_000)
    assert not saying.is_serving_due(stand(0), 999 + many_ms, known_nodes=10_000)
    assert saying.is_serving_due(stand(0), 1000 + many_ms, known_nodes=10_000)


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    """Steps 0 (whole) and 1 (both ways), really published."""
    made = ShardStore(tmp_path / "store", network=NETWORK, run=RUN, trainer=TRAINER.node)
    sequence = SequenceCounter()
    for step in (0, 1):
        checkpoint = make_checkpoint(tmp_path / f"step-{step}", seed=step, values=4_000, changed=0.01 * step)
        publish_checkpoint(
            made, checkpoint, key=TRAINER, step=Step(step), sequence=sequence, now_ms=NOW_MS, keyframe=True
        )
    return made


def test_announcements_come_oldest_first_and_are_repeated_while_the_version_lives(store: ShardStore) -> None:
    saying, signed = AnnounceSchedule(), [stock.signed for stock in store.newest_first()]
    due = saying.list_due_announcements(signed, 0)
    assert [(each.manifest.step, each.manifest.kind) for each in due] == [
        (0, ManifestKind.KEYFRAME),
        (1, ManifestKind.KEYFRAME),
        (1, ManifestKind.DELTA),
    ]
    for each in due[:2]:
        saying.mark_announced(each.digest, 0)
    assert saying.list_due_announcements(signed, 1) == due[2:]
    saying.mark_announced(due[2].digest, 1)
    assert saying.list_due_announcements(signed, GOSSIP_REPEAT_MS - 1) == []
    assert saying.list_due_announcements(signed, GOSSIP_REPEAT_MS) == due[:2]
    assert saying.list_due_announcements([], GOSSIP_REPEAT_MS) == []
    assert saying.list_due_announcements(signed, GOSSIP_REPEAT_MS) == due, "removed and published again, it is new"


def test_an_announcement_says_what_the_manifest_says(store: ShardStore) -> None:
    for stock in store.newest_first():
        said = make_announcement(stock.signed)
        assert isinstance(said, CheckpointAnnounced)
        assert (said.step, said.base, said.kind) == (
            stock.manifest.step,
            stock.manifest.base,
            stock.manifest.kind,
        )
        assert (said.manifest, said.root) == (stock.digest, stock.signed.root)


def test_a_stand_knows_what_is_whole(store: ShardStore) -> None:
    stocks = store.newest_first()
    message = serving(manifests=tuple(stock.digest for stock in stocks))
    assert all(whole for _, whole in ServingSummary.of(message, stocks).manifests)
    stocks[0].held = 0
    assert not ServingSummary.of(message, stocks).manifests[0][1]


def test_an_announced_url_may_leave_the_port_open_and_nothing_else() -> None:
    check_urls("announce", ("http://relay.example:0", "https://[2001:db8::1]:8450"))
    assert with_ports(("http://relay.example:0", "http://relay.example:7", "http://a:7"), 7) == (
        "http://relay.example:7",
        "http://a:7",
    )
    for url in ("http://relay.example", "http://relay.example:0/x", "ftp://a:1", "http://169.254.1.1:80"):
        with pytest.raises(ConfigError, match="announce"):
            check_urls("announce", (url,))
    with pytest.raises(ConfigError, match="allowed are 8"):
        check_urls("announce", tuple(f"http://a:{port}" for port in range(1, 10)))
