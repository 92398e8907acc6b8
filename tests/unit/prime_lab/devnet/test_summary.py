"""What the log of a devnet says of everybody, and when the devnet says that it failed."""

from dataclasses import replace

from prime_lab.devnet import recipe
from prime_lab.devnet.summary import (
    DevnetSummary,
    LogSummary,
    describe_summary,
    format_result,
    list_failures,
    summarize_log,
)
from prime_protocol.ledger.entries import Outcome
from support.ledger_network import SLASH, World

SAMPLES = 2


def play() -> tuple[World, LogSummary]:
    """One worker is honest and trained on, the other cheats and is slashed."""
    world = World.started()
    good, bad = world.submit(world.lease("ann", 0, 4)), world.submit(world.lease("bob", 4, 4))
    for name, outcome in ((good, Outcome.ACCEPT), (bad, Outcome.FRAUDULENT)):
        world.agree(name, outcome)
        world.settle(name)
    world.propose(bad)
    world.wait(world.run.terms.appeal_ms)
    world.execute(bad)
    world.publish(good)
    return world, summarize_log(world.leaves, SAMPLES)


def make_summary(world: World, story: LogSummary) -> DevnetSummary:
    names = {world.id("ann"): "worker-1", world.id("bob"): "cheater-1"}
    return DevnetSummary(
        before=0.2,
        after=0.9,
        story=story,
        names=names,
        steps=1,
        seconds=10,
        full_bytes=1000,
        delta_bytes=300,
        learns=True,
    )


def test_everybodys_deeds_are_read_from_the_log_alone() -> None:
    world, story = play()
    ann, bob = world.id("ann"), world.id("bob")
    assert story.deeds[ann].settled == {Outcome.ACCEPT: story.deeds[ann].produced}
    assert story.deeds[bob].settled == {Outcome.FRAUDULENT: story.deeds[bob].produced}
    assert (story.trained_of([ann]), story.trained_of([bob])) == (1, 0)
    assert [(each.node, each.amount_nano, each.appealed) for each in story.slashed] == [(bob, SLASH, False)]
    summary = make_summary(world, story)
    assert list(list_failures(summary)) == []
    assert format_result(summary) == (
        "RESULT reward_before=0.200 reward_after=0.900 dishonest_trained=0 honest_slashed=0 cheaters_slashed=1"
        " log_verified=1 seconds=10"
    )
    assert any(line.startswith("slashed    cheater-1: 60 PRIME") for line in describe_summary(summary))


def test_the_summary_says_who_gossips_and_names_a_node_that_reaches_nobody() -> None:
    world, story = play()
    summary = replace(make_summary(world, story), peers={"worker-1": 5, "relay-1": 0})
    assert "peers      over libp2p: relay-1 0, worker-1 5" in list(describe_summary(summary))
    assert list(list_failures(summary)) == ["no peer over libp2p: relay-1"]


def test_a_devnet_that_breaks_a_promise_says_which() -> None:
    world, story = play()
    summary = make_summary(world, story)
    ann, bob = world.id("ann"), world.id("bob")
    assert "should be above" in next(list_failures(replace(summary, after=recipe.REWARD_AFTER_MIN)))
    assert "should be below" in next(list_failures(replace(summary, before=recipe.REWARD_BEFORE_MAX)))
    assert not list(list_failures(replace(summary, after=0.0, learns=False))), "another model promises nothing"
    swapped = replace(summary, names={ann: "cheater-1", bob: "worker-1"})
    assert list(list_failures(swapped)) == [
        "the model has learnt from 1 submissions of cheaters",
        "1 honest nodes were slashed",
        "0 of 1 cheaters were slashed",
    ]
