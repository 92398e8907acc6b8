"""Gossip costs a node the same in a network of any size: a sample is sent, and a flood is taken up to a budget."""

from dataclasses import replace
from hashlib import sha256

import pytest

from prime_protocol.constants import (
    ANNOUNCED_REPEATED_MAX,
    GOSSIP_LIFE_MS,
    GOSSIP_REPEAT_MS,
    GOSSIP_SENDERS_MAX,
    HEAD_REPEAT_MS,
    HEADS_SAMPLE,
    SERVING_ACCEPTED_BURST,
    SERVING_ACCEPTED_PER_S,
    SERVING_SAMPLE,
)
from prime_protocol.gossip import budget as gossip_budget
from prime_protocol.gossip.budget import GossipSampler
from prime_protocol.gossip.guard import GossipAccepted, GossipBudget, GossipGuard, GossipIgnored
from prime_protocol.gossip.messages import (
    GossipKind,
    GossipMessage,
    ReceivedGossip,
    ServingRecord,
    compute_repeat_ms,
    decode_gossip,
)
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import WalletKey
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
    sealed,
    serving,
    topic_of,
    wallet,
)

SERVING, HEAD_SEEN = GossipKind.SERVING, GossipKind.HEAD_SEEN


def received(message: GossipMessage, kind: GossipKind, key: WalletKey = ANN, sequence: int = 1) -> ReceivedGossip:
    frame = sealed(message, key, sequence=sequence)
    return decode_gossip(topic_of(kind), frame, network=NETWORK, run=RUN)


RECORD = received(serving(), SERVING)


def record_of(number: int, salt: bytes = b"", message: ServingRecord | None = None) -> ReceivedGossip:
    """A record of one of many nodes, without the cost of its signature."""
    sender = NodeId(number.to_bytes(20, "big"))
    digest = Digest(sha256(salt + number.to_bytes(8, "big")).digest())
    return replace(
        RECORD, payload=replace(RECORD.payload, sender=sender), digest=digest, message=message or RECORD.message
    )


@pytest.mark.parametrize("nodes", [10, 1_000, 20_000])
def test_a_new_manifest_is_told_by_a_sample_whatever_the_number_of_nodes(nodes: int) -> None:
    ours = GossipSampler()
    chosen = sum(ours.is_chosen(record_of(number), known_nodes=nodes, now_ms=NOW_MS) for number in range(nodes))
    assert chosen == nodes if nodes <= SERVING_SAMPLE else SERVING_SAMPLE / 2 < chosen < SERVING_SAMPLE * 2


@pytest.mark.parametrize("nodes", [1_000, 20_000])
def test_records_are_repeated_at_one_rate_whatever_the_number_of_nodes(nodes: int) -> None:
    ours = GossipSampler()
    for number in range(nodes):
        ours.is_chosen(record_of(number), known_nodes=nodes, now_ms=NOW_MS)
    span_ms = compute_repeat_ms(SERVING, nodes)
    again = [record_of(number, b"again") for number in range(nodes)]
    chosen = sum(ours.is_chosen(each, known_nodes=nodes, now_ms=NOW_MS + span_ms) for each in again)
    expected = SERVING_SAMPLE * span_ms / GOSSIP_REPEAT_MS
    assert 0.6 * expected < chosen < 1.6 * expected


def test_a_record_that_changes_nothing_is_not_gossiped_before_it_is_due() -> None:
    ours = GossipSampler()
    assert ours.is_chosen(record_of(1), known_nodes=1, now_ms=NOW_MS)
    assert not ours.is_chosen(record_of(1), known_nodes=1, now_ms=NOW_MS + GOSSIP_REPEAT_MS // 2)
    newer = serving(manifests=(Digest(b"n" * 32),))
    assert ours.is_chosen(record_of(1, b"newer", newer), known_nodes=1, now_ms=NOW_MS + GOSSIP_REPEAT_MS // 2)
    assert ours.is_chosen(record_of(1, b"due", newer), known_nodes=1, now_ms=NOW_MS + GOSSIP_REPEAT_MS * 3 // 2)


def test_a_node_that_stops_says_so_to_those_who_may_have_its_record() -> None:
    ours, stopped = GossipSampler(), serving(urls=(), manifests=())
    assert ours.is_chosen(record_of(1), known_nodes=1, now_ms=NOW_MS)
    # Told again while its record lives, though that one was not drawn.
    changed = serving(manifests=(Digest(b"n" * 32),))
    assert not ours.is_chosen(record_of(1, b"x", changed), known_nodes=10**12, now_ms=NOW_MS + 1)
    assert ours.is_chosen(record_of(1, b"stop", stopped), known_nodes=10**12, now_ms=NOW_MS + 2)
    assert not ours.is_chosen(record_of(1, b"stop", stopped), known_nodes=1, now_ms=NOW_MS + 3), "once"
    assert not ours.is_chosen(record_of(2, b"", changed), known_nodes=10**12, now_ms=NOW_MS)
    assert not ours.is_chosen(record_of(2, b"stop", stopped), known_nodes=1, now_ms=NOW_MS + 1), "nobody has it"
    assert ours.is_chosen(record_of(3), known_nodes=1, now_ms=NOW_MS)
    late_ms = NOW_MS + GOSSIP_LIFE_MS + 1_000
    assert not ours.is_chosen(record_of(3, b"stop", stopped), known_nodes=1, now_ms=late_ms), "it has expired"


def test_heads_are_a_sample_too_and_accusations_all_go() -> None:
    ours = GossipSampler()
    heads = [replace(record_of(number), message=head_seen()) for number in range(4_000)]
    for nodes in (100, 1_000, 10_000):
        chosen = sum(ours.is_chosen(head, known_nodes=nodes, now_ms=NOW_MS) for head in heads)
        said_s = len(heads) / nodes * compute_repeat_ms(HEAD_SEEN, nodes) / 1000
        expected = HEADS_SAMPLE * 1000 * said_s / HEAD_REPEAT_MS
        assert expected / 2 < chosen < 2 * expected, f"{chosen} in {said_s} s with {nodes} nodes"
    assert ours.is_chosen(heads[0], known_nodes=0, now_ms=NOW_MS), "who does not know of others sends all"
    assert ours.is_chosen(replace(RECORD, message=accusation()), known_nodes=10**9, now_ms=NOW_MS)


def test_only_the_newest_announcements_are_repeated() -> None:
    ours = GossipSampler()
    said = [replace(RECORD, message=announced(step)) for step in range(ANNOUNCED_REPEATED_MAX + 3)]
    assert all(ours.is_chosen(each, known_nodes=10**9, now_ms=NOW_MS) for each in said), "each once, oldest first"
    repeated = [ours.is_chosen(each, known_nodes=10**9, now_ms=NOW_MS) for each in said]
    assert repeated == [False] * 3 + [True] * ANNOUNCED_REPEATED_MAX


def test_the_sampler_remembers_a_bounded_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GOSSIP_SENDERS_MAX > 10_000
    monkeypatch.setattr(gossip_budget, "GOSSIP_SENDERS_MAX", 3)
    ours = GossipSampler()
    for number in range(10):
        ours.is_chosen(record_of(number), known_nodes=1, now_ms=NOW_MS)
    assert len(ours) == 3


def test_a_flood_of_fresh_keys_is_taken_up_to_the_budget_and_the_trainer_always() -> None:
    ours, budget = guard(), GossipBudget()

    def told(key: WalletKey, now_ms: int) -> object:
        frame = sealed(serving(), key, now_ms=now_ms)
        return ours.validate(topic_of(SERVING), frame, run=RUN, now_ms=now_ms, budget=budget)

    flood = [told(wallet(1_000 + number), NOW_MS) for number in range(SERVING_ACCEPTED_BURST + 50)]
    assert sum(isinstance(verdict, GossipAccepted) for verdict in flood) == SERVING_ACCEPTED_BURST
    assert flood[-1] == GossipIgnored("too many of all senders")
    assert isinstance(told(TRAINER, NOW_MS), GossipAccepted)
    later_ms = NOW_MS + 10_000
    more = [told(wallet(5_000 + number), later_ms) for number in range(50)]
    assert sum(isinstance(verdict, GossipAccepted) for verdict in more) == int(10 * SERVING_ACCEPTED_PER_S)


def test_announcements_and_other_runs_and_kinds_have_their_own_budgets() -> None:
    budget = GossipBudget()
    assert all(budget.take(RUN, SERVING, NOW_MS) for _ in range(SERVING_ACCEPTED_BURST))
    assert not budget.take(RUN, SERVING, NOW_MS)
    assert budget.take(RUN, HEAD_SEEN, NOW_MS)
    assert all(budget.take(RUN, GossipKind.ANNOUNCED, NOW_MS) for _ in range(10_000))
    assert isinstance(
        GossipGuard(NETWORK, is_trainer=lambda run, node: False).validate(
            topic_of(SERVING), sealed(serving(), ANN), run=RUN, now_ms=NOW_MS
        ),
        GossipAccepted,
    ), "what was asked for has no budget"
