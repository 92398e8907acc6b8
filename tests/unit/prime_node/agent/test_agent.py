"""What a node decides, event by event. The whole of it under loss and crashes is in tests/sim."""

from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any, TypeVar

from prime_node.agent.agent import Agent
from prime_node.agent.control_state import STOP_MS
from prime_node.agent.events import (
    Audit,
    AuditDone,
    AuditFailed,
    AuditFinding,
    CancelGeneration,
    CheckTreeHead,
    CosignTreeHead,
    DrainRequested,
    Effect,
    EngineReported,
    Event,
    FinishedFile,
    Generate,
    Generated,
    GenerationFailed,
    GenerationProgressed,
    HeadCosigned,
    HoldChanged,
    LoadWeights,
    LogRolledBack,
    PendingEntry,
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
from prime_node.storage.saved_state import decode_state, encode_state
from prime_protocol.constants import LEASES_OPEN_MAX, READ_PROOF_BYTES, REGISTRATION_MS, REVEAL_MS
from prime_protocol.ledger.entries import (
    Appealed,
    Inspected,
    LeaseEnded,
    LeaseGranted,
    NodeRegistered,
    Outcome,
    Role,
    RulingGiven,
    Staked,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Slot, Step, hash_bytes
from prime_protocol.wire.messages import (
    AuditTask,
    CheckpointRef,
    Cosigned,
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
from support.ledger_network import ACCOUNT

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


def grant(
    lease: int = 0, slots: int = 1, step: int = 0, minutes: int = 5, made_with: int | None = None
) -> LeaseGranted:
    return LeaseGranted(
        lease=lease,
        node=KEY.node,
        step=Step(step),
        checkpoint_step=Step(step if made_with is None else made_with),
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


class FakeRunner:
    """Drives an agent by hand; what it sent and wants is kept until it is asked for."""

    def __init__(self, roles: tuple[Role, ...] = WORKER, state: SavedState | None = None, **profile: Any) -> None:
        self.now_ms = START_MS
        self.agent = Agent(KEY, NodeProfile(network=NETWORK, run=RUN, roles=roles, **profile), Random(1))
        self.effects: list[Effect] = []
        self.post(Started(state or SavedState()))

    def post(self, event: Event) -> None:
        self.effects += self.agent.handle(event, self.now_ms)

    def wait(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self.agent.wake_ms <= end_ms:
            self.now_ms = self.agent.wake_ms
            self.post(Tick())
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
        self.post(ReplyReceived(send.request, reply))

    def refuse(
        self, send: Send, field: str, code: RefusalCode = RefusalCode.MALFORMED, retry_after_ms: int = 0
    ) -> None:
        refusal = Refusal(code=code, field=field, problem="no", retry_after_ms=retry_after_ms, now_ms=self.now_ms)
        self.post(SendRefused(send.request, refusal))

    def heartbeat(self, **changes: Any) -> None:
        """Wait for the next heartbeat and answer it."""
        self.sent(Heartbeat)
        while not (beats := self.sent(Heartbeat)):
            self.wait(100)
        self.answer(beats[0], **changes)

    def answer(self, heartbeat: Send, **changes: Any) -> None:
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
            "account": ACCOUNT,
            "updates": (),
        }
        self.reply(heartbeat, HeartbeatReply(**said | changes))

    def ready(self) -> "FakeRunner":
        """A worker with weights, about to ask for work."""
        self.heartbeat()
        self.pop(LoadWeights)
        self.post(WeightsReady(Step(0), digest("root 0")))
        return self

    def lease(self, lease: LeaseGranted) -> None:
        self.reply(self.sent(LeaseRequest)[0], LeaseReply(lease=lease, retry_ms=0, reason=""))

    def state(self) -> SavedState:
        return self.pop(SaveState)[-1].state


# --- Witnessing -----------------------------------------------------------------------------------------------------


def test_a_validator_returns_its_cosignature_at_once_and_once() -> None:
    runner = FakeRunner(roles=(Role.VALIDATOR,))
    runner.heartbeat(witness=b"a signed head")
    assert runner.pop(CosignTreeHead) == [CosignTreeHead(b"a signed head")]
    made = Cosigned(head_size=7, time_s=8, signature=bytes(64))
    runner.post(HeadCosigned(made))
    (beat,) = runner.sent(Heartbeat)
    assert beat.message.cosigned == made
    runner.answer(beat)
    runner.heartbeat()
    assert runner.pop(CosignTreeHead) == []
    runner.wait(20_000)
    assert [send.message.cosigned for send in runner.sent(Heartbeat)] == [None]


def test_a_validator_registers_for_its_run_with_its_witness_key() -> None:
    runner = FakeRunner(roles=(Role.VALIDATOR,), witness_key=b"w" * 32)
    runner.wait(2_000)
    (beat,) = runner.sent(Heartbeat)
    runner.refuse(beat, "node")
    (entry,) = [send.message for send in runner.sent(NodeRegistered)]
    assert (entry.runs, entry.witness_key) == ((RUN,), b"w" * 32)
    worker = FakeRunner(witness_key=b"w" * 32)
    worker.wait(2_000)
    worker.refuse(worker.sent(Heartbeat)[0], "node")
    (entry,) = [send.message for send in worker.sent(NodeRegistered)]
    assert (entry.runs, entry.witness_key) == ((), b"")


def test_a_lease_is_answered_with_the_checkpoint_that_it_names_or_returned() -> None:
    runner = FakeRunner().ready()
    runner.heartbeat(weights=weights(1))
    runner.post(WeightsReady(Step(1), digest("root 1")))
    runner.lease(grant(step=1, made_with=0))
    (job,) = runner.pop(Generate)
    assert (job.checkpoint_step, job.checkpoint_root) == (Step(0), digest("root 0"))
    other = FakeRunner()
    other.heartbeat(weights=weights(1))
    other.post(WeightsReady(Step(1), digest("root 1")))
    other.lease(grant(step=1, made_with=0))
    assert other.pop(Generate) == []
    (ended,) = [send.message for send in other.sent(LeaseEnded)]
    assert "newer checkpoint than 0" in ended.reason


# --- Joining --------------------------------------------------------------------------------------------------------


def test_an_unknown_node_registers_and_then_stakes() -> None:
    runner = FakeRunner(stake_nano=7)
    runner.wait(2_000)
    runner.refuse(runner.sent(Heartbeat)[0], "node")
    registration = runner.sent(NodeRegistered)[0]
    assert registration.run is None
    runner.reply(registration, EntryReply(index=1, at_ms=START_MS))
    runner.answer(runner.sent(Heartbeat)[0])
    assert [send.message for send in runner.sent(Staked)] == [Staked(node=KEY.node, amount_nano=7)]


def test_a_validator_registers_for_every_run_that_its_owner_lists_and_a_worker_for_none() -> None:
    listed = (RunId("another"), RUN)
    for roles, runs, expected in (
        ((Role.VALIDATOR,), listed, listed),
        ((Role.VALIDATOR,), (), (RUN,)),
        ((Role.WORKER,), (), ()),
    ):
        runner = FakeRunner(roles, runs_audited=runs)
        runner.wait(2_000)
        runner.refuse(runner.sent(Heartbeat)[0], "node")
        assert runner.sent(NodeRegistered)[0].message.runs == expected


def test_a_silent_coordinator_is_asked_less_and_less_often() -> None:
    runner = FakeRunner()
    gaps, last_ms = [], runner.now_ms
    for _ in range(7):
        while not (beats := runner.sent(Heartbeat)):
            runner.wait(50)
        gaps.append(runner.now_ms - last_ms)
        last_ms = runner.now_ms
        runner.post(SendTimedOut(beats[0].request))
    assert gaps[-1] > 8 * gaps[1]
    assert gaps[-1] <= 30_100


def test_only_one_entry_is_on_its_way_at_a_time() -> None:
    runner = FakeRunner(VALIDATOR, audits_at_once=2)
    runner.heartbeat(audits=(task("a"), task("b")))
    for audit in runner.pop(Audit):
        runner.post(AuditDone(audit.task.submission, FINDING))
    first = runner.sent(VerdictGiven)
    assert len(first) == 1
    runner.reply(first[0], EntryReply(index=1, at_ms=START_MS))
    assert len(runner.sent(VerdictGiven)) == 1


# --- Work -----------------------------------------------------------------------------------------------------------


def test_a_lease_is_generated_signed_saved_and_then_sent() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    assert runner.pop(Generate)[0].beacon == digest("beacon 0")
    runner.pop(SaveState)
    runner.post(Generated(0, made()))
    kinds = [type(effect) for effect in runner.effects if isinstance(effect, SaveState | Send)]
    assert kinds[:2] == [SaveState, Send]
    send = runner.sent(Submitted)[0]
    assert send.file == digest("file")
    assert send.message.receipt.lease == 0


def test_a_restarted_node_sends_the_answer_it_had_and_makes_no_other() -> None:
    before = FakeRunner().ready()
    before.lease(grant())
    before.post(Generated(0, made()))
    after = FakeRunner(state=before.state())
    assert after.sent(Submitted)[0].message.receipt.file_digest == digest("file")
    after.heartbeat(leases=(grant(),))
    after.post(WeightsReady(Step(0), digest("root 0")))
    assert after.pop(Generate) == []


def test_a_restarted_node_takes_up_the_leases_it_forgot() -> None:
    runner = FakeRunner()
    runner.heartbeat(leases=(grant(3),))
    runner.post(WeightsReady(Step(0), digest("root 0")))
    assert runner.pop(Generate)[0].lease == grant(3)


def test_an_answer_without_reply_is_sent_again_with_the_same_bytes() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(Generated(0, made()))
    first = runner.sent(Submitted)[0]
    runner.post(SendTimedOut(first.request))
    runner.wait(3_000)
    again = runner.sent(Submitted)[0]
    assert again.message == first.message
    assert again.request != first.request


def test_an_answer_that_was_overtaken_is_sent_again_and_one_that_was_refused_is_not() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(Generated(0, made()))
    runner.refuse(runner.sent(Submitted)[0], "Payload.sequence")
    runner.wait(3_000)
    runner.refuse(runner.sent(Submitted)[0], "receipt.lease")
    runner.wait(60_000)
    assert runner.sent(Submitted) == []


def test_the_lease_of_a_refused_file_is_returned() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(Generated(0, made()))
    runner.refuse(runner.sent(Submitted)[0], "receipt.file_digest")
    assert runner.sent(LeaseEnded)[0].message.lease == 0


def test_work_that_ends_after_its_deadline_is_dropped() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant(minutes=1))
    runner.wait(61_000)
    assert runner.pop(CancelGeneration) == [CancelGeneration(0)]
    runner.post(Generated(0, made()))
    assert runner.sent(Submitted) == []


def test_a_lease_that_cannot_be_finished_in_time_is_returned() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant(0))
    runner.wait(50_000)
    runner.post(Generated(0, made()))
    runner.lease(grant(1, slots=100, minutes=3))
    assert runner.pop(Generate)[1:] == []
    runner.reply(runner.sent(Submitted)[0], EntryReply(index=1, at_ms=runner.now_ms))
    assert runner.sent(LeaseEnded)[0].message.lease == 1


def test_the_next_lease_is_fetched_before_the_first_is_done() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant(0))
    runner.wait(20_000)
    runner.post(Generated(0, made()))
    runner.lease(grant(1, slots=2))
    assert runner.sent(LeaseRequest) == []
    runner.wait(31_000)
    assert len(runner.sent(LeaseRequest)) == 1


def test_a_lease_that_the_coordinator_has_ended_is_abandoned_but_a_newer_one_is_kept() -> None:
    runner = FakeRunner().ready()
    beats = []
    while not beats:
        runner.wait(100)
        beats = runner.sent(Heartbeat)
    runner.now_ms += 10
    runner.lease(grant())
    runner.answer(beats[0], leases=())
    assert runner.pop(CancelGeneration) == []
    runner.heartbeat(leases=())
    assert runner.pop(CancelGeneration) == [CancelGeneration(0)]


def test_a_refused_request_is_repeated_with_growing_pauses_until_a_new_step_begins() -> None:
    runner = FakeRunner().ready()
    runner.reply(runner.sent(LeaseRequest)[0], LeaseReply(lease=None, retry_ms=20_000, reason="fully leased"))
    runner.wait(5_000)
    assert runner.sent(LeaseRequest) == []
    runner.heartbeat(weights=weights(1))
    assert len(runner.sent(LeaseRequest)) == 1


def test_a_lease_of_an_unknown_step_triggers_a_heartbeat() -> None:
    runner = FakeRunner().ready()
    runner.sent(Heartbeat)
    runner.lease(grant(step=1))
    assert len(runner.sent(Heartbeat)) == 1
    assert runner.pop(Generate) == []


def test_generation_that_fails_gives_the_lease_back() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(GenerationFailed(0, "out of memory"))
    assert runner.sent(LeaseEnded)[0].message.reason == "out of memory"


def test_new_weights_are_fetched_while_a_lease_is_done_and_taken_with_the_next_one() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    assert [begun.checkpoint_root for begun in runner.pop(Generate)] == [digest("root 0")]
    runner.heartbeat(weights=weights(1), leases=(grant(),))
    assert runner.pop(LoadWeights) == [LoadWeights(weights(1))], "while the first lease is being done"
    runner.post(WeightsReady(Step(1), digest("root 1")))
    assert (runner.pop(CancelGeneration), runner.pop(Generate)) == ([], []), "which goes on with what it began with"
    runner.post(Generated(0, made()))
    runner.lease(grant(1, step=1))
    assert [begun.checkpoint_root for begun in runner.pop(Generate)] == [digest("root 1")]


def test_weights_that_could_not_be_fetched_are_asked_for_again() -> None:
    runner = FakeRunner()
    runner.heartbeat()
    assert len(runner.pop(LoadWeights)) == 1
    runner.post(WeightsFailed(Step(0)))
    runner.heartbeat()
    assert len(runner.pop(LoadWeights)) == 1


# --- Audits ---------------------------------------------------------------------------------------------------------


def test_an_audit_ends_in_one_verdict_however_often_it_is_listed() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(task(),))
    runner.post(AuditDone(runner.pop(Audit)[0].task.submission, FINDING))
    runner.reply(runner.sent(VerdictGiven)[0], EntryReply(index=1, at_ms=START_MS))
    runner.heartbeat(audits=(task(),))
    assert runner.pop(Audit) == []


def test_an_audit_that_breaks_says_nothing_and_is_tried_again() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(task(),))
    runner.post(AuditFailed(runner.pop(Audit)[0].task.submission))
    assert runner.sent(VerdictGiven) == []
    tries_ms = []
    for _ in range(4):
        runner.heartbeat(audits=(task(),))
        for audit in runner.pop(Audit):
            tries_ms.append(runner.now_ms - START_MS)
            runner.post(AuditFailed(audit.task.submission))
    assert len(tries_ms) == 2, "at the next beat, and then after a longer pause"


def test_the_evidence_of_a_rejection_goes_before_its_verdict() -> None:
    runner = FakeRunner(VALIDATOR, audits_at_once=2)
    runner.heartbeat(audits=(task("bad"), task("good")))
    runner.post(AuditDone(digest("bad"), replace(FINDING, has_bundle=True)))
    runner.post(AuditDone(digest("good"), FINDING))
    (first,) = runner.sent(VerdictGiven)
    assert first.file == FINDING.evidence
    runner.reply(first, EntryReply(index=1, at_ms=START_MS))
    assert runner.sent(VerdictGiven)[0].file is None


def test_a_restarted_validator_does_not_judge_again_what_it_has_signed() -> None:
    before = FakeRunner(VALIDATOR)
    before.heartbeat(audits=(task(),))
    before.post(AuditDone(before.pop(Audit)[0].task.submission, FINDING))
    after = FakeRunner(VALIDATOR, state=before.state())
    after.heartbeat(audits=(task(),))
    assert after.pop(Audit) == []
    assert len(after.sent(VerdictGiven)) == 1


def test_an_inspection_ends_in_what_others_must_have_seen_and_in_no_verdict() -> None:
    asked = replace(task(), readers=tuple(ReadCoverage(node(name), 0) for name in "bac"))
    seen = {node("b"): bytes(READ_PROOF_BYTES), node("a"): b"\1" * READ_PROOF_BYTES, node("c"): b""}
    before = FakeRunner(VALIDATOR)
    before.heartbeat(audits=(asked,))
    before.post(AuditDone(before.pop(Audit)[0].task.submission, replace(FINDING, read_proofs=seen)))
    for runner in (before, FakeRunner(VALIDATOR, state=before.state())):
        runner.heartbeat(audits=(asked,))
        assert runner.pop(Audit) == []
        assert runner.sent(VerdictGiven) == []
        (sent,) = runner.sent(Inspected)
        assert (sent.message.submission, sent.file) == (asked.submission, None)
        assert {each.reader: each.read_proof for each in sent.message.seen} == {
            reader: proofs for reader, proofs in seen.items() if proofs
        }
        assert [each.reader for each in sent.message.seen] == sorted([node("a"), node("b")])


def test_an_inspector_that_has_read_a_file_again_rules_on_a_finding_about_it_once() -> None:
    asked = replace(task(), readers=(ReadCoverage(node("a"), 0),))
    before = FakeRunner(VALIDATOR)
    before.heartbeat(audits=(asked,))
    proofs = {node("a"): bytes(READ_PROOF_BYTES)}
    before.post(AuditDone(before.pop(Audit)[0].task.submission, replace(FINDING, read_proofs=proofs)))
    (inspected,) = before.sent(Inspected)
    before.reply(inspected, EntryReply(index=1, at_ms=START_MS))
    ruling = replace(task(), is_ruling=True)
    before.heartbeat(audits=(ruling,))
    before.post(AuditDone(before.pop(Audit)[0].task.submission, FINDING))
    for runner in (before, FakeRunner(VALIDATOR, state=before.state())):
        runner.heartbeat(audits=(ruling,))
        assert runner.pop(Audit) == []
    assert [sent.message.outcome for sent in before.sent(RulingGiven)] == [FINDING.outcome]


def test_a_verdict_carries_only_its_own_authors_read_proof() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(task(),))
    proofs = {KEY.node: b"\2" * READ_PROOF_BYTES, node("a"): b"\1" * READ_PROOF_BYTES}
    runner.post(AuditDone(runner.pop(Audit)[0].task.submission, replace(FINDING, read_proofs=proofs)))
    assert runner.sent(VerdictGiven)[0].message.read_proof == b"\2" * READ_PROOF_BYTES


# --- Committed verdicts ---------------------------------------------------------------------------------------------

LOGGED = EntryReply(index=1, at_ms=START_MS)


def committed(finding: AuditFinding = FINDING) -> tuple[FakeRunner, Send]:
    """A validator that has found its verdict, in a round with others; what it sends."""
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(replace(task(), commit=True),))
    runner.post(AuditDone(runner.pop(Audit)[0].task.submission, finding))
    assert runner.sent(VerdictGiven) == []
    (commitment,) = runner.sent(VerdictCommitted)
    return runner, commitment


def test_a_verdict_is_committed_first_and_given_when_a_heartbeat_says_so() -> None:
    runner, commitment = committed(replace(FINDING, has_bundle=True))
    assert commitment.file == FINDING.evidence, "the evidence goes first: there is little time when the verdict is due"
    runner.reply(commitment, LOGGED)
    runner.heartbeat(audits=(replace(task(), commit=True),))
    assert runner.pop(Audit) == []
    assert runner.sent(VerdictGiven) == []
    assert (runner.agent.audits.verdicts_given, len(runner.agent.audits.committed)) == (0, 1)
    runner.heartbeat(reveals=(digest("other"), digest("theirs")))
    (verdict,) = runner.sent(VerdictGiven)
    assert hash_bytes(encode(verdict.message)) == commitment.message.commitment
    assert (commitment.message.submission, verdict.file) == (digest("theirs"), None)
    assert (runner.agent.audits.verdicts_given, len(runner.agent.audits.committed)) == (1, 0)
    runner.reply(verdict, LOGGED)
    runner.heartbeat(reveals=(digest("theirs"),))
    assert runner.sent(VerdictGiven) == []


def test_the_last_to_commit_gives_its_verdict_at_once() -> None:
    runner, commitment = committed()
    runner.reply(commitment, replace(LOGGED, can_reveal=True))
    assert len(runner.sent(VerdictGiven)) == 1


def test_a_node_killed_after_its_commitment_gives_the_same_verdict_after_its_restart() -> None:
    before, commitment = committed()
    for state in (decode_state(encode_state(before.state())), None):
        if state is None:
            before.reply(commitment, LOGGED)
            state = before.state()
        after = FakeRunner(VALIDATOR, state=state)
        after.heartbeat(audits=(replace(task(), commit=True),), reveals=(digest("theirs"),))
        assert after.pop(Audit) == [], "two verdicts that differ would be held against it"
        for again in after.sent(VerdictCommitted):
            assert again.message == commitment.message
            after.reply(again, LOGGED)
        (verdict,) = after.sent(VerdictGiven)
        assert hash_bytes(encode(verdict.message)) == commitment.message.commitment


def test_a_verdict_whose_commitment_is_refused_is_never_given() -> None:
    runner, commitment = committed()
    runner.refuse(commitment, "commitment")
    runner.heartbeat(reveals=(digest("theirs"),))
    assert runner.sent(VerdictGiven) == []
    assert runner.state().committed == ()


def test_a_verdict_that_comes_too_early_for_a_restarted_coordinator_is_given_later() -> None:
    runner, commitment = committed()
    runner.reply(commitment, replace(LOGGED, can_reveal=True))
    (verdict,) = runner.sent(VerdictGiven)
    runner.refuse(verdict, "commitment")
    runner.heartbeat(reveals=(digest("theirs"),))
    assert [send.message for send in runner.sent(VerdictGiven)] == [verdict.message]


def test_a_committed_verdict_is_dropped_when_its_round_is_over() -> None:
    runner, commitment = committed()
    runner.reply(commitment, LOGGED)
    while runner.now_ms <= task().deadline_ms + REVEAL_MS:
        assert len(runner.agent.audits.committed) == 1
        runner.heartbeat()
    assert runner.state().committed == ()
    runner.heartbeat(reveals=(digest("theirs"),))
    assert runner.sent(VerdictGiven) == []


def test_a_node_that_drains_waits_for_the_verdict_that_it_committed_to() -> None:
    runner, commitment = committed()
    runner.reply(commitment, LOGGED)
    runner.post(DrainRequested())
    assert runner.pop(Stop) == []
    runner.heartbeat(reveals=(digest("theirs"),))
    runner.reply(runner.sent(VerdictGiven)[0], LOGGED)
    assert runner.pop(Stop) == [Stop("")]


# --- Punishment and commands ----------------------------------------------------------------------------------------


def test_a_node_appeals_only_for_its_own_submissions() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(Generated(0, made()))
    send = runner.sent(Submitted)[0]
    runner.reply(send, EntryReply(index=1, at_ms=START_MS))
    own = compute_receipt_id(send.message.receipt)
    runner.post(SlashReported(digest("theirs"), START_MS + 60_000))
    runner.post(SlashReported(own, START_MS + 60_000))
    runner.post(SlashReported(own, START_MS + 60_000))
    assert [send.message.submission for send in runner.sent(Appealed)] == [own]


def test_a_node_appeals_for_work_that_only_its_journal_remembers() -> None:
    runner = FakeRunner().ready()
    runner.post(SlashReported(digest("long ago"), START_MS + 60_000, is_own=True))
    assert [send.message.submission for send in runner.sent(Appealed)] == [digest("long ago")]


def test_a_run_that_asks_for_more_stake_gets_it() -> None:
    runner = FakeRunner()
    runner.post(StakeMissing(9))
    assert runner.sent(Staked) == [], "not before the coordinator knows this node"
    runner.heartbeat()
    (send,) = runner.sent(Staked)
    assert send.message.amount_nano == 9
    runner.post(StakeMissing(0))
    runner.wait(60_000)
    assert runner.sent(Staked) == []


# --- The owner ------------------------------------------------------------------------------------------------------


def test_a_held_node_finishes_what_it_has_and_takes_no_more_until_it_is_released() -> None:
    runner = FakeRunner((Role.VALIDATOR, Role.WORKER)).ready()
    runner.lease(grant())
    runner.post(HoldChanged("it is day"))
    assert (runner.agent.activity, runner.agent.control.hold_reason) == (NodeActivity.DRAINING, "it is day")
    runner.heartbeat(leases=(grant(),), audits=(task(),))
    assert (runner.pop(CancelGeneration), runner.pop(Audit)) == ([], [])
    runner.post(Generated(0, made()))
    runner.reply(runner.sent(Submitted)[0], EntryReply(index=1, at_ms=START_MS))
    runner.wait(20_000)
    assert (runner.sent(LeaseRequest), runner.pop(Stop)) == ([], [])
    runner.post(HoldChanged(""))
    assert len(runner.sent(LeaseRequest)) == 1
    assert len(runner.pop(Audit)) == 1


def test_a_node_that_drains_ends_when_the_last_answer_is_in_the_log() -> None:
    runner = FakeRunner().ready()
    request = runner.sent(LeaseRequest)[0]
    runner.post(DrainRequested())
    runner.reply(request, LeaseReply(lease=grant(), retry_ms=0, reason=""))
    assert len(runner.pop(Generate)) == 1, "it was on its way, so it is in hand"
    runner.post(Generated(0, made()))
    assert runner.pop(Stop) == []
    runner.reply(runner.sent(Submitted)[0], EntryReply(index=1, at_ms=START_MS))
    assert runner.pop(Stop)[0] == Stop("")
    assert runner.sent(LeaseRequest) == []


def test_an_idle_node_that_drains_ends_at_once() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat()
    runner.post(DrainRequested())
    assert runner.pop(Stop) == [Stop("")]


def test_a_node_that_is_stopped_gives_back_what_it_holds_whatever_the_coordinator_says() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(StopRequested())
    assert runner.pop(CancelGeneration) == [CancelGeneration(0)]
    assert runner.pop(Stop) == []
    runner.heartbeat(leases=(grant(),))
    assert runner.pop(Generate)[1:] == [], "a reply that is older than the log lists it still"
    runner.reply(runner.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=START_MS))
    assert runner.pop(Stop)[0] == Stop("")
    assert runner.sent(LeaseRequest) == []


def test_a_node_that_is_stopped_with_nothing_in_hand_ends_at_once() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.post(StopRequested())
    assert runner.pop(Stop) == [Stop("")]


def test_a_returned_lease_is_not_resumed_even_after_a_restart() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.post(GenerationFailed(0, "out of memory"))
    state = runner.state()
    runner.heartbeat(leases=(grant(),))
    assert len(runner.pop(Generate)) == 1
    after = FakeRunner(state=state)
    after.heartbeat(leases=(grant(),))
    after.post(WeightsReady(Step(0), digest("root 0")))
    assert after.pop(Generate) == []


def test_a_node_that_cannot_do_its_work_asks_less_and_less_often() -> None:
    runner = FakeRunner().ready()
    gaps = []
    for number in range(5):
        asked_ms = runner.now_ms
        runner.lease(grant(number, minutes=90))
        runner.post(GenerationFailed(number, "no memory"))
        runner.reply(runner.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=runner.now_ms))
        while not any(isinstance(each, Send) and isinstance(each.message, LeaseRequest) for each in runner.effects):
            runner.wait(500)
        gaps.append(runner.now_ms - asked_ms)
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_engine_start_time_does_not_count_towards_throughput() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant(0))
    runner.wait(50_000)
    runner.post(GenerationProgressed(0, rows_done=0, rows=2))
    runner.wait(1_000)
    runner.post(Generated(0, made()))
    runner.lease(grant(1, slots=100, minutes=3))
    assert len(runner.pop(Generate)) == 2, "a hundred seconds of work, and two minutes of time"


def test_a_lease_that_would_miss_its_deadline_is_returned_early() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant(minutes=4))
    runner.post(GenerationProgressed(0, rows_done=0, rows=16))
    runner.wait(60_000)
    runner.post(GenerationProgressed(0, rows_done=4, rows=16))
    assert runner.pop(CancelGeneration) == [], "at twice the pace it could still be done"
    runner.wait(40_000)
    runner.post(GenerationProgressed(0, rows_done=3, rows=16))
    assert runner.pop(CancelGeneration) == [], "too few rows to judge by"
    runner.post(GenerationProgressed(0, rows_done=4, rows=16))
    assert runner.pop(CancelGeneration) == [CancelGeneration(0)]
    assert "before its deadline" in runner.sent(LeaseEnded)[0].message.reason
    runner.post(GenerationProgressed(0, rows_done=5, rows=16))
    assert runner.sent(LeaseEnded) == []


REPORT = EngineReported(running=16, waiting=0, sequences_max=16, kv_tokens=0)


def hold(runner: FakeRunner, number: int, rows: int = 8, **changes: Any) -> None:
    """Take a lease whose rows enter the engine."""
    runner.lease(grant(number, **changes))
    runner.post(GenerationProgressed(number, rows_done=0, rows=rows))


def test_leases_are_taken_until_a_full_batch_and_a_part_of_the_next_are_in_hand() -> None:
    runner = FakeRunner().ready()
    hold(runner, 0)
    assert runner.sent(LeaseRequest) == [], "how much the engine holds is not known"
    runner.post(REPORT)
    for number in (1, 2):
        hold(runner, number)
    assert [each.lease.lease for each in runner.pop(Generate)] == [0, 1, 2], "all are generated together"
    assert runner.sent(LeaseRequest) == [], "24 rows in hand, 16 are generated at once"
    runner.post(GenerationProgressed(0, rows_done=5, rows=8))
    (asked,) = runner.sent(LeaseRequest)
    assert asked.message.rows_at_once == 16


def test_each_lease_is_answered_when_its_own_rows_are_done() -> None:
    runner = FakeRunner().ready()
    hold(runner, 0)
    runner.post(REPORT)
    hold(runner, 1)
    runner.wait(1_000)
    runner.post(Generated(1, made("one")))
    (sent,) = runner.sent(Submitted)
    assert sent.message.receipt.lease == 1
    assert list(runner.agent.leases.open) == [0]
    runner.reply(sent, EntryReply(index=1, at_ms=START_MS))
    runner.post(Generated(0, made("other")))
    assert runner.sent(Submitted)[0].message.receipt.lease == 0


def test_a_node_with_several_leases_in_hand_resumes_all_but_the_answered_one() -> None:
    before = FakeRunner().ready()
    hold(before, 0)
    before.post(REPORT)
    hold(before, 1)
    hold(before, 2)
    before.post(Generated(1, made()))
    state = decode_state(encode_state(before.pop(SaveState)[-1].state))
    after = FakeRunner(state=state)
    after.heartbeat(leases=(grant(0), grant(1), grant(2)))
    after.post(WeightsReady(Step(0), digest("root 0")))
    assert [each.lease.lease for each in after.pop(Generate)] == [0, 2]
    assert after.sent(Submitted)[0].message.receipt.lease == 1


def test_rows_of_an_older_checkpoint_leave_no_room_empty_for_those_of_the_next() -> None:
    runner = FakeRunner().ready()
    hold(runner, 0, rows=16)
    runner.post(REPORT)
    hold(runner, 1, rows=16)
    runner.sent(LeaseRequest)
    runner.heartbeat(weights=weights(1), leases=(grant(0), grant(1)))
    runner.post(WeightsReady(Step(1), digest("root 1")))
    assert runner.sent(LeaseRequest) == [], "32 rows wait for the engine"
    runner.post(Generated(0, made()))
    runner.lease(grant(2, step=1))
    assert len(runner.sent(LeaseRequest)) == 1, "the rest of the old checkpoint is about to leave"


def test_no_more_leases_are_held_than_a_reply_can_list() -> None:
    runner = FakeRunner().ready()
    hold(runner, 0, rows=1)
    runner.post(REPORT)
    for number in range(1, LEASES_OPEN_MAX):
        runner.post(EngineReported(running=number, waiting=0, sequences_max=1_000, kv_tokens=0))
        hold(runner, number, rows=1)
    runner.sent(LeaseRequest)
    runner.post(Tick())
    assert runner.sent(LeaseRequest) == []


def test_leases_that_are_generated_together_share_the_time() -> None:
    runner = FakeRunner().ready()
    hold(runner, 0)
    runner.post(REPORT)
    hold(runner, 1)
    runner.wait(2_000)
    runner.post(Generated(0, made("one")))
    runner.post(Generated(1, made("two")))
    assert runner.agent.leases.tokens_per_s == 10, "20 tokens in two seconds"


def test_the_speed_that_a_node_names_is_the_one_it_measured() -> None:
    runner = FakeRunner(tokens_per_s=3).ready()
    (first,) = runner.sent(LeaseRequest)
    assert first.message.tokens_per_s == 3
    runner.reply(first, LeaseReply(lease=grant(), retry_ms=0, reason=""))
    runner.wait(2_000)
    runner.post(Generated(0, made()))
    assert runner.sent(LeaseRequest)[0].message.tokens_per_s == 5


def test_a_drained_node_finishes_what_it_has_begun_and_asks_for_no_more() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.heartbeat(leases=(grant(),), command=NodeCommand.DRAIN)
    assert runner.agent.activity is NodeActivity.DRAINING
    runner.post(Generated(0, made()))
    assert len(runner.sent(Submitted)) == 1
    assert runner.sent(LeaseRequest) == []
    runner.heartbeat()
    assert len(runner.sent(LeaseRequest)) == 1


def test_a_stopped_node_gives_back_its_leases_and_ends() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.heartbeat(leases=(grant(),), command=NodeCommand.STOP)
    assert runner.pop(CancelGeneration) == [CancelGeneration(0)]
    assert runner.pop(Stop) == []
    runner.reply(runner.sent(LeaseEnded)[0], EntryReply(index=1, at_ms=START_MS))
    assert len(runner.pop(Stop)) == 1


def test_a_stopped_node_ends_even_if_the_coordinator_does_not_answer() -> None:
    runner = FakeRunner().ready()
    runner.lease(grant())
    runner.heartbeat(leases=(grant(),), command=NodeCommand.STOP)
    runner.wait(STOP_MS)
    assert runner.pop(Stop)


def test_deadlines_are_the_coordinators_whatever_this_machines_clock_says() -> None:
    runner = FakeRunner()
    runner.heartbeat(now_ms=START_MS + 3_600_000)
    runner.post(WeightsReady(Step(0), digest("root 0")))
    runner.lease(grant(minutes=59))
    assert runner.pop(Generate) == []


def test_a_newer_head_is_kept_and_not_asked_for_again() -> None:
    runner = FakeRunner()
    runner.heartbeat(head=b"a head")
    assert runner.pop(CheckTreeHead) == [CheckTreeHead(b"a head")]
    runner.agent.set_head_size(12)
    while not (beats := runner.sent(Heartbeat)):
        runner.wait(100)
    assert beats[0].message.head_size == 12


def test_a_node_registers_with_its_addresses_and_again_only_when_they_change() -> None:
    url = ("http://10.0.0.1:8450",)
    runner = FakeRunner(roles=(Role.RELAY,), addresses=url)
    runner.wait(2_000)
    runner.refuse(runner.sent(Heartbeat)[0], "node")
    (register,) = runner.sent(NodeRegistered)
    assert register.message.addresses == url
    runner.reply(register, EntryReply(index=1, at_ms=runner.now_ms))
    state = runner.pop(SaveState)[-1].state
    assert state.registered == register.message

    same = FakeRunner(roles=(Role.RELAY,), addresses=url, state=state)
    same.wait(2_000)
    assert same.sent(NodeRegistered) == []

    moved = FakeRunner(roles=(Role.RELAY,), state=state)
    (register,) = moved.sent(NodeRegistered)
    assert register.message.addresses == ()
    unsent = moved.pop(SaveState)[-1].state
    assert len(unsent.pending) == 1

    back = FakeRunner(roles=(Role.RELAY,), addresses=url, state=unsent)
    back.wait(2_000)
    assert back.sent(NodeRegistered) == [], "what was on its way is not true any more, and what the log says is"


def limited(runner: FakeRunner, retry_after_ms: int) -> Send:
    """The registration that was just sent comes too soon for the log."""
    (register,) = runner.sent(NodeRegistered)
    runner.refuse(register, "Payload.sender", RefusalCode.RATE_LIMITED, retry_after_ms)
    return register


def test_work_goes_on_under_the_old_registration_while_a_limit_holds_the_new_one_back() -> None:
    old = NodeRegistered(roles=WORKER, hardware="", addresses=("http://10.0.0.1:8450",))
    runner = FakeRunner(state=SavedState(registered=old))
    register = limited(runner, REGISTRATION_MS)
    ((due_ms, held),) = runner.agent.list_held()
    assert (held.entry, due_ms >= runner.now_ms + REGISTRATION_MS) == (register.message, True)
    runner.ready().lease(grant(minutes=30))
    runner.post(Generated(0, made()))
    runner.reply(runner.sent(Submitted)[0], EntryReply(index=1, at_ms=START_MS))
    assert register.message in [pending.entry for pending in runner.state().pending], "a restart does not lose it"
    runner.wait(due_ms - runner.now_ms - 1)
    assert runner.sent(NodeRegistered) == []
    runner.wait(1)
    (again,) = runner.sent(NodeRegistered)
    runner.reply(again, EntryReply(index=2, at_ms=runner.now_ms))
    assert runner.state().registered == register.message
    assert runner.agent.list_held() == ()


def test_a_newcomer_waits_as_long_as_the_network_asks_and_is_not_given_up() -> None:
    runner = FakeRunner()
    runner.wait(2_000)
    runner.refuse(runner.sent(Heartbeat)[0], "node")
    limited(runner, 20 * 3_600_000)
    runner.wait(60_000)
    runner.refuse(runner.sent(Heartbeat)[0], "node")
    assert runner.sent(NodeRegistered) == [], "it knows that it has to wait"
    runner.wait(20 * 3_600_000)
    (again,) = runner.sent(NodeRegistered)
    assert again.message == NodeRegistered(roles=WORKER, hardware="")


def test_a_node_that_drains_does_not_wait_for_what_is_held_back() -> None:
    old = NodeRegistered(roles=VALIDATOR, hardware="another")
    runner = FakeRunner(VALIDATOR, state=SavedState(registered=old))
    limited(runner, REGISTRATION_MS)
    runner.post(DrainRequested())
    assert runner.pop(Stop) == [Stop("")]


def test_a_short_wait_keeps_the_order() -> None:
    runner = FakeRunner(VALIDATOR, state=SavedState(registered=NodeRegistered(roles=VALIDATOR, hardware="another")))
    limited(runner, 1_000)
    assert runner.agent.list_held() == ()
    runner.wait(3_000)
    assert len(runner.sent(NodeRegistered)) == 1


def test_a_suspended_validator_still_gives_the_verdicts_that_it_was_drawn_for() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(task(),), command=NodeCommand.DRAIN)
    assert [audit.task for audit in runner.pop(Audit)] == [task()]
    stopped = FakeRunner(VALIDATOR)
    stopped.heartbeat(audits=(task(),), command=NodeCommand.STOP)
    assert not stopped.pop(Audit)


def test_the_agent_of_a_further_run_leaves_the_registration_to_the_first() -> None:
    runner = FakeRunner(VALIDATOR, registers=False)
    runner.wait(2_000)
    runner.refuse(runner.sent(Heartbeat)[0], "node")
    assert not runner.sent(NodeRegistered)
    runner.wait(60_000)
    assert runner.sent(Heartbeat), "it asks again until the node is registered"


# --- A restored coordinator -------------------------------------------------------------------------------------------


def test_after_a_restore_a_worker_takes_beacons_and_checkpoints_from_the_restored_log_alone() -> None:
    runner = FakeRunner().ready()
    runner.agent.set_head_size(700)
    runner.heartbeat(weights=weights(1))
    runner.post(WeightsReady(Step(1), digest("root 1")))
    resent = PendingEntry(LeaseEnded(lease=4, reason="sent again"), RUN, START_MS + 3_600_000)
    runner.effects.clear()
    runner.post(LogRolledBack(402, (resent,)))
    (beat,) = runner.sent(Heartbeat)
    assert (beat.message.head_size, beat.message.checkpoint_step) == (402, -1)
    assert [send.message for send in runner.sent(LeaseEnded)] == [resent.entry]
    assert runner.state().pending == (resent,)
    runner.pop(LoadWeights)
    runner.answer(beat, weights=replace(weights(0), beacon=None))
    assert [load.weights.step for load in runner.pop(LoadWeights)] == [0], "an older step is no reply from before"
    runner.post(WeightsReady(Step(0), digest("root 0")))
    assert runner.sent(LeaseRequest) == [], "the beacon that it had is not of this log"


def test_after_a_restore_a_validator_judges_again_what_the_log_has_lost() -> None:
    runner = FakeRunner(VALIDATOR)
    runner.heartbeat(audits=(task(),))
    runner.post(AuditDone(digest("theirs"), FINDING))
    runner.pop(Audit)
    runner.heartbeat(audits=(task(),))
    assert runner.pop(Audit) == []
    runner.post(LogRolledBack(402, ()))
    runner.answer(runner.sent(Heartbeat)[0], audits=(task(),))
    assert len(runner.pop(Audit)) == 1
