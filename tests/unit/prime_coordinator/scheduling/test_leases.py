"""Leases: sized to what a node can do, ended when they run out, given a second time when they are overdue."""

import pytest

from prime_coordinator.constants import (
    FAILURES_FREE,
    GRACE_MS,
    LEASES_UNSETTLED_MAX,
    LEASES_UNSETTLED_PROBATION_MAX,
    PROBATION_STEP_PARTS,
    RETRY_MS,
    RETRY_MS_MAX,
    STRAGGLER_SHARE,
    UNSETTLED_STEPS_MAX,
)
from prime_coordinator.scheduling.leases import compute_slots_max
from prime_protocol.constants import LEASE_SLACK, LEASE_TARGET_MS, ROLLOUT_FILE_BYTES_MAX, ROLLOUT_ROWS_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, RunStatus
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from support.core_network import SECOND_MS, Scene
from support.ledger_network import MINUTE_MS, RUN, TERMS

TOKENS_PER_SLOT = 32
"""Assumed before the first submission: two samples of half the longest completion."""


@pytest.fixture
def scene() -> Scene:
    return Scene.started(workers=("ann", "bob", "cat"))


def test_the_first_lease_is_a_probe_of_one_slot_whatever_the_node_claims(scene: Scene) -> None:
    assert scene.lease("ann", tokens_per_s=10**6).slots == 1
    assert "probe" in scene.ask("ann").reason
    assert scene.beat("ann").leases[0].lease == 0


def test_a_lease_is_sized_to_the_measured_throughput_and_takes_the_target_time() -> None:
    scene = Scene.started(slots_per_step=1000)
    scene.measure("ann", 8)
    lease = scene.lease("ann")
    assert lease.slots == LEASE_TARGET_MS * 8 // 1000 // TOKENS_PER_SLOT
    assert lease.deadline_ms == scene.world.now_ms + LEASE_SLACK * (60_000 + 120_000), "its work, and its longest row"


def test_throughput_is_measured_from_submissions() -> None:
    scene = Scene.started(slots_per_step=1000)
    scene.work("ann", took_ms=2000, tokens=64)
    assert scene.core.leases.throughput.get(scene.node("ann"), 0) == 32
    assert scene.lease("ann").slots > 10


def test_a_lease_fits_the_rows_and_bytes_of_one_file() -> None:
    scene = Scene.started(slots_per_step=2**16, samples_per_slot=64)
    assert compute_slots_max(scene.run.terms) == ROLLOUT_ROWS_MAX // 64
    long = scene.world.terms(samples_per_slot=16, output_tokens_max=2**15, prompt_tokens_max=16)
    assert 1 <= compute_slots_max(long) <= ROLLOUT_FILE_BYTES_MAX // (16 * 2**15 * 16)
    scene.measure("ann", 10**9)
    assert scene.lease("ann").slots == ROLLOUT_ROWS_MAX // 64


def test_a_lease_makes_no_file_that_validators_cannot_read_in_time() -> None:
    row = TERMS.prompt_tokens_max + TERMS.output_tokens_max
    verdict_ms = (5 * TERMS.samples_per_slot + 1) * row
    scene = Scene.started(slots_per_step=2**10, verdict_ms=verdict_ms, read_us_per_token=1000)
    assert compute_slots_max(scene.run.terms) == 5
    scene.measure("ann", 10**9)
    assert scene.lease("ann").slots == 5


def test_a_step_keeps_the_terms_of_its_first_lease() -> None:
    scene = Scene.started(slots_per_step=2**16, samples_per_slot=64)
    scene.measure("ann", 10**9)
    scene.lease("ann")
    scene.order(e.RunUpdated(terms=scene.world.terms(slots_per_step=2**16, samples_per_slot=1)))
    scene.measure("bob", 10**9)
    assert scene.lease("bob").slots == ROLLOUT_ROWS_MAX // 64


def test_a_lease_on_probation_is_a_small_part_of_the_step_however_fast_the_node_seems() -> None:
    scene = Scene.started(slots_per_step=64)
    scene.measure("ann", 10**9)
    assert scene.lease("ann").slots == 64 // PROBATION_STEP_PARTS


def test_leases_are_disjoint_and_a_full_step_says_when_to_ask_again() -> None:
    scene = Scene.started(audit_probation=0)
    scene.measure("ann", 100)
    lease = scene.lease("ann")
    assert (lease.first_slot, lease.slots) == (0, 8)
    reply = scene.ask("bob")
    assert reply.lease is None
    assert "fully leased" in reply.reason
    assert RETRY_MS <= reply.retry_ms <= RETRY_MS_MAX


def test_unsettled_work_is_capped_and_lower_on_probation() -> None:
    for probation, most in ((1000, LEASES_UNSETTLED_PROBATION_MAX), (0, LEASES_UNSETTLED_MAX)):
        scene = Scene.started(slots_per_step=1024, audit_probation=probation)
        for _ in range(most - 1):
            scene.work("ann", took_ms=50 * SECOND_MS)
        scene.lease("ann")
        assert "not settled" in scene.ask("ann").reason


def test_unsettled_work_of_a_node_is_capped_in_steps_too() -> None:
    scene = Scene.started(slots_per_step=4, audit_probation=0)
    scene.measure("ann", 10**6)
    for _ in range(UNSETTLED_STEPS_MAX):
        scene.submit(scene.lease("ann"))
        scene.publish()
    assert f"of {UNSETTLED_STEPS_MAX} steps" in scene.ask("ann").reason


def test_a_node_that_says_what_its_engine_holds_gets_several_leases_as_it_delivers() -> None:
    scene = Scene.started(slots_per_step=4096, audit_probation=0)
    samples = scene.run.terms.samples_per_slot
    assert scene.lease("ann", rows_at_once=256).slots == 1
    assert "probe" in scene.ask("ann", rows_at_once=256).reason
    held = 1
    for rows in (4 * samples, 16 * samples):
        scene.world.wait(2 * SECOND_MS)
        for lease in scene.beat("ann").leases:
            scene.submit(lease)
        held = 0
        while (reply := scene.ask("ann", rows_at_once=256)).lease is not None:
            held += reply.lease.slots * samples
        assert "in hand" in reply.reason
        assert held >= rows, "what it delivered, and three times as much again"


def test_an_expired_lease_halves_what_a_node_may_have_in_hand() -> None:
    scene = Scene.started(audit_probation=0, slots_per_step=4096)
    credits = scene.core.leases._credits
    scene.tick(GRACE_MS)
    scene.work("ann")
    known = credits.get(scene.node("ann"), 1)
    lease = scene.lease("ann", rows_at_once=10**9)
    scene.tick(lease.deadline_ms - scene.world.now_ms + 1)
    assert credits.get(scene.node("ann"), 1) == known // 2


def test_workers_that_ask_at_the_same_time_share_a_step() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=96, audit_probation=0)
    for name in ("ann", "bob", "cat"):
        scene.measure(name, 10**6)
        scene.core.leases._active[RUN].record(scene.node(name), 10**6, scene.world.now_ms)
    sizes = [scene.lease(name).slots for name in ("ann", "bob", "cat")]
    assert sizes == [32, 32, 32], "a third of the step: it takes no time worth cutting"


def test_a_fast_and_a_slow_worker_share_a_step_by_speed() -> None:
    scene = Scene.started(workers=("ann", "bob"), slots_per_step=100, audit_probation=0)
    for name, speed in (("ann", 9 * 10**5), ("bob", 10**5)):
        scene.measure(name, speed)
        scene.core.leases._active[RUN].record(scene.node(name), speed, scene.world.now_ms)
    assert [scene.lease(name).slots for name in ("ann", "bob")] == [90, 10]


def test_settled_work_makes_room_again() -> None:
    scene = Scene.started(slots_per_step=64)
    names = [scene.work("ann") for _ in range(LEASES_UNSETTLED_PROBATION_MAX)]
    assert scene.ask("ann").lease is None
    scene.judge(names[0])
    scene.lease("ann")


def test_an_expired_lease_is_ended_and_its_slots_are_given_to_another(scene: Scene) -> None:
    lease = scene.lease("ann")
    scene.tick(lease.deadline_ms - scene.world.now_ms)
    assert scene.run.leases
    scene.tick(1)
    assert not scene.run.leases
    assert scene.beat("ann").leases == ()
    assert scene.lease("bob").first_slot == lease.first_slot


def test_a_node_may_give_its_lease_back(scene: Scene) -> None:
    lease = scene.lease("ann")
    scene.send("ann", e.LeaseEnded(lease=lease.lease, reason="no memory"))
    assert scene.lease("bob").first_slot == lease.first_slot
    assert scene.lease("ann").lease == 2, "it may try again"


def test_leases_that_keep_running_out_cost_a_wait_that_ends(scene: Scene) -> None:
    scene.tick(GRACE_MS)
    for _ in range(FAILURES_FREE + 1):
        lease = scene.lease("ann")
        scene.tick(lease.deadline_ms - scene.world.now_ms + 1)
    reply = scene.ask("ann")
    assert "suspended" in reply.reason
    scene.world.wait(reply.retry_ms)
    scene.lease("ann")


def test_a_straggler_is_duplicated_once_when_no_slot_is_free() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann")
    life_ms = slow.deadline_ms - scene.world.now_ms
    scene.world.wait(int(STRAGGLER_SHARE * life_ms) - 1)
    assert scene.ask("bob").lease is None
    scene.world.wait(1)
    assert scene.ask("ann").lease is None, "not beside itself"
    twin = scene.lease("bob")
    assert (twin.first_slot, twin.slots, twin.speculative) == (slow.first_slot, slow.slots, True)
    assert scene.ask("cat").lease is None


def test_a_duplicated_straggler_is_not_duplicated_again_even_if_its_node_is_banned() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann")
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    assert scene.lease("bob").speculative
    scene.order(e.NodeStatusSet(node=scene.node("ann"), status=e.NodeStatus.BANNED, reason="x"), None)
    assert scene.ask("cat").lease is None


def test_a_duplicate_goes_to_a_node_that_finishes_before_the_stragglers_deadline() -> None:
    scene = Scene.started(workers=("ann", "bob"), slots_per_step=100, audit_probation=0)
    scene.measure("ann", 100)
    slow = scene.lease("ann")
    assert slow.slots == 100
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) * 9 // 10)
    scene.measure("bob", 1)
    assert scene.ask("bob").lease is None


def test_an_unmeasured_node_gets_no_duplicate_larger_than_a_probe() -> None:
    scene = Scene.started(workers=("ann", "bob"), slots_per_step=4, audit_probation=0)
    scene.measure("ann", 100)
    slow = scene.lease("ann")
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    assert scene.ask("bob", tokens_per_s=1000).lease is None


def test_slots_are_not_free_while_a_duplicate_has_them() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann")
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) * 3 // 4)
    twin = scene.lease("bob")
    scene.tick(slow.deadline_ms - scene.world.now_ms + 1)
    assert list(scene.run.leases) == [twin.lease]
    assert scene.ask("cat").lease is None
    name = scene.submit(twin)
    assert scene.ask("cat").lease is None, "nor while its answer is judged"
    scene.judge(name)
    assert scene.submission(name).credited
    assert scene.ask("cat").lease is None


def test_a_failed_duplicate_allows_another() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann", tokens_per_s=1)
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    name = scene.submit(scene.lease("bob"))
    for _ in range(2):
        scene.judge(name, lambda validator, name: Outcome.INVALID)
    assert scene.submission(name).outcome is Outcome.INVALID
    assert scene.lease("cat").speculative


def test_of_two_submissions_for_the_same_slots_one_is_credited() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann", tokens_per_s=1)
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    names = [scene.submit(scene.lease("bob")), scene.submit(slow)]
    for name in names:
        scene.judge(name)
    assert [scene.submission(name).outcome for name in names] == [Outcome.ACCEPT] * 2
    assert sum(scene.submission(name).credited for name in names) == 1
    scene.publish()
    assert scene.run.steps[slow.step].paid


def test_a_credited_straggler_is_not_duplicated() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1)
    slow = scene.lease("ann", tokens_per_s=1)
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    scene.judge(scene.submit(scene.lease("bob")))
    assert scene.ask("cat").lease is None


def test_leases_of_a_lost_or_banned_node_may_be_doubled_at_once() -> None:
    for is_ban in (False, True):
        scene = Scene.started(workers=("ann", "bob"), slots_per_step=1, output_tokens_max=512)
        scene.lease("ann", tokens_per_s=1)
        assert scene.ask("bob").lease is None
        if is_ban:
            scene.order(e.NodeStatusSet(node=scene.node("ann"), status=e.NodeStatus.BANNED, reason="x"), None)
        else:
            scene.tick(3 * MINUTE_MS)
        assert scene.lease("bob").speculative


def test_a_duplicate_is_not_duplicated_when_its_node_is_banned() -> None:
    scene = Scene.started(workers=("ann", "bob", "cat"), slots_per_step=1, output_tokens_max=512)
    slow = scene.lease("ann", tokens_per_s=1)
    scene.world.wait((slow.deadline_ms - scene.world.now_ms) // 2)
    assert scene.lease("bob", tokens_per_s=5).speculative
    scene.order(e.NodeStatusSet(node=scene.node("bob"), status=e.NodeStatus.BANNED, reason="x"), None)
    assert scene.ask("cat", tokens_per_s=5).lease is None


def test_a_lease_that_ran_out_while_we_were_away_costs_its_node_nothing() -> None:
    scene = Scene.started()
    for _ in range(FAILURES_FREE + 2):
        lease = scene.lease("ann")
        scene.world.wait(lease.deadline_ms - scene.world.now_ms + 1)
        scene.restart()
        scene.tick()
        assert not scene.run.leases
    scene.lease("ann")


def test_a_lease_that_would_end_too_late_is_not_granted() -> None:
    scene = Scene.started(workers=("ann", "bob"), lag_max=0, slots_per_step=64)
    for _ in range(3):
        scene.world.wait(9 * SECOND_MS)
        scene.publish()
    scene.lease("bob", tokens_per_s=100)
    assert "too late" in scene.ask("ann", tokens_per_s=1).reason


def test_a_lease_is_cut_to_the_time_that_is_left() -> None:
    scene = Scene.started(workers=("ann", "bob"), lag_max=0, slots_per_step=64)
    for _ in range(3):
        scene.world.wait(9 * SECOND_MS)
        scene.publish()
    scene.lease("bob")
    scene.measure("ann", 32)
    assert 1 <= scene.lease("ann").slots <= 10


def test_nothing_is_too_late_for_a_step_that_waits_for_work() -> None:
    scene = Scene.started(workers=("ann", "bob"), lag_max=0)
    for _ in range(3):
        scene.world.wait(9 * SECOND_MS)
        scene.publish()
    scene.lease("ann", tokens_per_s=1)
    scene.world.wait(10 * MINUTE_MS)
    scene.lease("bob", tokens_per_s=1)


def test_a_checkpoint_that_is_too_old_gets_no_lease(scene: Scene) -> None:
    scene.publish()
    scene.publish()
    assert "too old" in scene.ask("ann", checkpoint_step=0).reason
    scene.lease("ann", checkpoint_step=1)


def test_only_the_latest_step_is_leased(scene: Scene) -> None:
    old = scene.lease("ann")
    scene.publish()
    assert scene.lease("bob").step == old.step + 1
    scene.tick(old.deadline_ms - scene.world.now_ms + 1)
    assert scene.lease("cat").step == old.step + 1


def test_before_the_beacon_there_is_nothing_to_lease(scene: Scene) -> None:
    entry = make_checkpoint_entries((), step=e.Step(1), root=e.Digest(bytes(32)), manifest=e.Digest(bytes(32)))[1]
    scene.send("trainer", entry)
    assert "waits for a tree head" in scene.ask("ann").reason
    scene.tick(SECOND_MS)
    assert scene.lease("ann").step == 1


def test_a_paused_run_grants_no_leases_but_accepts_submissions(scene: Scene) -> None:
    lease = scene.lease("ann")
    scene.order(e.RunStatusSet(status=RunStatus.PAUSED, reason="upgrade"))
    assert "paused" in scene.ask("bob").reason
    scene.judge(scene.submit(lease))
    assert scene.run.steps[lease.step].credited == {0}
    scene.order(e.RunStatusSet(status=RunStatus.ACTIVE, reason=""))
    scene.lease("bob")


def test_leases_throughput_and_estimates_survive_a_restart(scene: Scene) -> None:
    scene.work("ann", took_ms=2000, tokens=64)
    scene.publish()
    scene.lease("bob")
    scene.lease("ann")
    before = scene.core.leases
    scene.restart()
    after = scene.core.leases
    assert after.throughput.get(scene.node("ann"), 0) == before.throughput.get(scene.node("ann"), 0)
    assert after._get_estimate(RUN) == before._get_estimate(RUN)
    for name in ("ann", "bob"):
        assert after.open_leases(RUN, scene.node(name)) == before.open_leases(RUN, scene.node(name))
    assert scene.ask("bob").lease is None, "its probe is still out"
