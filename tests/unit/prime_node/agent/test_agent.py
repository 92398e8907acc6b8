"""What a node decides, event by event. The whole of it under loss and crashes is in tests/sim."""

from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any, TypeVar

from prime_node.agent.agent import STOP_MS, Agent
from prime_node.agent.events import (
    Audit,
    AuditDone,
    AuditFailed,
    AuditFinding,
    CancelGeneration,
    CheckTreeHead,
    DrainRequested,
    Effect,
    Event,
    FinishedFile,
    Generate,
    Generated,
    GenerationFailed,
    GenerationProgressed,
    HoldChanged,
    LoadWeights,
    ReplyReceived,
    SavedState,
    SaveState,
    Send,
    SendRefused,
    SendTimedOut,
    SlashReported,
    StakeMissing,
    Started,
    Stop,
    StopRequested,
    Tick,
    WeightsFailed,
    WeightsReady,
)
from prime_node.agent.outbox import NodeProfile
from prime_protocol.constants import READ_PROOF_BYTES
from prime_protocol.ledger.entries import (
    Appealed,
    Inspected,
    LeaseEnded,
    LeaseGranted,
    NodeRegistered,
    Outcome,
    Role,
    Staked,
    Submitted,
    VerdictGiven,
)
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Slot, Step
from prime_protocol.wire.messages import (
    AuditTask,
    CheckpointRef,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
    NodeCommand,
)
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import compute_receipt_id

E = TypeVar("E")
NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
KEY = WalletKey.from_secret(sha256(b"a node").digest())
START_MS = 1_800_000_000_000
WORKER, VALIDATOR = (Role.WORKER,), (Role.VALIDATOR,)


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def node(text: str) -> NodeId:
    return NodeId(digest(text)[:20])


def weights(step: int = 0) -> CheckpointRef:
    beacon = digest(f"beacon {step}")
    return CheckpointRef(
        step=Step(step), root=digest(f"root {step}"), manifest=digest(f"manifest {step}"), beacon=beacon
    )


def grant(lease: int = 0, slots: int = 1, step: int = 0, minutes: int = 5) -> LeaseGranted:
    return LeaseGranted(
        lease=lease,
        node=KEY.node,
        step=Step(step),
        first_slot=Slot(0),
        slots=slots,
        deadline_ms=START_MS + minutes * 60_000,
        speculative=False,
    )


def task(name: str = "theirs") -> AuditTask:
    return AuditTask(
        submission=digest(name),
        round=0,
        seed=digest("seed"),
        file_digest=digest("file"),
        lease=9,
        node=NodeId(bytes(20)),
        step=Step(0),
        checkpoint_root=digest("root 0"),
        first_slot=0,
        slots=1,
        deadline_ms=START_MS + 60_000,
    )


def made(name: str = "file") -> FinishedFile:
    return FinishedFile(
        checkpoint_root=digest("root 0"),
        file_digest=digest(name),
        rollout_root=digest(f"rows of {name}"),
        file_bytes=10,
        output_tokens=10,
        context_tokens=10,
    )


FINDING = AuditFinding(outcome=Outcome.FRAUDULENT, reason="", metrics=(), evidence=digest("evidence"))


class Shell:
    """Drives an agent by hand; what it sent and wants is kept until it is asked for."""

    def __init__(self, roles: tuple[Role, ...] = WORKER, memory: SavedState | None = None, **profile: Any) -> None:
        self.now_ms = START_MS
        self.agent = Agent(KEY, NodeProfile(network=NETWORK, run=RUN, roles=roles, **profile), Random(1))
        self.effects: list[Effect] = []
        self.tell(Started(memory or SavedState()))

    def tell(self, event: Event) -> None:
        self.effects += self.agent.handle(event, self.now_ms)

    def wait(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self.agent.wake_ms <= end_ms:
            self.now_ms = self.agent.wake_ms
            self.tell(Tick())
        self.now_ms = end_ms

    def pop(self, kind: type[E]) -> list[E]:
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def sent(self, kind: type) -> list[Send]:
        found = [effect for effect in self.effects if isinstance(effect, Send) and isinstance(effect.message, kind)]
        self.effects = [effect for effect in self.effects if effect not in found]
        return found

    def reply(self, send: Send, reply: Any) -> None:
        self.tell(ReplyReceived(send.request, reply))

    def refuse(self, send: Send, field: str, code: RefusalCode = RefusalCode.MALFORMED) -> None:
        refusal = Refusal(code=code, field=field, problem="no", retry_after_ms=0, now_ms=self.now_ms)
        self.tell(SendRefused(send.request, refusal))

    def beat(self, **changes: Any) -> None:
        """Wait for the next heartbeat and answer it."""
        self.sent(Heartbeat)
        while not (beats := self.sent(Heartbeat)):
            self.wait(100)
        self.answer(beats[0], **changes)

    def answer(self, beat: Send, **changes: Any) -> None:
        said: dict[str, Any] = {
            "now_ms": self.now_ms,
            "next_heartbeat_ms": 10_000,
            "head": b"",
            "weights": weights(),
            "lag_max": 1,
            "leases": (),
            "audits": (),
            "command": NodeCommand.NONE,
            "version_min": 1,
            "upgrade_by_ms": 0,
        }
        self.reply(beat, HeartbeatReply(**said | changes))

    def ready(self) -> "Shell":
        """A worker with weights, about to ask for work."""
        self.beat()
        self.pop(LoadWeights)
        self.tell(WeightsReady(Step(0), digest("root 0")))
        return self

    def lease(self, lease: LeaseGranted) -> None:
        self.reply(self.sent(LeaseRequest)[0], LeaseReply(lease=lease, retry_ms=0, reason=""))

    def memory(self) -> SavedState:
        return self.pop(SaveState)[-1].state


# --- Joining --------------------------------------------------------------------------------------------------------


def test_an_unknown_node_registers_and_then_stakes() -> None:
    shell = Shell(stake_nano=7)
    shell.wait(2_000)
    shell.refuse(shell.sent(Heartbeat)[0], "node")
    registration = shell.sent(NodeRegistered)[0]
    assert registration.run is None
    shell.reply(registration, EntryReply(index=1, at_ms=START_MS))
    shell.answer(shell.sent(Heartbeat)[0])
    assert [send.message for send in shell.sent(Staked)] == [Staked(node=KEY.node, amount_nano=7)]


def test_a_silent_coordinator_is_asked_less_and_less_often() -> None:
    shell = Shell()
    gaps, last_ms = [], shell.now_ms
    for _ in range(7):
        while not (beats := shell.sent(Heartbeat)):
            shell.wait(50)
        gaps.append(shell.now_ms - last_ms)
        last_ms = shell.now_ms
        shell.tell(SendTimedOut(beats[0].request))
    assert gaps[-1] > 8 * gaps[1]
    assert gaps[-1] <= 30_100


def test_only_one_entry_is_on_its_way_at_a_time() -> None:
    shell = Shell(VALIDATOR, audits_at_once=2)
    shell.beat(audits=(task("a"), task("b")))
    for audit in shell.pop(Audit):
        shell.tell(AuditDone(audit.task.submission, FINDING))
    first = shell.sent(VerdictGiven)
    assert len(first) == 1
    shell.reply(first[0], EntryReply(index=1, at_ms=START_MS))
    assert len(shell.sent(VerdictGiven)) == 1


# --- Work -----------------------------------------------------------------------------------------------------------


def test_a_lease_is_generated_signed_saved_and_then_sent() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    assert shell.pop(Generate)[0].beacon == digest("beacon 0")
    shell.pop(SaveState)
    shell.tell(Generated(0, made()))
    kinds = [type(effect) for effect in shell.effects if isinstance(effect, SaveState | Send)]
    assert kinds[:2] == [SaveState, Send]
    send = shell.sent(Submitted)[0]
    assert send.file == digest("file")
    assert send.message.receipt.lease == 0


def test_a_restarted_node_sends_the_answer_it_had_and_makes_no_other() -> None:
    before = Shell().ready()
    before.lease(grant())
    before.tell(Generated(0, made()))
    after = Shell(memory=before.memory())
    assert after.sent(Submitted)[0].message.receipt.file_digest == digest("file")
    after.beat(leases=(grant(),))
    after.tell(WeightsReady(Step(0), digest("root 0")))
    assert after.pop(Generate) == []


def test_a_restarted_node_takes_up_the_leases_it_forgot() -> None:
    shell = Shell()
    shell.beat(leases=(grant(3),))
    shell.tell(WeightsReady(Step(0), digest("root 0")))
    assert shell.pop(Generate)[0].lease == grant(3)


def test_an_answer_without_reply_is_sent_again_with_the_same_bytes() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(Generated(0, made()))
    first = shell.sent(Submitted)[0]
    shell.tell(SendTimedOut(first.request))
    shell.wait(3_000)
    again = shell.sent(Submitted)[0]
    assert again.message == first.message
    assert again.request != first.request


def test_an_answer_that_was_overtaken_is_sent_again_and_one_that_was_refused_is_not() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(Generated(0, made()))
    shell.refuse(shell.sent(Submitted)[0], "Letter.sequence")
    shell.wait(3_000)
    shell.refuse(shell.sent(Submitted)[0], "receipt.lease")
    shell.wait(60_000)
    assert shell.sent(Submitted) == []


def test_the_lease_of_a_refused_file_is_given_back() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(Generated(0, made()))
    shell.refuse(shell.sent(Submitted)[0], "receipt.file_digest")
    assert shell.sent(LeaseEnded)[0].message.lease == 0


def test_work_that_ends_after_its_deadline_is_dropped() -> None:
    shell = Shell().ready()
    shell.lease(grant(minutes=1))
    shell.wait(61_000)
    assert shell.pop(CancelGeneration) == [CancelGeneration(0)]
    shell.tell(Generated(0, made()))
    assert shell.sent(Submitted) == []


def test_a_lease_that_cannot_be_done_in_time_is_given_back() -> None:
    shell = Shell().ready()
    shell.lease(grant(0))
    shell.wait(50_000)
    shell.tell(Generated(0, made()))
    shell.lease(grant(1, slots=100, minutes=3))
    assert shell.pop(Generate)[1:] == []
    shell.reply(shell.sent(Submitted)[0], EntryReply(index=1, at_ms=shell.now_ms))
    assert shell.sent(LeaseEnded)[0].message.lease == 1


def test_the_next_lease_is_fetched_before_the_first_is_done() -> None:
    shell = Shell().ready()
    shell.lease(grant(0))
    shell.wait(20_000)
    shell.tell(Generated(0, made()))
    shell.lease(grant(1, slots=2))
    assert shell.sent(LeaseRequest) == []
    shell.wait(31_000)
    assert len(shell.sent(LeaseRequest)) == 1


def test_a_lease_that_the_coordinator_has_ended_is_abandoned_but_a_newer_one_is_kept() -> None:
    shell = Shell().ready()
    beats = []
    while not beats:
        shell.wait(100)
        beats = shell.sent(Heartbeat)
    shell.now_ms += 10
    shell.lease(grant())
    shell.answer(beats[0], leases=())
    assert shell.pop(CancelGeneration) == []
    shell.beat(leases=())
    assert shell.pop(CancelGeneration) == [CancelGeneration(0)]


def test_a_refused_request_is_repeated_with_growing_pauses_until_a_new_step_begins() -> None:
    shell = Shell().ready()
    shell.reply(shell.sent(LeaseRequest)[0], LeaseReply(lease=None, retry_ms=20_000, reason="fully leased"))
    shell.wait(5_000)
    assert shell.sent(LeaseRequest) == []
    shell.beat(weights=weights(1))
    assert len(shell.sent(LeaseRequest)) == 1


def test_a_lease_of_an_unknown_step_makes_the_node_beat_at_once() -> None:
    shell = Shell().ready()
    shell.sent(Heartbeat)
    shell.lease(grant(step=1))
    assert len(shell.sent(Heartbeat)) == 1
    assert shell.pop(Generate) == []


def test_generation_that_fails_gives_the_lease_back() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(GenerationFailed(0, "out of memory"))
    assert shell.sent(LeaseEnded)[0].message.reason == "out of memory"


def test_new_weights_are_fetched_while_a_lease_is_done_and_taken_with_the_next_one() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    assert [begun.checkpoint_root for begun in shell.pop(Generate)] == [digest("root 0")]
    shell.beat(weights=weights(1), leases=(grant(),))
    assert shell.pop(LoadWeights) == [LoadWeights(weights(1))], "while the first lease is being done"
    shell.tell(WeightsReady(Step(1), digest("root 1")))
    assert (shell.pop(CancelGeneration), shell.pop(Generate)) == ([], []), "which goes on with what it began with"
    shell.tell(Generated(0, made()))
    shell.lease(grant(1, step=1))
    assert [begun.checkpoint_root for begun in shell.pop(Generate)] == [digest("root 1")]


def test_weights_that_could_not_be_fetched_are_asked_for_again() -> None:
    shell = Shell()
    shell.beat()
    assert len(shell.pop(LoadWeights)) == 1
    shell.tell(WeightsFailed(Step(0)))
    shell.beat()
    assert len(shell.pop(LoadWeights)) == 1


# --- Audits ---------------------------------------------------------------------------------------------------------


def test_an_audit_ends_in_one_verdict_however_often_it_is_listed() -> None:
    shell = Shell(VALIDATOR)
    shell.beat(audits=(task(),))
    shell.tell(AuditDone(shell.pop(Audit)[0].task.submission, FINDING))
    shell.reply(shell.sent(VerdictGiven)[0], EntryReply(index=1, at_ms=START_MS))
    shell.beat(audits=(task(),))
    assert shell.pop(Audit) == []


def test_an_audit_that_breaks_says_nothing_and_is_tried_again() -> None:
    shell = Shell(VALIDATOR)
    shell.beat(audits=(task(),))
    shell.tell(AuditFailed(shell.pop(Audit)[0].task.submission))
    assert shell.sent(VerdictGiven) == []
    tries_ms = []
    for _ in range(4):
        shell.beat(audits=(task(),))
        for audit in shell.pop(Audit):
            tries_ms.append(shell.now_ms - START_MS)
            shell.tell(AuditFailed(audit.task.submission))
    assert len(tries_ms) == 2, "at the next beat, and then after a longer pause"


def test_the_evidence_of_a_rejection_goes_before_its_verdict() -> None:
    shell = Shell(VALIDATOR, audits_at_once=2)
    shell.beat(audits=(task("bad"), task("good")))
    shell.tell(AuditDone(digest("bad"), replace(FINDING, has_bundle=True)))
    shell.tell(AuditDone(digest("good"), FINDING))
    (first,) = shell.sent(VerdictGiven)
    assert first.file == FINDING.evidence
    shell.reply(first, EntryReply(index=1, at_ms=START_MS))
    assert shell.sent(VerdictGiven)[0].file is None


def test_a_restarted_validator_does_not_judge_again_what_it_has_signed() -> None:
    before = Shell(VALIDATOR)
    before.beat(audits=(task(),))
    before.tell(AuditDone(before.pop(Audit)[0].task.submission, FINDING))
    after = Shell(VALIDATOR, memory=before.memory())
    after.beat(audits=(task(),))
    assert after.pop(Audit) == []
    assert len(after.sent(VerdictGiven)) == 1


def test_an_inspection_ends_in_what_others_must_have_seen_and_in_no_verdict() -> None:
    asked = replace(task(), readers=(node("b"), node("a"), node("c")))
    seen = {node("b"): bytes(READ_PROOF_BYTES), node("a"): b"\1" * READ_PROOF_BYTES, node("c"): b""}
    before = Shell(VALIDATOR)
    before.beat(audits=(asked,))
    before.tell(AuditDone(before.pop(Audit)[0].task.submission, replace(FINDING, read_proofs=seen)))
    for shell in (before, Shell(VALIDATOR, memory=before.memory())):
        shell.beat(audits=(asked,))
        assert shell.pop(Audit) == []
        assert shell.sent(VerdictGiven) == []
        (sent,) = shell.sent(Inspected)
        assert (sent.message.submission, sent.file) == (asked.submission, None)
        assert {each.reader: each.read_proof for each in sent.message.seen} == {
            reader: looks for reader, looks in seen.items() if looks
        }
        assert [each.reader for each in sent.message.seen] == sorted([node("a"), node("b")])


def test_a_verdict_has_the_looks_of_its_own_author_alone() -> None:
    shell = Shell(VALIDATOR)
    shell.beat(audits=(task(),))
    looks = {KEY.node: b"\2" * READ_PROOF_BYTES, node("a"): b"\1" * READ_PROOF_BYTES}
    shell.tell(AuditDone(shell.pop(Audit)[0].task.submission, replace(FINDING, read_proofs=looks)))
    assert shell.sent(VerdictGiven)[0].message.read_proof == b"\2" * READ_PROOF_BYTES


# --- Punishment and commands ----------------------------------------------------------------------------------------


def test_a_node_appeals_for_its_own_work_and_for_nobody_elses() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(Generated(0, made()))
    send = shell.sent(Submitted)[0]
    shell.reply(send, EntryReply(index=1, at_ms=START_MS))
    own = compute_receipt_id(send.message.receipt)
    shell.tell(SlashReported(digest("theirs"), START_MS + 60_000))
    shell.tell(SlashReported(own, START_MS + 60_000))
    shell.tell(SlashReported(own, START_MS + 60_000))
    assert [send.message.submission for send in shell.sent(Appealed)] == [own]


def test_a_node_appeals_for_work_that_only_its_journal_remembers() -> None:
    shell = Shell().ready()
    shell.tell(SlashReported(digest("long ago"), START_MS + 60_000, is_own=True))
    assert [send.message.submission for send in shell.sent(Appealed)] == [digest("long ago")]


def test_a_run_that_asks_for_more_stake_gets_it() -> None:
    shell = Shell()
    shell.tell(StakeMissing(9))
    assert shell.sent(Staked) == [], "not before the coordinator knows this node"
    shell.beat()
    (send,) = shell.sent(Staked)
    assert send.message.amount_nano == 9
    shell.tell(StakeMissing(0))
    shell.wait(60_000)
    assert shell.sent(Staked) == []


# --- The owner ------------------------------------------------------------------------------------------------------


def test_a_held_node_finishes_what_it_has_and_takes_no_more_until_it_is_released() -> None:
    shell = Shell((Role.VALIDATOR, Role.WORKER)).ready()
    shell.lease(grant())
    shell.tell(HoldChanged("it is day"))
    assert (shell.agent.activity, shell.agent.control.hold_reason) == (NodeActivity.DRAINING, "it is day")
    shell.beat(leases=(grant(),), audits=(task(),))
    assert (shell.pop(CancelGeneration), shell.pop(Audit)) == ([], [])
    shell.tell(Generated(0, made()))
    shell.reply(shell.sent(Submitted)[0], EntryReply(index=1, at_ms=START_MS))
    shell.wait(20_000)
    assert (shell.sent(LeaseRequest), shell.pop(Stop)) == ([], [])
    shell.tell(HoldChanged(""))
    assert len(shell.sent(LeaseRequest)) == 1
    assert len(shell.pop(Audit)) == 1


def test_a_node_that_drains_ends_when_the_last_answer_is_in_the_log() -> None:
    shell = Shell().ready()
    request = shell.sent(LeaseRequest)[0]
    shell.tell(DrainRequested())
    shell.reply(request, LeaseReply(lease=grant(), retry_ms=0, reason=""))
    assert len(shell.pop(Generate)) == 1, "it was on its way, so it is in hand"
    shell.tell(Generated(0, made()))
    assert shell.pop(Stop) == []
    shell.reply(shell.sent(Submitted)[0], EntryReply(index=1, at_ms=START_MS))
    assert shell.pop(Stop)[0] == Stop("")
    assert shell.sent(LeaseRequest) == []


def test_an_idle_node_that_drains_ends_at_once() -> None:
    shell = Shell(VALIDATOR)
    shell.beat()
    shell.tell(DrainRequested())
    assert shell.pop(Stop) == [Stop("")]


def test_a_node_that_is_stopped_gives_back_what_it_holds_whatever_the_coordinator_says() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(StopRequested())
    assert shell.pop(CancelGeneration) == [CancelGeneration(0)]
    assert shell.pop(Stop) == []
    shell.beat(leases=(grant(),))
    assert shell.pop(Generate)[1:] == [], "a reply that is older than the log lists it still"
    shell.reply(shell.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=START_MS))
    assert shell.pop(Stop)[0] == Stop("")
    assert shell.sent(LeaseRequest) == []


def test_a_node_that_is_stopped_with_nothing_in_hand_ends_at_once() -> None:
    shell = Shell(VALIDATOR)
    shell.tell(StopRequested())
    assert shell.pop(Stop) == [Stop("")]


def test_a_lease_that_was_given_back_is_not_taken_up_again_even_after_a_restart() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.tell(GenerationFailed(0, "out of memory"))
    memory = shell.memory()
    shell.beat(leases=(grant(),))
    assert len(shell.pop(Generate)) == 1
    after = Shell(memory=memory)
    after.beat(leases=(grant(),))
    after.tell(WeightsReady(Step(0), digest("root 0")))
    assert after.pop(Generate) == []


def test_a_node_that_cannot_do_its_work_asks_less_and_less_often() -> None:
    shell = Shell().ready()
    gaps = []
    for number in range(5):
        asked_ms = shell.now_ms
        shell.lease(grant(number, minutes=90))
        shell.tell(GenerationFailed(number, "no memory"))
        shell.reply(shell.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=shell.now_ms))
        while not [each for each in shell.effects if isinstance(each, Send) and isinstance(each.message, LeaseRequest)]:
            shell.wait(500)
        gaps.append(shell.now_ms - asked_ms)
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_the_time_that_an_engine_takes_to_start_is_not_a_nodes_pace() -> None:
    shell = Shell().ready()
    shell.lease(grant(0))
    shell.wait(50_000)
    shell.tell(GenerationProgressed(0, rows_done=0, rows=2))
    shell.wait(1_000)
    shell.tell(Generated(0, made()))
    shell.lease(grant(1, slots=100, minutes=3))
    assert len(shell.pop(Generate)) == 2, "a hundred seconds of work, and two minutes of time"


def test_work_that_falls_too_far_behind_is_given_back_early() -> None:
    shell = Shell().ready()
    shell.lease(grant(minutes=4))
    shell.tell(GenerationProgressed(0, rows_done=0, rows=16))
    shell.wait(60_000)
    shell.tell(GenerationProgressed(0, rows_done=3, rows=16))
    assert shell.pop(CancelGeneration) == [], "at twice the pace it could still be done"
    shell.wait(30_000)
    shell.tell(GenerationProgressed(0, rows_done=3, rows=16))
    assert shell.pop(CancelGeneration) == [CancelGeneration(0)]
    assert "before its deadline" in shell.sent(LeaseEnded)[0].message.reason
    shell.tell(GenerationProgressed(0, rows_done=4, rows=16))
    assert shell.sent(LeaseEnded) == []


def test_the_speed_that_a_node_names_is_the_one_it_measured() -> None:
    shell = Shell(tokens_per_s=3).ready()
    (first,) = shell.sent(LeaseRequest)
    assert first.message.tokens_per_s == 3
    shell.reply(first, LeaseReply(lease=grant(), retry_ms=0, reason=""))
    shell.wait(2_000)
    shell.tell(Generated(0, made()))
    assert shell.sent(LeaseRequest)[0].message.tokens_per_s == 5


def test_a_drained_node_finishes_what_it_has_begun_and_asks_for_no_more() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.beat(leases=(grant(),), command=NodeCommand.DRAIN)
    assert shell.agent.activity is NodeActivity.DRAINING
    shell.tell(Generated(0, made()))
    assert len(shell.sent(Submitted)) == 1
    assert shell.sent(LeaseRequest) == []
    shell.beat()
    assert len(shell.sent(LeaseRequest)) == 1


def test_a_stopped_node_gives_back_its_leases_and_ends() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.beat(leases=(grant(),), command=NodeCommand.STOP)
    assert shell.pop(CancelGeneration) == [CancelGeneration(0)]
    assert shell.pop(Stop) == []
    shell.reply(shell.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=START_MS))
    assert len(shell.pop(Stop)) == 1


def test_a_stopped_node_ends_even_if_nobody_hears_it() -> None:
    shell = Shell().ready()
    shell.lease(grant())
    shell.beat(leases=(grant(),), command=NodeCommand.STOP)
    shell.wait(STOP_MS)
    assert shell.pop(Stop)


def test_deadlines_are_the_coordinators_whatever_this_machines_clock_says() -> None:
    shell = Shell()
    shell.beat(now_ms=START_MS + 3_600_000)
    shell.tell(WeightsReady(Step(0), digest("root 0")))
    shell.lease(grant(minutes=59))
    assert shell.pop(Generate) == []


def test_a_newer_head_is_kept_and_not_asked_for_again() -> None:
    shell = Shell()
    shell.beat(head=b"a head")
    assert shell.pop(CheckTreeHead) == [CheckTreeHead(b"a head")]
    shell.agent.set_head_size(12)
    while not (beats := shell.sent(Heartbeat)):
        shell.wait(100)
    assert beats[0].message.head_size == 12


def test_a_node_registers_with_its_addresses_and_again_only_when_they_change() -> None:
    url = ("http://10.0.0.1:8450",)
    shell = Shell(roles=(Role.RELAY,), addresses=url)
    shell.wait(2_000)
    shell.refuse(shell.sent(Heartbeat)[0], "node")
    (register,) = shell.sent(NodeRegistered)
    assert register.message.addresses == url
    shell.reply(register, EntryReply(index=1, at_ms=shell.now_ms))
    memory = shell.pop(SaveState)[-1].state
    assert memory.registered == register.message

    same = Shell(roles=(Role.RELAY,), addresses=url, memory=memory)
    same.wait(2_000)
    assert same.sent(NodeRegistered) == []

    moved = Shell(roles=(Role.RELAY,), memory=memory)
    (register,) = moved.sent(NodeRegistered)
    assert register.message.addresses == ()
    unsent = moved.pop(SaveState)[-1].state
    assert len(unsent.pending) == 1

    back = Shell(roles=(Role.RELAY,), addresses=url, memory=unsent)
    back.wait(2_000)
    assert back.sent(NodeRegistered) == [], "what was on its way is not true any more, and what the log says is"
