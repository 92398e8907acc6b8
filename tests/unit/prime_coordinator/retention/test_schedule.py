"""When files become due: not while the ledger can still decide something by them, then as long as the terms say."""

from dataclasses import dataclass, field

from prime_coordinator.retention.object_names import DAY_MS, FileKind, get_day, make_day_prefix, make_key
from prime_coordinator.retention.schedule import (
    FileChange,
    FileClaimed,
    FileReason,
    RetentionSchedule,
    StepReleased,
)
from prime_protocol.ledger.entries import Outcome, RunStatus
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.wire.ids import Digest, Step
from support.ledger_network import RUN, TERMS, World, digest


@dataclass
class Followed:
    """A world, and every change of the file table that its entries have caused."""

    world: World
    schedule: RetentionSchedule
    changes: list[FileChange] = field(default_factory=list)

    @classmethod
    def started(cls, **terms: int) -> "Followed":
        world = World.started(**terms)
        made = cls(world, RetentionSchedule(world.ledger))
        apply = world.ledger.apply

        def apply_leaf(leaf: bytes) -> None:
            entry = apply(leaf)
            world.leaves.append(leaf)
            made.schedule.record(entry, decode_leaf(leaf)[1].run)
            made.changes += made.schedule.drain()

        world.apply = apply_leaf  # type: ignore[method-assign]
        return made

    def released(self) -> list[StepReleased]:
        return [each for each in self.changes if isinstance(each, StepReleased)]

    def find_released(self, step: int) -> StepReleased | None:
        return next((each for each in self.released() if each.step == Step(step)), None)

    def claimed(self) -> dict[Digest, Step]:
        return {each.digest: each.step for each in self.changes if isinstance(each, FileClaimed)}

    def finish_step(self) -> None:
        """Two checkpoints later the step is too old to train on; then it is paid."""
        step = self.world.run.latest
        self.world.publish()
        self.world.publish()
        self.world.pay_out(step)


def test_every_file_that_an_entry_names_is_held_by_the_step_that_the_entry_is_about() -> None:
    followed = Followed.started()
    name = followed.world.settled("ann", Outcome.ACCEPT)
    claimed = followed.claimed()
    assert claimed[followed.world.submission(name).file_digest] == Step(0)
    assert len(claimed) > TERMS.quorum, "each verdict names evidence"
    followed.world.publish()
    assert followed.claimed()[digest("manifest 1")] == Step(1)


def test_a_file_has_no_due_time_while_its_step_can_be_trained_on_or_is_not_paid() -> None:
    followed = Followed.started()
    world = followed.world
    world.settled("ann", Outcome.ACCEPT)
    world.publish()
    world.pay_out(0)
    assert not followed.released(), "paid, but the next checkpoint may be trained on it"
    world.publish()
    (released,) = followed.released()
    assert (released.run, released.step) == (RUN, Step(0))


def test_the_files_of_a_settled_step_are_kept_as_long_as_its_terms_say() -> None:
    followed = Followed.started()
    world = followed.world
    world.settled("ann", Outcome.ACCEPT)
    settled_ms = world.run.steps[Step(0)].settled_ms
    followed.finish_step()
    (released,) = followed.released()
    assert released.until_ms[FileReason.ROLLOUTS] == settled_ms + TERMS.rollouts_kept_ms
    assert released.until_ms[FileReason.EVIDENCE] == settled_ms + TERMS.evidence_kept_ms
    assert released.until_ms[FileReason.MANIFESTS] == settled_ms + TERMS.checkpoints_kept_ms
    assert released.until_ms[FileReason.SLASHES] > max(
        released.until_ms[each] for each in FileReason if each in released.until_ms and each is not FileReason.SLASHES
    ), "the evidence of slashes is kept longest"
    assert released.slashed == ()


def test_a_step_that_is_paid_long_after_its_files_could_go_keeps_them_until_then() -> None:
    followed = Followed.started()
    world = followed.world
    world.settled("ann", Outcome.ACCEPT)
    world.wait(2 * TERMS.rollouts_kept_ms)
    followed.finish_step()
    (released,) = followed.released()
    assert released.until_ms[FileReason.ROLLOUTS] == world.state.at_ms


def test_an_open_slash_holds_the_files_of_its_step_and_its_end_is_what_they_are_counted_from() -> None:
    followed = Followed.started()
    world = followed.world
    name = world.settled("ann", Outcome.FRAUDULENT)
    world.propose(name)
    followed.finish_step()
    world.wait(TERMS.appeal_ms)
    world.publish()
    assert followed.find_released(0) is None, "it can be appealed, or is"
    world.execute(name)
    assert followed.find_released(0) is None, "the ledger forgets a step with the next checkpoint or payout"
    world.publish()
    released = followed.find_released(0)
    assert released is not None
    assert released.slashed == (str(name),)
    assert released.until_ms[FileReason.SLASHES] == world.state.at_ms + TERMS.slash_evidence_kept_ms


def test_a_finding_holds_the_files_of_its_step_until_it_is_dismissed() -> None:
    followed = Followed.started(audit_probation=0, audit_floor=1)
    world = followed.world
    name = world.not_drawn("ann")
    world.deposit("eve", 10 * TERMS.finding_bond_nano)
    world.file_finding("eve", name)
    assert digest("bundle") in followed.claimed()
    followed.finish_step()
    world.publish()
    assert followed.find_released(0) is None
    world.agree(name, Outcome.ACCEPT)
    world.dismiss(name)
    world.publish()
    assert followed.find_released(0) is not None


def test_a_closed_run_releases_its_last_steps_once_they_are_paid() -> None:
    followed = Followed.started()
    world = followed.world
    world.settled("ann", Outcome.ACCEPT)
    world.set_run(RunStatus.CLOSED)
    assert not followed.released()
    world.pay_out(0)
    assert [each.step for each in followed.released()] == [Step(0)]


def test_a_checkpoint_without_any_work_releases_its_manifest_when_it_is_too_old() -> None:
    followed = Followed.started()
    for _ in range(3):
        followed.world.publish()
    assert [each.step for each in followed.released()] == [Step(0), Step(1)]
    assert not followed.schedule.is_held(RUN, Step(1))
    assert followed.schedule.is_held(RUN, Step(2))


def test_after_a_restart_the_same_steps_are_held_and_no_change_is_made_twice() -> None:
    followed = Followed.started()
    world = followed.world
    name = world.settled("ann", Outcome.FRAUDULENT)
    world.propose(name)
    followed.finish_step()
    again = RetentionSchedule(world.ledger)
    assert again.drain() == []
    assert again.is_held(RUN, Step(0))
    followed.schedule = again
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    world.publish()
    (released,) = [each for each in followed.released() if each.step == Step(0)]
    assert released.slashed == (str(name),)


def test_the_files_of_a_step_that_the_ledger_does_not_have_are_kept_from_now_on() -> None:
    followed = Followed.started()
    released = followed.schedule.release_forgotten(RUN, Step(77), now_ms=5)
    assert released.until_ms[FileReason.ROLLOUTS] == 5 + TERMS.rollouts_kept_ms


def test_an_object_is_named_by_the_day_of_its_lease() -> None:
    name = Digest(bytes([0xAB] * 32))
    at_ms = 20_775 * DAY_MS + 5
    assert make_key(FileKind.ROLLOUTS, get_day(at_ms), name) == f"rollouts/2026/11/18/ab/{name.hex()}"
    assert make_day_prefix(FileKind.EVIDENCE, get_day(at_ms)) == "evidence/2026/11/18"
    assert make_key(FileKind.MANIFESTS, 7, name) == f"manifests/ab/{name.hex()}"
