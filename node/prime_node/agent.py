"""The node's decisions, all of them: events and the clock in, effects out. Pure.

The daemon and the simulator drive this same object. It beats, takes weights, asks for work while it has room, answers
leases, gives verdicts, and follows commands. Time is this machine's; deadlines are the coordinator's, whose clock is
estimated from its replies. After each event `wake_ms` says when to come back with a Tick.
"""

from random import Random
from typing import Any, assert_never

from prime_node.assignments import Assignments
from prime_node.events import (
    AuditDone,
    AuditFailed,
    Drained,
    Effect,
    Event,
    Finding,
    Generated,
    GenerationFailed,
    Held,
    KeepHead,
    Leaving,
    LoadWeights,
    Memory,
    Parcel,
    Progressed,
    Refused,
    ReplyReceived,
    Save,
    Send,
    SlashSeen,
    StakeMissing,
    Started,
    Stop,
    Tick,
    TimedOut,
    WeightsFailed,
    WeightsReady,
)
from prime_node.membership import JOIN_LIFE_MS, Membership
from prime_node.membership import Profile as Profile
from prime_node.outbox import Outbox, backoff_ms, is_final
from prime_node.verdicts import Verdicts
from prime_node.wishes import NEVER_MS, Wishes
from prime_node.wishes import STOP_MS as STOP_MS
from prime_protocol.entries import (
    Appealed,
    Inspected,
    LeaseEnded,
    NodeRegistered,
    Role,
    Staked,
    Submitted,
    VerdictGiven,
)
from prime_protocol.exchange import Refusal
from prime_protocol.ids import Digest, RunId, Step
from prime_protocol.messages import Activity, Command, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest, Weights
from prime_protocol.signing import WalletKey

ASK_MS_MAX = 30_000
"""Longest wait between two requests for work that were refused."""

FAILED_MS = 5_000
FAILED_MS_MAX = 600_000
"""Before work is asked for after a lease that could not be done here, doubling: what hindered it may be there still."""


class Agent:
    """One node."""

    def __init__(self, key: WalletKey, profile: Profile, dice: Random) -> None:
        self._key = key
        self._profile = profile
        self._dice = dice
        self._is_worker = Role.WORKER in profile.roles
        self._outbox = Outbox()
        self.assignments = Assignments(key, profile.network, profile.run, profile.domain)
        self.verdicts = Verdicts(key, profile.network, profile.run, profile.domain, at_once=profile.audits_at_once)
        self._effects: list[Effect] = []
        self._is_unsaved = False
        self._requests = 0
        self._beat: int | None = None
        """Number of the request that is on its way, for each of the three kinds."""
        self._ask: int | None = None
        self._parcel: int | None = None
        self._beat_ms = 0
        self._beat_sent_ms = 0
        self._beat_failures = 0
        self._ask_ms = 0
        self._ask_failures = 0
        self._weights: Weights | None = None
        self._loading: int = -1
        self._head_size = 0
        self._ahead_ms = 0
        """By how much the coordinator's clock is ahead of this one."""
        self._work_failures = 0
        self.wishes = Wishes()
        self._member = Membership(key.node, profile)
        self.wake_ms = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Started(memory):
                self._start(memory, now_ms)
            case ReplyReceived(request, reply):
                self._take_reply(request, reply, now_ms)
            case Refused(request, refusal):
                self._take_refusal(request, refusal, now_ms)
            case TimedOut(request):
                self._take_refusal(request, None, now_ms)
            case WeightsReady(step, root):
                self.assignments.held[step] = root
                self._ask_ms = min(self._ask_ms, now_ms)
            case WeightsFailed(step):
                self._loading = -1 if self._loading == step else self._loading
            case Generated() | GenerationFailed() | Progressed():
                self._take_work(event, now_ms)
            case AuditDone(submission, finding):
                self._judge(self.verdicts.finish(submission, finding), finding)
            case AuditFailed(submission):
                self.verdicts.break_off(submission, self._server_ms(now_ms))
            case SlashSeen(submission, appeal_until_ms, is_own):
                if is_own or self.assignments.made(submission):
                    self._appeal(submission, appeal_until_ms)
            case StakeMissing(amount_nano):
                self._member.miss_stake(amount_nano)
            case Held(reason):
                self.wishes.held_for = reason
            case Drained():
                self.wishes.is_draining = True
            case Leaving():
                self.wishes.is_ending = True
                self._obey(Command.STOP, now_ms)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._pursue(now_ms)
        effects, self._effects = self._effects, []
        return effects

    # --- What comes in ----------------------------------------------------------------------------------------------

    def _start(self, memory: Memory, now_ms: int) -> None:
        stale = [p for p in memory.parcels if isinstance(p.entry, NodeRegistered) and p.entry != self._member.offer]
        self._outbox = Outbox(parcel for parcel in memory.parcels if parcel not in stale)
        self._member.recall(memory.registered, memory.is_staked)
        if self._member.is_outdated:
            self._join(now_ms)
        self.assignments.answers = {answer.lease: answer for answer in memory.answers}
        self.assignments.returned = {p.entry.lease for p in memory.parcels if isinstance(p.entry, LeaseEnded)}
        for parcel in memory.parcels:
            match parcel.entry:
                case VerdictGiven(receipt=receipt):
                    self.verdicts.remember(receipt.submission)
                case Inspected(submission=name):
                    self.verdicts.remember(name)
        # Nodes that start together, after a power cut or an upgrade, must not come all at once.
        self._beat_ms = now_ms + int(self._dice.random() * backoff_ms(0, self._dice))

    def _take_reply(self, request: int, reply: Any, now_ms: int) -> None:
        if request == self._beat:
            self._beat = None
            self._follow(reply, now_ms)
        elif request == self._ask:
            self._ask = None
            self._take_lease(reply, now_ms)
        elif request == self._parcel:
            self._parcel = None
            self._conclude(self._outbox.pop(), None, now_ms)

    def _take_refusal(self, request: int, refusal: Refusal | None, now_ms: int) -> None:
        """A refusal, or None where no answer came."""
        retry_after_ms = refusal.retry_after_ms if refusal else 0
        if request == self._beat:
            self._beat = None
            self._beat_ms = now_ms + retry_after_ms + backoff_ms(self._beat_failures, self._dice)
            self._beat_failures += 1
            if refusal and refusal.field == "node":
                self._join(now_ms)
        elif request == self._ask:
            self._ask = None
            self._put_off_asking(retry_after_ms, now_ms)
        elif request == self._parcel:
            self._parcel = None
            if refusal and is_final(refusal):
                self._conclude(self._outbox.pop(), refusal, now_ms)
            else:
                self._outbox.put_off(now_ms, self._dice, retry_after_ms)

    def _follow(self, reply: HeartbeatReply, now_ms: int) -> None:
        """Everything a heartbeat's reply says."""
        self._beat_failures = 0
        self._member.is_known = True
        self._beat_ms = now_ms + int(reply.next_beat_ms * (0.8 + 0.2 * self._dice.random()))
        self._ahead_ms = reply.now_ms - (self._beat_sent_ms + now_ms) // 2
        if reply.head:
            self._effects.append(KeepHead(reply.head))
        if reply.weights is not None:
            self._follow_weights(reply.weights, reply.lag_max, now_ms)
        if self._is_worker:
            self._effects += self.assignments.reconcile(reply.leases, self._beat_sent_ms, now_ms)
        self.verdicts.reconcile(reply.audits)
        self._member.is_staked = self._member.is_staked or bool(reply.leases or reply.audits)
        self._obey(reply.command, now_ms)

    def head_kept(self, size: int) -> None:
        """The shell has checked and kept a head of this size."""
        self._head_size = max(self._head_size, size)

    def _follow_weights(self, weights: Weights, lag_max: int, now_ms: int) -> None:
        is_new = self._weights is None or (weights.step, weights.beacon) != (self._weights.step, self._weights.beacon)
        if self._weights is not None and weights.step < self._weights.step:
            return  # an old reply
        self._weights = weights
        self.assignments.learn(weights, lag_max)
        if is_new:
            self._ask_failures = 0
            self._ask_ms = min(self._ask_ms, now_ms)
        if weights.step > max(self._loading, self.assignments.newest):
            self._loading = weights.step
            self._effects.append(LoadWeights(weights))

    def _obey(self, command: Command, now_ms: int) -> None:
        command = self.wishes.obey(command, now_ms)
        if command is not Command.NONE:
            kept = self.assignments.current if command is Command.DRAIN else None
            for number in [number for number, each in self.assignments.open.items() if each is not kept]:
                self._effects += self.assignments.drop(number)
                self._give_back(LeaseEnded(lease=number, reason=f"the node was told to {command}"), now_ms)

    def _take_lease(self, reply: LeaseReply, now_ms: int) -> None:
        if reply.lease is None:
            self._put_off_asking(reply.retry_ms, now_ms)
            return
        self._ask_failures = 0
        self._member.is_staked = True
        self.assignments.accept(reply.lease, now_ms)
        if not self.assignments.knows(reply.lease.step):
            self._beat_ms = min(self._beat_ms, now_ms)

    def _take_work(self, event: Generated | GenerationFailed | Progressed, now_ms: int) -> None:
        """News of a lease that is being generated."""
        number, server_ms = event.lease, self._server_ms(now_ms)
        match event:
            case Generated(_, work):
                self._work_failures = 0
                self._submit(self.assignments.finish(number, work, now_ms, server_ms))
            case GenerationFailed(_, reason) if number in self.assignments.open:
                self.assignments.drop(number)
                self._give_back(LeaseEnded(lease=number, reason=reason), now_ms)
                self._ask_ms = now_ms + min(FAILED_MS_MAX, FAILED_MS << min(self._work_failures, 10))
                self._work_failures += 1
            case Progressed(_, done, rows) if self.assignments.is_hopeless(
                number, rows_done=done, rows=rows, now_ms=now_ms, server_ms=server_ms
            ):
                self._effects += self.assignments.drop(number)
                self._give_back(LeaseEnded(lease=number, reason="it would not be done before its deadline"), now_ms)

    def _put_off_asking(self, retry_ms: int, now_ms: int) -> None:
        wait_ms = retry_ms + backoff_ms(self._ask_failures, self._dice)
        self._ask_ms = now_ms + min(ASK_MS_MAX, wait_ms)
        self._ask_failures += 1

    def _conclude(self, parcel: Parcel, refusal: Refusal | None, now_ms: int) -> None:
        """The first parcel is logged, or refused for good."""
        self._is_unsaved = True
        entry = parcel.entry
        match entry:
            case NodeRegistered() if refusal is None:
                self._member.registered = entry
                self._beat_ms = now_ms
            case Staked():
                self._member.is_staked = refusal is None
            case Submitted() if refusal is not None and refusal.field != "receipt.lease":
                # The lease is still open, and this was the only answer it will get.
                self._give_back(LeaseEnded(lease=entry.receipt.lease, reason="its file was refused"), now_ms)

    # --- What goes out ----------------------------------------------------------------------------------------------

    def _push(self, entry: Any, until_ms: int, file: Digest | None = None, run: RunId | None = None) -> None:
        self._outbox.push(Parcel(entry, run, until_ms, file))
        self._is_unsaved = True

    def _join(self, now_ms: int) -> None:
        """The coordinator does not know this key."""
        self._push_all(self._member.join(self._outbox.parcels(), self._server_ms(now_ms) + JOIN_LIFE_MS))

    def _push_all(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            self._outbox.push(parcel)
            self._is_unsaved = True

    def _submit(self, entry: Submitted | None) -> None:
        if entry is not None:
            deadline_ms = self.assignments.answers[entry.receipt.lease].deadline_ms
            self._push(entry, deadline_ms, entry.receipt.file_digest, self._profile.run)

    def _judge(self, judged: tuple[VerdictGiven | Inspected, int] | None, finding: Finding) -> None:
        if judged is not None:
            self._push(*judged, file=finding.evidence if finding.has_bundle else None, run=self._profile.run)

    def _appeal(self, submission: Digest, appeal_until_ms: int) -> None:
        """What this node made, it made honestly; what it did not make is not its to defend."""
        told = any(isinstance(p.entry, Appealed) and p.entry.submission == submission for p in self._outbox.parcels())
        if not told:
            entry = Appealed(submission=submission, reason="the file was generated as the run asks")
            self._push(entry, appeal_until_ms, run=self._profile.run)

    def _give_back(self, entry: LeaseEnded, now_ms: int) -> None:
        self.assignments.returned.add(entry.lease)
        self._push(entry, self._server_ms(now_ms) + JOIN_LIFE_MS, run=self._profile.run)

    # --- What is due ------------------------------------------------------------------------------------------------

    def _pursue(self, now_ms: int) -> None:
        """Begin everything that can be begun, and note when to look again."""
        server_ms = self._server_ms(now_ms)
        if self._is_worker:
            effects, returned = self.assignments.advance(now_ms, server_ms)
            self._effects += effects
            for entry in returned:
                self._give_back(entry, now_ms)
        if self.wishes.takes_work:
            self._effects += self.verdicts.advance(server_ms)
        self._push_all(self._member.stake(self._outbox.parcels(), now_ms, server_ms + JOIN_LIFE_MS))
        if self._parcel is None and self._outbox.drop_stale(server_ms):
            self._is_unsaved = True
        if self._is_unsaved:
            self._is_unsaved = False
            answers = tuple(self.assignments.answers.values())
            member = self._member
            self._effects.append(Save(Memory(self._outbox.parcels(), answers, member.is_staked, member.registered)))
        ask_ms = self._find_ask_ms(now_ms) if self._ask is None else NEVER_MS
        self._send_what_is_due(now_ms, ask_ms)
        end = self.wishes.find_end(now_ms, is_idle=not self.is_busy and self._ask is None, is_told=not self._outbox)
        if end is not None:
            self._effects.append(Stop(end))
        self.wake_ms = self._find_wake(now_ms, ask_ms)

    def _send_what_is_due(self, now_ms: int, ask_ms: int) -> None:
        if self._parcel is None and self._outbox and now_ms >= self._outbox.due_ms:
            parcel = self._outbox.first()
            self._parcel = self._send(parcel.entry, parcel.run, parcel.file)
        if now_ms >= ask_ms:
            tokens_per_s = self.assignments.tokens_per_s or self._profile.tokens_per_s
            request = LeaseRequest(checkpoint_step=self.assignments.newest, tokens_per_s=tokens_per_s)
            self._ask = self._send(request, self._profile.run)
        if self._beat is None and now_ms >= self._beat_ms:
            self._beat_sent_ms = now_ms
            beat = Heartbeat(activity=self.activity, checkpoint_step=self.assignments.newest, head_size=self._head_size)
            self._beat = self._send(beat, self._profile.run)

    def _send(self, message: Any, run: RunId | None, file: Digest | None = None) -> int:
        self._requests += 1
        self._effects.append(Send(self._requests, message, run, file))
        return self._requests

    def _find_ask_ms(self, now_ms: int) -> int:
        """When to ask for work, if nothing happens before."""
        desk, weights = self.assignments, self._weights
        if not self._is_worker or weights is None or not self.wishes.takes_work:
            return NEVER_MS
        if not desk.knows(Step(weights.step)) or desk.newest < max(0, weights.step - desk.lag_max):
            return NEVER_MS
        room_ms = desk.room_ms(now_ms)
        return NEVER_MS if room_ms is None else max(room_ms, self._ask_ms)

    def _find_wake(self, now_ms: int, ask_ms: int) -> int:
        wake_ms = self.wishes.stop_ms
        if self._beat is None:
            wake_ms = min(wake_ms, self._beat_ms)
        if self._ask is None:
            wake_ms = min(wake_ms, ask_ms)
        if self._parcel is None and self._outbox:
            wake_ms = min(wake_ms, self._outbox.due_ms)
        deadline_ms = self.assignments.wake_ms()
        if deadline_ms is not None:
            wake_ms = min(wake_ms, deadline_ms - self._ahead_ms)
        return max(now_ms + 1, wake_ms)

    # --- Reading ----------------------------------------------------------------------------------------------------

    @property
    def activity(self) -> Activity:
        if not self.wishes.takes_work:
            return Activity.DRAINING
        if self.is_busy:
            return Activity.WORKING
        return Activity.LOADING if self._loading > self.assignments.newest else Activity.IDLE

    @property
    def is_busy(self) -> bool:
        """There is work in hand."""
        return bool(self.assignments.open) or self.verdicts.is_busy

    def _server_ms(self, now_ms: int) -> int:
        return now_ms + self._ahead_ms
