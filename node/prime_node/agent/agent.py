"""All decisions of a node in one run: events and the time in, effects out. Pure.

The daemon and the simulator drive this same object. It sends heartbeats, loads weights, requests leases while it has
room, answers them, gives verdicts and follows commands. Times are this machine's. Deadlines are the coordinator's,
whose clock is estimated from its replies. After each event `wake_ms` says when to come back with a Tick. A validator of
several runs has an agent for each, over one AuditSchedule; the first also registers the node and stakes for it.
"""

from random import Random
from typing import Any, assert_never

from prime_node.agent.assignments import AuditAssignments, LeaseAssignments
from prime_node.agent.audit_schedule import AuditSchedule
from prime_node.agent.control_state import NEVER_MS, ControlState
from prime_node.agent.events import (
    AuditDone,
    AuditFailed,
    CheckTreeHead,
    CosignTreeHead,
    DrainRequested,
    Effect,
    EngineReported,
    Event,
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
from prime_node.agent.outbox import REGISTRATION_TTL_MS, Membership, NodeProfile, Outbox, backoff_ms, is_final
from prime_protocol.ledger.entries import (
    Appealed,
    LeaseEnded,
    NodeRegistered,
    Role,
    Staked,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.wire.ids import Digest, RunId, Step
from prime_protocol.wire.messages import (
    CheckpointRef,
    Cosigned,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
    NodeCommand,
)
from prime_protocol.wire.rpc import Refusal
from prime_protocol.wire.signing import WalletKey

LEASE_RETRY_MS_MAX = 30_000
"""Longest wait between two lease requests that brought no lease."""

FAILED_LEASE_WAIT_MS = 5_000
FAILED_LEASE_WAIT_MS_MAX = 600_000
"""Wait after a lease that failed on this machine, doubling with each: the cause may still be there."""


class Agent:
    """The decisions of one node in one run."""

    def __init__(
        self, key: WalletKey, profile: NodeProfile, rng: Random, schedule: AuditSchedule | None = None
    ) -> None:
        """`schedule`: shared with the agents of the node's other runs; None where this is the only one."""
        self._key = key
        self._profile = profile
        self._rng = rng
        self._is_worker = Role.WORKER in profile.roles
        self._outbox = Outbox()
        self.leases = LeaseAssignments(key, profile.network, profile.run, profile.domain)
        self.audits = AuditAssignments(
            key,
            profile.network,
            profile.run,
            profile.domain,
            schedule=schedule or AuditSchedule(profile.audits_at_once),
        )
        self._effects: list[Effect] = []
        self._is_dirty = False
        self._last_request = 0
        self._heartbeat_request: int | None = None
        """Number of the request in flight, for each of the three kinds."""
        self._lease_request: int | None = None
        self._entry_request: int | None = None
        self._heartbeat_due_ms = 0
        self._heartbeat_sent_ms = 0
        self._heartbeat_failures = 0
        self._lease_request_due_ms = 0
        self._lease_request_failures = 0
        self._weights: CheckpointRef | None = None
        self._loading_step: int = -1
        self._head_size = 0
        self._cosigned: Cosigned | None = None
        """The cosignature that the next heartbeat takes along."""
        self._updates_seen = 0
        self._clock_offset_ms = 0
        """How far the coordinator's clock is ahead of this one."""
        self._generation_failures = 0
        self.control = ControlState()
        self._membership = Membership(key.node, profile)
        self.wake_ms = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Started(state):
                self._start(state, now_ms)
            case ReplyReceived(request, reply):
                self._handle_reply(request, reply, now_ms)
            case SendRefused(request, refusal):
                self._handle_refusal(request, refusal, now_ms)
            case SendTimedOut(request):
                self._handle_refusal(request, None, now_ms)
            case LogRolledBack():
                self._roll_back(event, now_ms)
            case WeightsReady(step, root):
                self.leases.checkpoints[step] = root
                self._lease_request_due_ms = min(self._lease_request_due_ms, now_ms)
            case WeightsFailed(step):
                self._loading_step = -1 if self._loading_step == step else self._loading_step
            case Generated() | GenerationFailed() | GenerationProgressed():
                self._handle_generation(event, now_ms)
            case EngineReported():
                self.leases.room.record_report(event)
            case AuditDone(submission, finding):
                finished = self.audits.finish(submission, finding, self.get_server_ms(now_ms))
                self._queue_entries([finished] if finished is not None else [])
            case AuditFailed(submission):
                self.audits.retry_later(submission, self.get_server_ms(now_ms))
            case SlashReported(submission, appeal_until_ms, is_own):
                if is_own or self.leases.has_submitted(submission):
                    self._queue_appeal(submission, appeal_until_ms)
            case HeadCosigned(cosigned):
                # At once: it counts only if it arrives before the round that the head waits for.
                self._cosigned = cosigned
                self._heartbeat_due_ms = now_ms
            case StakeMissing(amount_nano):
                self._membership.set_missing_stake(amount_nano)
            case HoldChanged(reason):
                self.control.hold_reason = reason
            case DrainRequested():
                self.control.is_draining = True
            case StopRequested():
                self.control.is_stopping = True
                self._apply_command(NodeCommand.STOP, now_ms)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._advance(now_ms)
        effects, self._effects = self._effects, []
        return effects

    # --- Events -----------------------------------------------------------------------------------------------------

    def _start(self, state: SavedState, now_ms: int) -> None:
        stale = [
            p for p in state.pending if isinstance(p.entry, NodeRegistered) and p.entry != self._membership.registration
        ]
        self._outbox = Outbox(pending for pending in state.pending if pending not in stale)
        self._membership.restore(state.registered, state.is_staked)
        if self._membership.is_outdated:
            self._queue_registration(now_ms)
        self.leases.answers = {answer.lease: answer for answer in state.answers}
        self.leases.returned = {p.entry.lease for p in state.pending if isinstance(p.entry, LeaseEnded)}
        self.audits.restore(state)
        # Nodes that start together, after a power cut or an upgrade, must not all send at the same moment.
        self._heartbeat_due_ms = now_ms + int(self._rng.random() * backoff_ms(0, self._rng))

    def _handle_reply(self, request: int, reply: Any, now_ms: int) -> None:
        if request == self._heartbeat_request:
            self._heartbeat_request = None
            self._apply_heartbeat_reply(reply, now_ms)
        elif request == self._lease_request:
            self._lease_request = None
            self._handle_lease_reply(reply, now_ms)
        elif request == self._entry_request:
            self._entry_request = None
            pending = self._outbox.pop()
            self._finish_entry(pending, None, now_ms)
            if isinstance(pending.entry, VerdictCommitted) and reply.can_reveal:
                self._queue_entries(self.audits.take_revealed([pending.entry.submission]))

    def _handle_refusal(self, request: int, refusal: Refusal | None, now_ms: int) -> None:
        """`refusal` is None where no answer came."""
        retry_after_ms = refusal.retry_after_ms if refusal else 0
        if request == self._heartbeat_request:
            self._heartbeat_request = None
            self._heartbeat_due_ms = now_ms + retry_after_ms + backoff_ms(self._heartbeat_failures, self._rng)
            self._heartbeat_failures += 1
            if refusal and refusal.field == "node":
                self._queue_registration(now_ms)
        elif request == self._lease_request:
            self._lease_request = None
            self._delay_lease_request(retry_after_ms, now_ms)
        elif request == self._entry_request:
            self._entry_request = None
            if refusal and is_final(refusal):
                self._finish_entry(self._outbox.pop(), refusal, now_ms)
            else:
                self._outbox.schedule_retry(now_ms, self._rng, retry_after_ms)

    def _apply_heartbeat_reply(self, reply: HeartbeatReply, now_ms: int) -> None:
        """Follows everything that the reply says."""
        self._heartbeat_failures = 0
        self._membership.is_known = True
        self._heartbeat_due_ms = now_ms + int(reply.next_heartbeat_ms * (0.8 + 0.2 * self._rng.random()))
        self._clock_offset_ms = reply.now_ms - (self._heartbeat_sent_ms + now_ms) // 2
        if reply.updates:
            self._updates_seen = reply.updates[-1].number
        if reply.head:
            self._effects.append(CheckTreeHead(reply.head, reply.restored_size))
        if reply.witness:
            self._effects.append(CosignTreeHead(reply.witness))
        if reply.weights is not None:
            self._apply_weights(reply.weights, reply.lag_max, now_ms)
        if self._is_worker:
            self._effects += self.leases.reconcile(reply.leases, self._heartbeat_sent_ms, now_ms)
        self.audits.reconcile(reply.audits)
        self._queue_entries(self.audits.take_revealed(reply.reveals))
        self._membership.is_staked = self._membership.is_staked or bool(reply.leases or reply.audits)
        self._apply_command(reply.command, now_ms)

    def _roll_back(self, event: LogRolledBack, now_ms: int) -> None:
        """Forget what only the lost entries said: beacons, audits, the newest step."""
        self._head_size = event.head_size
        self._weights, self._loading_step = None, -1
        self.leases.forget_steps()
        self.audits.forget_done()
        self._queue_entries(list(event.resent))
        self._heartbeat_due_ms = now_ms

    def set_head_size(self, size: int) -> None:
        """The head monitor has verified a tree head of this size."""
        self._head_size = max(self._head_size, size)

    def _apply_weights(self, weights: CheckpointRef, lag_max: int, now_ms: int) -> None:
        is_new = self._weights is None or (weights.step, weights.beacon) != (self._weights.step, self._weights.beacon)
        if self._weights is not None and weights.step < self._weights.step:
            return  # a reply that was overtaken
        self._weights = weights
        self.leases.apply_weights(weights, lag_max)
        if is_new:
            self._lease_request_failures = 0
            self._lease_request_due_ms = min(self._lease_request_due_ms, now_ms)
        if weights.step > max(self._loading_step, self.leases.newest_checkpoint):
            self._loading_step = weights.step
            self._effects.append(LoadWeights(weights))

    def _apply_command(self, command: NodeCommand, now_ms: int) -> None:
        command = self.control.apply_command(command, now_ms)
        if command is not NodeCommand.NONE:
            is_drain = command is NodeCommand.DRAIN
            for number in [n for n, each in self.leases.open.items() if each.started_ms is None or not is_drain]:
                self._effects += self.leases.drop(number)
                self._return_lease(LeaseEnded(lease=number, reason=f"the node was told to {command}"), now_ms)

    def _handle_lease_reply(self, reply: LeaseReply, now_ms: int) -> None:
        if reply.lease is None:
            self._delay_lease_request(reply.retry_ms, now_ms)
            return
        self._lease_request_failures = 0
        self._membership.is_staked = True
        self.leases.accept(reply.lease, now_ms)
        if not self.leases.has_beacon(reply.lease.step):
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)

    def _handle_generation(self, event: Generated | GenerationFailed | GenerationProgressed, now_ms: int) -> None:
        """Progress or end of a lease that is being generated."""
        number, server_ms = event.lease, self.get_server_ms(now_ms)
        match event:
            case Generated(_, work):
                self._generation_failures = 0
                self._queue_submission(self.leases.finish(number, work, now_ms, server_ms))
            case GenerationFailed(_, reason) if number in self.leases.open:
                self.leases.drop(number)
                self._return_lease(LeaseEnded(lease=number, reason=reason), now_ms)
                self._lease_request_due_ms = now_ms + min(
                    FAILED_LEASE_WAIT_MS_MAX, FAILED_LEASE_WAIT_MS << min(self._generation_failures, 10)
                )
                self._generation_failures += 1
            case GenerationProgressed(_, done, rows):
                self.leases.record_progress(number, rows_done=done, rows=rows, now_ms=now_ms)
                if self.leases.would_miss_deadline(number, now_ms=now_ms, server_ms=server_ms):
                    self._effects += self.leases.drop(number)
                    reason = "it would not be done before its deadline"
                    self._return_lease(LeaseEnded(lease=number, reason=reason), now_ms)

    def _delay_lease_request(self, retry_ms: int, now_ms: int) -> None:
        wait_ms = retry_ms + backoff_ms(self._lease_request_failures, self._rng)
        self._lease_request_due_ms = now_ms + min(LEASE_RETRY_MS_MAX, wait_ms)
        self._lease_request_failures += 1

    def _finish_entry(self, pending: PendingEntry, refusal: Refusal | None, now_ms: int) -> None:
        """The first entry of the outbox is in the log, or refused for good."""
        self._is_dirty = True
        entry = pending.entry
        match entry:
            case NodeRegistered() if refusal is None:
                self._membership.registered = entry
                self._heartbeat_due_ms = now_ms
            case Staked():
                self._membership.is_staked = refusal is None
            case Submitted() if refusal is None:
                # What was delivered makes room for more.
                self._lease_request_failures = 0
                self._lease_request_due_ms = min(self._lease_request_due_ms, now_ms)
            case VerdictCommitted(submission=name) if refusal is not None:
                self.audits.committed.pop(name, None)
            case VerdictGiven() if refusal is not None and refusal.field == "commitment":
                # The coordinator lost the last commitment of the round in a crash: it will come again.
                self.audits.keep_committed(pending)
            case Submitted() if refusal is not None and refusal.field != "receipt.lease":
                # The lease is still open, and this node never gives a second answer to it.
                self._return_lease(LeaseEnded(lease=entry.receipt.lease, reason="its file was refused"), now_ms)

    # --- Entries ----------------------------------------------------------------------------------------------------

    def _queue_entry(self, entry: Any, until_ms: int, file: Digest | None = None, run: RunId | None = None) -> None:
        self._outbox.push(PendingEntry(entry, run, until_ms, file))
        self._is_dirty = True

    def _queue_registration(self, now_ms: int) -> None:
        """The coordinator does not know this key, or not what it offers. One agent of the node tells it."""
        if not self._profile.registers:
            return
        self._queue_entries(
            self._membership.make_registration(
                self._outbox.list_entries(), self.get_server_ms(now_ms) + REGISTRATION_TTL_MS
            )
        )

    def _queue_entries(self, entries: list[PendingEntry]) -> None:
        for pending in entries:
            self._outbox.push(pending)
            self._is_dirty = True

    def _queue_submission(self, entry: Submitted | None) -> None:
        if entry is not None:
            deadline_ms = self.leases.answers[entry.receipt.lease].deadline_ms
            self._queue_entry(entry, deadline_ms, entry.receipt.file_digest, self._profile.run)

    def _queue_appeal(self, submission: Digest, appeal_until_ms: int) -> None:
        """Appeals once, and only for a file that this node has submitted."""
        is_pending = any(
            isinstance(p.entry, Appealed) and p.entry.submission == submission for p in self._outbox.list_entries()
        )
        if not is_pending:
            entry = Appealed(submission=submission, reason="the file was generated as the run asks")
            self._queue_entry(entry, appeal_until_ms, run=self._profile.run)

    def _return_lease(self, entry: LeaseEnded, now_ms: int) -> None:
        self.leases.returned.add(entry.lease)
        self._queue_entry(entry, self.get_server_ms(now_ms) + REGISTRATION_TTL_MS, run=self._profile.run)

    # --- Due actions ------------------------------------------------------------------------------------------------

    def _advance(self, now_ms: int) -> None:
        """Starts everything that is due, and sets `wake_ms`."""
        server_ms = self.get_server_ms(now_ms)
        if self._is_worker:
            effects, returned = self.leases.advance(now_ms, server_ms)
            self._effects += effects
            for entry in returned:
                self._return_lease(entry, now_ms)
        self._effects += self.audits.advance(server_ms, accepts_work=self.control.accepts_audits)
        self._queue_entries(
            self._membership.make_stake(self._outbox.list_entries(), now_ms, server_ms + REGISTRATION_TTL_MS)
        )
        self._outbox.release_held(now_ms)
        if self._entry_request is None and self._outbox.drop_stale(server_ms):
            self._is_dirty = True
        self._is_dirty |= self.audits.drop_expired(server_ms)
        if self._is_dirty:
            self._is_dirty = False
            answers = tuple(self.leases.answers.values())
            member = self._membership
            self._effects.append(
                SaveState(
                    SavedState(
                        self._outbox.list_entries(),
                        answers,
                        member.is_staked,
                        member.registered,
                        tuple(self.audits.committed.values()),
                    )
                )
            )
        ask_ms = self._next_lease_request_ms(now_ms) if self._lease_request is None else NEVER_MS
        self._send_due(now_ms, ask_ms)
        end = self.control.find_stop_reason(
            now_ms,
            is_idle=not self.is_busy and self._lease_request is None,
            is_outbox_empty=not self._outbox and not self.audits.committed,
        )
        if end is not None:
            self._effects.append(Stop(end))
        self.wake_ms = self._next_wake_ms(now_ms, ask_ms)

    def _send_due(self, now_ms: int, ask_ms: int) -> None:
        if self._entry_request is None and self._outbox and now_ms >= self._outbox.due_ms:
            pending = self._outbox.first()
            self._entry_request = self._send(pending.entry, pending.run, pending.file)
        if now_ms >= ask_ms:
            tokens_per_s = self.leases.tokens_per_s or self._profile.tokens_per_s
            request = LeaseRequest(
                checkpoint_step=self.leases.newest_checkpoint,
                tokens_per_s=tokens_per_s,
                rows_at_once=self.leases.room.rows_at_once,
            )
            self._lease_request = self._send(request, self._profile.run)
        if self._heartbeat_request is None and now_ms >= self._heartbeat_due_ms:
            self._heartbeat_sent_ms = now_ms
            heartbeat = Heartbeat(
                activity=self.activity,
                checkpoint_step=self.leases.newest_checkpoint,
                head_size=self._head_size,
                cosigned=self._cosigned,
                updates_seen=self._updates_seen,
            )
            self._cosigned = None
            self._heartbeat_request = self._send(heartbeat, self._profile.run)

    def _send(self, message: Any, run: RunId | None, file: Digest | None = None) -> int:
        self._last_request += 1
        self._effects.append(Send(self._last_request, message, run, file))
        return self._last_request

    def _next_lease_request_ms(self, now_ms: int) -> int:
        """When to request a lease, if nothing happens before."""
        leases, weights = self.leases, self._weights
        if not self._is_worker or weights is None or not self.control.accepts_work:
            return NEVER_MS
        if not leases.has_beacon(Step(weights.step)) or leases.newest_checkpoint < max(
            0, weights.step - leases.lag_max
        ):
            return NEVER_MS
        room_ms = leases.next_room_ms(now_ms)
        return NEVER_MS if room_ms is None else max(room_ms, self._lease_request_due_ms)

    def _next_wake_ms(self, now_ms: int, ask_ms: int) -> int:
        wake_ms = self.control.stop_ms
        if self._heartbeat_request is None:
            wake_ms = min(wake_ms, self._heartbeat_due_ms)
        if self._lease_request is None:
            wake_ms = min(wake_ms, ask_ms)
        if self._entry_request is None and self._outbox:
            wake_ms = min(wake_ms, self._outbox.due_ms)
        wake_ms = min(wake_ms, *(due_ms for due_ms, _ in self._outbox.list_held()), NEVER_MS)
        deadline_ms = self.leases.next_deadline_ms()
        if deadline_ms is not None:
            wake_ms = min(wake_ms, deadline_ms - self._clock_offset_ms)
        return max(now_ms + 1, wake_ms)

    # --- State ------------------------------------------------------------------------------------------------------

    @property
    def activity(self) -> NodeActivity:
        if not self.control.accepts_work:
            return NodeActivity.DRAINING
        if self.is_busy:
            return NodeActivity.WORKING
        return NodeActivity.LOADING if self._loading_step > self.leases.newest_checkpoint else NodeActivity.IDLE

    @property
    def is_busy(self) -> bool:
        """It holds leases or runs audits."""
        return bool(self.leases.open) or self.audits.is_busy

    def list_held(self) -> tuple[tuple[int, PendingEntry], ...]:
        """Entries that the log takes only later, and when."""
        return self._outbox.list_held()

    def get_server_ms(self, now_ms: int) -> int:
        """The coordinator's time."""
        return now_ms + self._clock_offset_ms
