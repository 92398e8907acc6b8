"""What workers hear about their submissions and trainers about accepted work: all of it, in order, in bounded parts."""

import pytest

from prime_coordinator import updates
from prime_coordinator.core import Core
from prime_protocol.constants import ACCEPTED_LISTED_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.terms import TrainOn
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import RunReply, RunRequest, SubmissionUpdate
from prime_protocol.wire.messages import SubmissionStage as Stage
from prime_protocol.wire.typed_data import compute_receipt_id
from support.core_network import SECOND_MS, Scene
from support.ledger_network import RUN, STAKE, TERMS

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


@pytest.fixture
def scene() -> Scene:
    return Scene.started(slots_per_step=64)


class Listener:
    """A node that confirms what it hears."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene, self.name, self.seen = scene, name, 0

    def hear(self) -> list[SubmissionUpdate]:
        found = list(self.scene.beat(self.name, updates_seen=self.seen).updates)
        self.seen = found[-1].number if found else self.seen
        return found

    def stages(self) -> list[Stage]:
        return [update.stage for update in self.hear()]


def accepted(scene: Scene, after: int = 0) -> RunReply:
    return scene.core.get_run_facts(RUN, RunRequest(after=after), scene.world.now_ms)


def names(reply: RunReply) -> list[Digest]:
    return [compute_receipt_id(each.receipt) for each in reply.accepted]


# --- Workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_hears_of_every_stage_up_to_its_pay(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    assert ann.stages() == []
    name = scene.work("ann")
    assert ann.stages() == [Stage.RECEIVED]
    scene.tick(2 * SECOND_MS)
    scene.say(scene.drawn(name)[0], name, ACCEPT)
    assert ann.stages() == [Stage.CHECKED]
    scene.judge(name)
    (update,) = ann.hear()
    assert (update.submission, update.stage, update.reason) == (name, Stage.CREDITED, "")
    assert ann.stages() == [], "what was confirmed is not told again"
    scene.publish(name)
    scene.tick(SECOND_MS)
    assert ann.stages() == [Stage.PAID]


def test_an_update_is_told_until_it_is_confirmed_and_only_to_its_worker(scene: Scene) -> None:
    scene.work("ann")
    assert scene.beat("ann").updates == scene.beat("ann").updates != ()
    assert scene.beat("bob").updates == ()


def test_a_rejection_comes_with_the_first_validators_reason_and_evidence(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    name = scene.work("ann")
    for _ in range(2):
        scene.judge(name, lambda validator, _: INVALID)
    update = ann.hear()[-1]
    entry = scene.written(e.VerdictGiven)[0]
    assert update.stage is Stage.INVALID
    assert update.reason == f"invalid: {entry.reason or 'no reason was given'}; evidence {entry.receipt.evidence}"
    scene.restart()
    (again,) = ann.hear()
    assert (again.stage, again.reason) == (Stage.INVALID, ""), "the reason is in the log, not in the ledger's state"


def test_silence_of_the_validators_is_told_as_such(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    scene.work("ann")
    for _ in range(8):
        scene.tick(TERMS.verdict_ms)
    update = ann.hear()[-1]
    assert (update.stage, update.reason) == (Stage.INVALID, "no quorum of validators accepted it")


def test_a_slash_is_told_with_the_time_to_appeal_and_then_its_end(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    name = scene.work("ann")
    scene.judge(name, lambda validator, _: FRAUDULENT)
    update = ann.hear()[-1]
    assert (update.stage, update.appeal_until_ms) == (Stage.FRAUDULENT, scene.run.slashes[name].appeal_until_ms)
    assert update.reason.startswith("fraudulent: ")
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    (update,) = ann.hear()
    assert (update.stage, update.appeal_until_ms) == (Stage.FRAUDULENT, 0), "it is appealed already"
    scene.judge(name)
    assert ann.stages()[-1] is Stage.CREDITED


def test_an_executed_slash_is_told(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    scene.judge(scene.work("ann"), lambda validator, _: FRAUDULENT)
    scene.tick(TERMS.appeal_ms + SECOND_MS)
    update = ann.hear()[-1]
    assert update.stage is Stage.SLASHED
    assert update.reason.startswith("fraudulent: ")


def test_a_restarted_coordinator_tells_the_present_stages_with_higher_numbers(scene: Scene) -> None:
    ann = Listener(scene, "ann")
    first, second = scene.work("ann"), scene.work("bob")
    scene.judge(first)
    ann.hear()
    before = ann.seen
    for _ in range(2):
        scene.restart()
        found = scene.beat("ann", updates_seen=before).updates
        assert [(each.submission, each.stage) for each in found] == [(first, Stage.CREDITED)]
        assert found[0].number > before
    assert names(accepted(scene)) == [first]
    scene.judge(second)
    scene.publish(first)
    scene.tick(SECOND_MS)
    assert ann.stages()[-1] is Stage.PAID
    assert scene.beat("bob").updates[-1].submission == second


def test_a_long_absence_is_told_in_parts_and_costs_bounded_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "UPDATES_LISTED_MAX", 2)
    ann = Listener(scene, "ann")
    done = []
    for _ in range(5):
        done.append(scene.work("ann"))
        scene.judge(done[-1])
    told = [[update.submission for update in ann.hear()] for _ in range(4)]
    assert told == [done[:2], done[2:4], done[4:], []]
    monkeypatch.setattr(updates, "UPDATES_KEPT_MAX", 2)
    scene.restart()
    assert [update.submission for update in scene.beat("ann").updates] == done[-2:]


def test_the_account_in_a_reply_is_the_ledgers(scene: Scene) -> None:
    scene.join("new", e.Role.WORKER)
    account = scene.beat("new").account
    assert (account.stake_nano, account.stake_min_nano) == (STAKE, TERMS.stake_min_nano)
    assert (account.eligibility, account.is_eligible) == ("probing", True)
    scene.order(e.NodeStatusSet(node=scene.node("new"), status=e.NodeStatus.BANNED, reason="x"), None)
    account = scene.beat("new").account
    assert (account.eligibility, account.is_eligible, account.remedy) == ("banned", False, "the operator lifts the ban")


# --- Trainers ---------------------------------------------------------------------------------------------------------


def test_a_trainer_gets_what_was_accepted_since_it_last_asked(scene: Scene) -> None:
    assert accepted(scene).accepted == ()
    first, second = scene.work("ann"), scene.work("bob")
    scene.judge(first)
    reply = accepted(scene)
    assert names(reply) == [first]
    submission = scene.submission(first)
    each = reply.accepted[0]
    assert (each.first_slot, each.slots) == (submission.slots.start, len(submission.slots))
    assert each.receipt.checkpoint_root == scene.run.checkpoints[submission.checkpoint_step].root
    scene.judge(second)
    assert names(accepted(scene, each.number)) == [second]
    assert names(accepted(scene)) == [first, second]


def test_rejected_and_trained_work_is_not_offered_to_the_trainer(scene: Scene) -> None:
    good, bad = scene.work("ann"), scene.work("bob")
    scene.judge(good)
    spare = scene.work("ann")
    scene.judge(spare)
    for _ in range(2):
        scene.judge(bad, lambda validator, _: INVALID)
    assert names(accepted(scene)) == [good, spare]
    scene.publish(good)
    assert names(accepted(scene)) == [spare]
    for _ in range(TERMS.lag_max + 2):
        scene.publish()
        scene.tick(SECOND_MS)
    assert names(accepted(scene)) == [], "the ledger has dropped the step"


def test_where_the_terms_say_so_the_trainer_is_offered_audited_work_only() -> None:
    scene = Scene.started(slots_per_step=64, audit_probation=0, audit_floor=1, train_on=TrainOn.AUDITED)
    done = []
    while not done or scene.submission(done[-1]).rounds[0].validators:
        done.append(scene.work("ann"))
        scene.judge(done[-1])
    assert scene.submission(done[-1]).credited
    assert names(accepted(scene)) == done[:-1]


def test_a_long_list_comes_in_parts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    for _ in range(3):
        done.append(scene.work("ann"))
        scene.judge(done[-1])
    monkeypatch.setattr(updates, "ACCEPTED_LISTED_MAX", 2)
    reply = accepted(scene)
    assert names(reply) == done[:2]
    assert names(accepted(scene, reply.accepted[-1].number)) == done[2:]
    assert ACCEPTED_LISTED_MAX > 2


def test_a_run_says_whether_its_newest_step_has_work_left() -> None:
    scene = Scene.started(slots_per_step=1)
    assert (accepted(scene).latest_step, accepted(scene).is_exhausted) == (0, False)
    name = scene.work("ann")
    scene.judge(name)
    assert accepted(scene).is_exhausted
    scene.publish(name)
    reply = accepted(scene)
    assert (reply.latest_step, reply.is_exhausted, reply.terms) == (1, False, scene.run.terms)


def test_an_unknown_run_is_refused(scene: Scene) -> None:
    core: Core = scene.core
    with pytest.raises(RemoteError, match="not created"):
        core.get_run_facts(RunId("other"), RunRequest(after=0), 0)
