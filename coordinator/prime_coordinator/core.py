"""The coordinator's decisions, all of them: requests and the clock in, entries and replies out. Pure.

The server, the simulator and the tests drive this same object. It is made from a ledger, so a restart is: replay the
log, make a new one. What it decides takes effect on disk when the server has written `scribe.drain()`.
"""

from typing import Any

from prime_coordinator.admission import Admission
from prime_coordinator.audits import AuditDesk
from prime_coordinator.constants import HEAD_MS_MIN
from prime_coordinator.leases import LeaseDesk
from prime_coordinator.liveness import Liveness
from prime_coordinator.scribe import Scribe
from prime_protocol.constants import HEARTBEAT_MS
from prime_protocol.entries import (
    Appealed,
    CheckpointPublished,
    Delegated,
    DelegationRevoked,
    Deposited,
    HeadNoted,
    LeaseEnded,
    NodeRegistered,
    NodeStatus,
    NodeStatusSet,
    PaidOut,
    RunCreated,
    RunStatusSet,
    RunUpdated,
    Submitted,
    VerdictGiven,
)
from prime_protocol.envelope import Letter
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId, RunId, Step
from prime_protocol.ledger import Ledger
from prime_protocol.messages import Command, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest, Logged, Weights
from prime_protocol.receipts import receipt_id
from prime_protocol.signing import WalletKey
from prime_protocol.state import RunState, State

ORDERS = (Deposited, NodeStatusSet, RunCreated, RunStatusSet, RunUpdated)
"""Entries of the coordinator that an operator asks for. All others it writes by itself, when they are due."""

COMMANDS = {NodeStatus.ACTIVE: Command.NONE, NodeStatus.DRAINED: Command.DRAIN, NodeStatus.BANNED: Command.STOP}


class Core:
    """One coordinator."""

    def __init__(self, key: WalletKey, ledger: Ledger, *, now_ms: int) -> None:
        self.scribe = Scribe(key, ledger)
        self.liveness = Liveness()
        self.admission = Admission(ledger.state)
        self.leases = LeaseDesk(self.scribe, now_ms)
        self.audits = AuditDesk(self.scribe)
        self.head = b""
        """The newest signed head that is on disk, for replies; the server sets it."""
        self.head_size = 0
        self._head_ms = 0

    @property
    def state(self) -> State:
        return self.scribe.state

    # --- Requests ---------------------------------------------------------------------------------------------------

    def beat(self, node: NodeId, run: RunId, beat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Note that a node is there, and tell it all it needs."""
        known = self.state.node(node)
        run_state = self._run(run)
        self.liveness.beat(node, beat.activity, beat.checkpoint_step, now_ms)
        return HeartbeatReply(
            now_ms=now_ms,
            next_beat_ms=HEARTBEAT_MS,
            head=self.head if self.head_size > beat.head_size else b"",
            weights=self._weights(run_state),
            lag_max=run_state.terms.lag_max,
            leases=self.leases.open_leases(node),
            audits=self.audits.tasks(node),
            command=COMMANDS[known.status],
            version_min=run_state.terms.version_min,
            upgrade_by_ms=0,
        )

    def request_lease(self, node: NodeId, run: RunId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        self._run(run)
        self.state.node(node)
        return self.leases.request(run, node, request, now_ms)

    def take(self, letter: Letter, entry: Any, frame: bytes, *, address_group: str, now_ms: int) -> Logged:
        """Log an entry that somebody sent, and let it have its consequences."""
        state, node = self.state, letter.sender
        if isinstance(entry, NodeRegistered):
            self.admission.check_registration(state, node, address_group, now_ms)
        if isinstance(entry, Delegated):
            self.admission.check_delegation(state, node, entry.delegation.owner)
        old_owner = state.owners.get(entry.node if isinstance(entry, DelegationRevoked) else node)
        lease_node = self._lease_node(letter.run, entry)
        logged = self.scribe.take(letter, frame, now_ms)
        self._follow(letter, entry, old_owner, lease_node, now_ms)
        return logged

    def order(self, entry: Any, run: RunId | None, now_ms: int) -> Logged:
        """Log an entry on the operator's behalf; RemoteError if a rule refuses it."""
        assert isinstance(entry, ORDERS), f"{type(entry).__name__} is not the operator's to write"
        index = self.state.size
        self.scribe.write(entry, run, now_ms)
        return Logged(index=index, at_ms=self.state.at_ms)

    def _lease_node(self, run: RunId | None, entry: Any) -> NodeId | None:
        """Whose lease an entry ends, read before the ledger forgets it."""
        if not isinstance(entry, LeaseEnded) or run is None or run not in self.state.runs:
            return None
        lease = self.state.runs[run].leases.get(entry.lease)
        return lease.node if lease else None

    def _follow(self, letter: Letter, entry: Any, old_owner: NodeId | None, lease_node: Any, now_ms: int) -> None:
        node, run = letter.sender, letter.run
        match entry:
            case NodeRegistered() if old_owner is None:
                self.admission.delegated(None, node)
            case Delegated(delegation=delegation):
                self.admission.delegated(old_owner, delegation.owner)
            case DelegationRevoked(node=revoked):
                self.admission.delegated(old_owner, revoked)
            case CheckpointPublished() if run is not None:
                self.leases.published(run, now_ms)
            case Submitted(receipt=receipt) if run is not None:
                name = receipt_id(receipt)
                self.leases.submitted(run, self.state.runs[run].submissions[name], now_ms)
                self.audits.wake(run, name)
            case VerdictGiven(receipt=receipt) if run is not None:
                self.audits.judged(node, run, receipt.submission)
            case Appealed(submission=submission) if run is not None:
                self.audits.wake(run, submission)
            case LeaseEnded(lease=lease) if run is not None:
                self.leases.ended(run, lease, lease_node)

    # --- The clock --------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Everything that time makes due."""
        self.liveness.tick(now_ms)
        self.leases.tick(now_ms)
        self._note_head(now_ms)
        self.audits.tick(now_ms)
        for run, name in self.audits.just_settled:
            submission = self.state.runs[run].submissions.get(name)
            if submission is not None:
                self.leases.settled(run, submission)
        self.audits.just_settled.clear()
        self._pay(now_ms)

    def _note_head(self, now_ms: int) -> None:
        """Where a beacon or a draw waits for one, and not too often."""
        waiting = [(name, list(run.without_head)) for name, run in self.state.runs.items()]
        is_wanted = any(names for _, names in waiting) or any(run.without_beacon for run in self.state.runs.values())
        if not is_wanted or now_ms - self._head_ms < HEAD_MS_MIN:
            return
        self._head_ms = now_ms
        self.scribe.write(HeadNoted(root=self.state.frontier.root()), None, now_ms)
        for run, names in waiting:
            for name in names:
                self.audits.wake(run, name)

    def _pay(self, now_ms: int) -> None:
        """Pay out the steps that are over and owe nothing."""
        for name, run in self.state.runs.items():
            for number in [number for number, step in run.steps.items() if not step.paid and not step.pending]:
                if number < run.latest:
                    self._try_pay(name, number, now_ms)

    def _try_pay(self, run: RunId, step: Step, now_ms: int) -> None:
        try:
            self.scribe.write(PaidOut(step=step), run, now_ms)
        except RemoteError:
            return  # a slash or credit of the step is still to come

    # --- Reading ----------------------------------------------------------------------------------------------------

    def _run(self, name: RunId) -> RunState:
        if name not in self.state.runs:
            raise RemoteError("run", f"{name} was not created here")
        return self.state.runs[name]

    def _weights(self, run: RunState) -> Weights | None:
        checkpoint = run.checkpoints.get(Step(run.latest))
        if checkpoint is None:
            return None
        step = Step(run.latest)
        return Weights(step=step, root=checkpoint.root, manifest=checkpoint.manifest, beacon=checkpoint.beacon)
