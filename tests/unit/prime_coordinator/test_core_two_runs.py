"""Two active runs on one coordinator: neither draws from, waits for, pays from or suspends in the other."""

import pytest

from prime_coordinator.audits.validators import REASON_SILENT
from prime_coordinator.constants import GRACE_MS, MISS_WAIT_MS, MISSES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import NodeCommand
from support.core_network import SECOND_MS, Scene
from support.ledger_network import RUN, SLASH, STAKE, TERMS, TOKEN, VALIDATORS

OTHER = RunId("run-2")
OTHERS = tuple(f"other-{number}" for number in range(9))
BOTH = "val-0"
"""The one validator that serves both runs."""


@pytest.fixture
def scene() -> Scene:
    """Run 1 with its nine validators, run 2 with nine of its own, and one of the first that takes audits of both."""
    scene = Scene.started(slots_per_step=64)
    world = scene.world
    scene.order(e.RunCreated(terms=world.terms(slots_per_step=64, slash_nano=SLASH // 2)), OTHER)
    world.runs_served = (OTHER,)
    for name in OTHERS:
        scene.join(name, Role.VALIDATOR)
    world.runs_served = (RUN, OTHER)
    scene.world.wait(3_600_000)  # a key may register again only after a while
    scene.send(BOTH, world.registration(BOTH, Role.VALIDATOR))
    scene.order(
        e.Deposited(account=world.id("coordinator"), amount_nano=1000 * TOKEN, reference=Digest(b"f" * 32)), None
    )
    scene.order(e.RunFunded(amount_nano=1000 * TOKEN), OTHER)
    with scene.within(OTHER):
        scene.publish()
    scene.tick(GRACE_MS)
    return scene


def beat_all(scene: Scene) -> None:
    for run, names in ((RUN, VALIDATORS), (OTHER, (BOTH, *OTHERS))):
        with scene.within(run):
            for name in names:
                scene.beat(name)


def miss_round(scene: Scene, run: RunId) -> None:
    """A submission of this run, and every validator that sends heartbeats and gives no verdict on it."""
    with scene.within(run):
        scene.work("bob")
        scene.tick(SECOND_MS)
    for _ in range(TERMS.verdict_ms // 5_000 + 1):
        scene.tick(5_000)
        beat_all(scene)


def test_validators_are_drawn_for_the_runs_that_they_serve(scene: Scene) -> None:
    first, second = (set(scene.state.runs[run].validators) for run in (RUN, OTHER))
    assert first == {scene.node(name) for name in VALIDATORS}
    assert second == {scene.node(name) for name in (BOTH, *OTHERS)}
    for _ in range(4):
        name = scene.work("ann")
        with scene.within(OTHER):
            other = scene.work("ann")
            scene.tick(2 * SECOND_MS)
            assert set(scene.drawn(other)) <= {BOTH, *OTHERS}
            for drawn in scene.drawn(other):
                assert scene.told(drawn) == [other], "a heartbeat names the audits of its own run only"
            for drawn in scene.drawn(other):
                scene.say(drawn, other, Outcome.ACCEPT)
        assert set(scene.drawn(name)) <= set(VALIDATORS)
        for drawn in scene.drawn(name):
            assert scene.told(drawn) == [name]
        for drawn in scene.drawn(name):
            scene.say(drawn, name, Outcome.ACCEPT)
        scene.tick(SECOND_MS)
        scene.judge(name)
        with scene.within(OTHER):
            scene.judge(other)


def test_interleaved_runs_settle_pay_and_slash_by_their_own_terms(scene: Scene) -> None:
    good = scene.work("ann")
    with scene.within(OTHER):
        bad = scene.work("ann")
        scene.judge(bad, lambda validator, name: Outcome.FRAUDULENT)
        assert scene.run.slashes[bad].node == scene.node("ann")
    scene.judge(good)
    assert scene.submission(good).credited
    assert not scene.run.slashes
    assert scene.run.get_record(scene.node("ann")).streak == 1
    assert scene.state.runs[OTHER].get_record(scene.node("ann")).streak == 0
    assert scene.world.stake_of("ann") == STAKE - SLASH // 2, "the second run's terms"
    pools = {run: scene.state.funds.pools[run] for run in (RUN, OTHER)}
    scene.publish(good)
    scene.tick(SECOND_MS)
    assert scene.run.steps[0].paid
    assert scene.state.funds.pools[RUN] < pools[RUN]
    assert scene.state.funds.pools[OTHER] == pools[OTHER]
    assert scene.state.runs[OTHER].latest == 0, "the other run is at its own step"


def test_a_run_whose_audits_stall_takes_no_validators_from_the_other(scene: Scene) -> None:
    silent: set[str] = set()
    for _ in range(4 * MISSES_MAX):
        miss_round(scene, OTHER)
        silent |= {scene.world.names[node] for node in scene.state.runs[OTHER].suspended}
        # The other run goes on meanwhile, and its verdicts excuse no one here.
        name = scene.work("ann")
        scene.judge(name)
        assert scene.submission(name).credited
        if BOTH in silent:
            break
    assert BOTH in silent, "nothing it does in the first run clears what it missed in the second"
    assert scene.state.runs[OTHER].suspended[scene.node(BOTH)] == REASON_SILENT
    assert scene.state.nodes[scene.node(BOTH)].status is NodeStatus.ACTIVE
    assert scene.node(BOTH) not in scene.state.runs[OTHER].validators
    assert {scene.node(name) for name in VALIDATORS} == set(scene.run.validators)
    assert scene.beat(BOTH).command is NodeCommand.NONE
    scene.restart()
    assert scene.node(BOTH) not in scene.state.runs[OTHER].validators, "the log has it"


def test_a_suspension_in_one_run_ends_with_a_heartbeat_in_that_run(scene: Scene) -> None:
    suspended = scene.state.runs[OTHER].suspended
    for _ in range(4 * MISSES_MAX):
        if not suspended:
            miss_round(scene, OTHER)
    node = next(iter(suspended))
    name = scene.world.names[node]
    with scene.within(OTHER):
        assert scene.beat(name).command is NodeCommand.DRAIN
    scene.world.wait(MISS_WAIT_MS)
    scene.core.suspensions.resume_if_expired(RUN, node, scene.world.now_ms)
    assert node in suspended
    with scene.within(OTHER):
        assert scene.beat(name).command is NodeCommand.NONE
    assert node not in suspended
    assert node in scene.state.runs[OTHER].validators


def test_a_run_without_witnesses_delays_only_its_own_draws(scene: Scene) -> None:
    """Its heads are not cosigned, so its submissions wait; the round is recorded and serves the other run."""
    name = scene.work("ann")
    with scene.within(OTHER):
        other = scene.work("bob")
    beat_all(scene)
    scene.silent_witnesses = frozenset(OTHERS)
    scene.tick(SECOND_MS)
    assert scene.drawn(name)
    with scene.within(OTHER):
        assert not scene.drawn(other)
        assert scene.submission(other).is_unwitnessed
        scene.silent_witnesses = frozenset()
        scene.judge(other)
        assert scene.submission(other).credited, "it goes on by itself"


def test_a_node_is_drained_in_a_run_that_exists_and_banned_in_all(scene: Scene) -> None:
    world = scene.world
    nowhere = e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.DRAINED, reason="", run=RunId("nowhere"))
    with pytest.raises(RemoteError, match="nowhere was not created"):
        scene.order(nowhere, None)
    with pytest.raises(RemoteError, match="a ban is for all runs"):
        e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.BANNED, reason="", run=RUN)
    scene.order(e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.DRAINED, reason="rest", run=RUN), None)
    assert "drained" in scene.ask("ann").reason
    with scene.within(OTHER):
        assert scene.ask("ann").lease is not None
    scene.order(e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.ACTIVE, reason="", run=RUN), None)
    assert "drained" not in scene.ask("ann").reason
