"""Consequences of many submissions in one tick share entries, and none waits for another."""

from dataclasses import replace

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingFiled, FindingUpheld, Outcome
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import SubmissionStage
from prime_protocol.wire.typed_data import compute_receipt_id
from support.core_network import SECOND_MS, Scene
from support.ledger_network import DAY_MS, RUN, digest

WORKERS = tuple(f"worker-{number}" for number in range(12))


def start(**terms: object) -> Scene:
    plan = {"audit_probation": 0, "quorum": 1, "slots_per_step": 2**14, "vesting_ms": DAY_MS} | terms
    return Scene.started(workers=WORKERS, **plan)


def submit_all(scene: Scene) -> list[Digest]:
    return [scene.work(worker) for worker in WORKERS]


def say_all(scene: Scene, names: list[Digest]) -> None:
    """Everybody who was drawn accepts; nothing is acted on yet."""
    for name in names:
        for validator in scene.drawn(name):
            scene.say(validator, name, Outcome.ACCEPT)


def test_the_outcomes_of_one_tick_share_one_entry() -> None:
    scene = start()
    names = submit_all(scene)
    scene.tick(2 * SECOND_MS)
    say_all(scene, names)
    assert not scene.written(e.Settled)
    scene.tick()
    (entry,) = scene.written(e.Settled)
    assert [each.submission for each in entry.settled] == names, "in the order of the log"
    assert entry.list_credited() == names
    assert not scene.written(e.Credited)


def test_what_a_draw_spares_shares_one_entry_and_what_it_falls_on_is_audited_at_once() -> None:
    scene = start()
    first = submit_all(scene)
    scene.tick(2 * SECOND_MS)
    say_all(scene, first)
    scene.tick()
    second = submit_all(scene)
    scene.tick(2 * SECOND_MS)
    (entry,) = scene.written(e.AcceptedUnaudited)
    drawn = [each.submission for each in scene.written(e.AuditDrawn) if each.submission in second]
    assert drawn, "the streak of a worker is 1, so half are audited"
    assert [*entry.submissions] == [name for name in second if name not in drawn]
    assert entry.list_credited() == [*entry.submissions]
    for name in entry.submissions:
        assert scene.submission(name).credited
        worker = scene.world.names[scene.submission(name).node]
        (update,) = [each for each in scene.beat(worker).updates if each.submission == name]
        assert update.stage is SubmissionStage.CREDITED, "the worker hears with its next heartbeat"
    accepted = {each.receipt.file_digest for each in scene.core.updates.list_accepted(RUN, 0)}
    assert {scene.submission(name).file_digest for name in entry.submissions} <= accepted, "and the trainer"


def test_a_restart_writes_nothing_twice() -> None:
    scene = start()
    first = submit_all(scene)
    scene.tick(2 * SECOND_MS)
    say_all(scene, first)
    scene.restart()
    scene.tick()
    (entry,) = scene.written(e.Settled)
    assert [each.submission for each in entry.settled] == first
    size = scene.state.size
    scene.restart()
    scene.tick()
    assert scene.state.size == size


def submit_rival(scene: Scene, lease: e.LeaseGranted) -> Digest:
    """An answer of another worker to the same slots, before that of their holder."""
    writer, now_ms = scene.core.entry_writer, scene.world.now_ms
    number = scene.run.lease_next
    rival = replace(lease, lease=number, node=scene.node(WORKERS[1]), speculative=True)
    writer.append_own(rival, RUN, now_ms)
    entry = scene.world.answer(number)
    writer.append_own(entry, RUN, now_ms, key=scene.world.key(WORKERS[1]))
    name = compute_receipt_id(entry.receipt)
    scene.core.audits.mark_ready(RUN, name)
    return name


def test_an_answer_without_credit_is_credited_when_the_other_loses_it() -> None:
    scene = start()
    late_lease = scene.lease(WORKERS[0])
    early = submit_rival(scene, late_lease)
    late = scene.submit(late_lease)
    scene.tick(2 * SECOND_MS)
    say_all(scene, [early, late])
    scene.core.tick(scene.world.now_ms)
    (entry,) = scene.written(e.Settled)
    assert entry.uncredited == (late,)
    assert not scene.submission(late).credited
    eve, bond_nano = scene.node("eve"), scene.run.terms.finding_bond_nano
    scene.order(e.Deposited(account=eve, amount_nano=bond_nano, reference=digest("eve's bond")), None)
    scene.send("eve", FindingFiled(submission=early, evidence=digest("bundle"), reason=""))
    while not scene.written(FindingUpheld):
        scene.tick(2 * SECOND_MS)
        for validator in scene.drawn(early):
            scene.say(validator, early, Outcome.FRAUDULENT)
        scene.tick(SECOND_MS)
    scene.tick(SECOND_MS)
    assert [each.submission for each in scene.written(e.Credited)] == [late]
    assert scene.submission(late).credited
