"""Adversaries that are drawn only when a plan names them, and the list of all adversaries by role."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from prime_lab.simulator.adversaries import (
    ColludingValidator,
    Copycat,
    DrawGrinder,
    Duplicator,
    EquivocatingValidator,
    Forger,
    Hoarder,
    Inflater,
    Latecomer,
    LazyValidator,
    LeaseThief,
    NodeBehavior,
    NonReadingValidator,
    ProtocolFuzzer,
    SilentValidator,
    Sleeper,
    StakeWithdrawer,
    VindictiveValidator,
    attempt_entry,
    attempt_submission,
    make_commitment,
    make_submission,
    make_verdict,
)
from prime_lab.simulator.coordinator_host import HONEST, FakeFile
from prime_lab.simulator.log_history import LoggedLease, LogHistory
from prime_lab.simulator.world import RUN, STAKE, get_wallet
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import AuditTask, LeaseRequest
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import compute_receipt_id

if TYPE_CHECKING:
    from prime_lab.simulator.participants import SimulatedNode


LOG_POLL_MS = 500
"""How often an adversary reads the log."""
SUBMIT_MARGIN_MS = 10_000
"""Before a deadline: time for a submission to arrive."""


class Backdater(Latecomer):
    """Submits after the deadline, in an envelope dated before it."""

    name = "backdater"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        lease = party.world.host.history.leases.get(entry.receipt.lease)
        if lease is not None:
            deadline_ms = lease.granted.entry.deadline_ms
            party.world.at(deadline_ms + 500, attempt_submission, party, entry, deadline_ms - 1)
        return False


class FileSwapper(Forger):
    """Forges, and sends an honest file for the same lease once the log shows that it is audited."""

    name = "swapper"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        party.world.after(LOG_POLL_MS, self._watch, party, entry)
        return True

    def _watch(self, party: "SimulatedNode", entry: e.Submitted) -> None:
        logged = party.world.host.history.submissions.get(compute_receipt_id(entry.receipt))
        if logged is None or not (logged.draws or logged.spared):
            party.world.after(LOG_POLL_MS, self._watch, party, entry)
        elif logged.is_audited:
            submit_honest_replacement(party, entry)


class InformedForger(Forger):
    """Forges, and replaces its file as soon as a colluding validator leaks the audit."""

    name = "confidant"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        def hear(task: AuditTask) -> None:
            if task.submission == compute_receipt_id(entry.receipt):
                submit_honest_replacement(party, entry)

        party.world.leak_handlers[compute_receipt_id(entry.receipt)] = hear
        return True


class DrawLeaker(NodeBehavior):
    """Judges correctly, but first leaks the audit to the worker."""

    name = "leaker"
    role = Role.VALIDATOR

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        hear = party.world.leak_handlers.get(task.submission)
        if hear is not None:
            hear(task)
        return truth


class TwoKeyOwner(NodeBehavior):
    """One of several keys of an owner. It holds its answer back until another of them gets the late lease's twin, and
    then both answer with the same work. An owner without another key is honest.
    """

    name = "two-keys"

    def make_file(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        lease = party.world.host.history.leases.get(honest.lease)
        is_done = lease is not None and has_sibling_lease(party, lease)
        self.time_factor = 0.01 if is_done else 1.0
        return replace(honest, salt=0)

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        """The agent tries again until the last moment."""
        lease = party.world.host.history.leases.get(entry.receipt.lease)
        if lease is None or not list_siblings(party) or has_sibling_lease(party, lease):
            return True
        return bool(party.world.now_ms > lease.granted.entry.deadline_ms - SUBMIT_MARGIN_MS)


class VerdictCopier(NonReadingValidator):
    """Copies the verdict of a validator of an earlier round; accepts in the first, where none can be read in time."""

    name = "parrot"

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        heard = list_verdicts(party, task.submission)
        return heard[-1].outcome if heard else Outcome.ACCEPT

    def make_read_proof(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        heard = list_verdicts(party, submission)
        return heard[-1].read_proof if heard else super().make_read_proof(party, submission, reader)


class PersecutingValidator(NodeBehavior):
    """Calls the files of one worker fraudulent, the same worker as all others of its kind, and judges the rest well."""

    name = "persecutor"
    role = Role.VALIDATOR
    lie = Outcome.FRAUDULENT

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return self.lie if task.node == find_victim(party.world.host.history) else truth


class PayDenier(PersecutingValidator):
    """Calls the victim's files invalid, which costs no stake and cannot be appealed."""

    name = "denier"
    lie = Outcome.INVALID


class VerdictWithholder(PersecutingValidator):
    """Commits to its lie as the others do, and gives it only if no other validator of its round has accepted."""

    name = "withholder"

    def on_reveal(self, party: "SimulatedNode", entry: e.VerdictGiven) -> bool:
        if entry.outcome is not self.lie:
            return True
        logged = party.world.host.history.submissions[entry.receipt.submission]
        drawn = set(logged.draws[-1].entry.validators)
        given = {line.author: line.entry.outcome for line in logged.verdicts if line.author in drawn}
        is_last = given.keys() >= drawn - {party.node}
        return is_last and Outcome.ACCEPT not in given.values()


def find_victim(history: LogHistory) -> NodeId:
    """The worker that persecutors have agreed on: the first that submitted anything."""
    victim: NodeId = next(iter(history.submissions.values())).receipt.node
    return victim


class VerdictWaiter(NonReadingValidator):
    """Commits to nothing until it can read another verdict of its round, and then tries to give the same."""

    name = "waiter"

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        self._watch(party, task)
        return None

    def _watch(self, party: "SimulatedNode", task: AuditTask) -> None:
        logged = party.world.host.history.submissions[task.submission]
        if logged.settled or logged.draws[-1].entry.round > task.round:
            return
        drawn = logged.draws[-1].entry.validators
        others = [line.entry for line in logged.verdicts if line.author in drawn]
        if not others:
            party.world.after(LOG_POLL_MS, self._watch, party, task)
            return
        copied = make_verdict(party, task.submission, others[0].outcome)
        for entry in (make_commitment(copied), copied):
            attempt_entry(party, entry, task.submission)


class OwnerLeaver(NodeBehavior):
    """A validator that leaves its owner as soon as a worker of that owner has a lease. It then stakes by itself, so
    that it might be drawn for the worker's files. A validator without an owner, or without such a worker, is honest.
    """

    name = "leaver"
    role = Role.VALIDATOR
    own_nano = STAKE

    def attack(self, party: "SimulatedNode") -> None:
        history = party.world.host.history
        owner = find_owner_key(party)
        if owner is None or owner.node not in history.all_owners.get(party.node, ()):
            return
        if history.owners[party.node] == party.node:
            party.post(e.Staked(node=party.node, amount_nano=STAKE), None)
        elif any(history.leases[number].owner == owner.node for number in history.open_leases):
            party.post(e.DelegationRevoked(node=party.node), None, key=owner)


class WorkerLeaver(NodeBehavior):
    """A worker whose owner revokes its delegation once a submission of it is in the log and not drawn yet, so that the
    owner's validators might judge it. It then stakes by itself. A worker without an owner is honest.
    """

    name = "disowned"
    own_nano = STAKE

    def attack(self, party: "SimulatedNode") -> None:
        history = party.world.host.history
        owner = find_owner_key(party)
        if owner is None or owner.node not in history.all_owners.get(party.node, ()):
            return
        mine = [history.submissions[name] for name in history.unsettled]
        if history.owners[party.node] == party.node:
            party.post(e.Staked(node=party.node, amount_nano=STAKE), None)
        elif any(logged.receipt.node == party.node and not logged.draws for logged in mine):
            party.post(e.DelegationRevoked(node=party.node), None, key=owner)


class DrawJoiner(NodeBehavior):
    """A validator whose stake falls below the least one and rises again every few seconds, so that it often joins when
    the round of a draw is published. If candidates were permuted together, each of its entries would draw again.
    """

    name = "joiner"
    role = Role.VALIDATOR

    def attack(self, party: "SimulatedNode") -> None:
        core = party.world.host.core
        if core is None or party.node not in core.state.nodes:
            return
        above_nano = core.state.get_stake(party.node) - party.world.host.history.terms.stake_min_nano
        kind, amount_nano = (e.Unbonded, above_nano + 1) if above_nano >= 0 else (e.Staked, -above_nano)
        party.post(kind(node=party.node, amount_nano=amount_nano), None, key=find_owner_key(party))


class DrawSuspender(NodeBehavior):
    """A validator in league with the operator, who knows rounds early: it suspends others while draws wait for a round,
    and lets them back a few seconds later.
    """

    name = "suspender"
    role = Role.VALIDATOR
    reason = "unwanted in a draw"

    def attack(self, party: "SimulatedNode") -> None:
        core = party.world.host.core
        if core is None or RUN not in core.state.runs:
            return
        run = core.state.runs[RUN]
        for node in [node for node, reason in run.suspended.items() if reason == self.reason]:
            self._set_status(party, node, e.NodeStatus.ACTIVE)
        others = sorted(run.validators.keys() - {party.node})
        if core.state.pending_rounds and others:
            self._set_status(party, others[core.state.size % len(others)], e.NodeStatus.DRAINED)

    def _set_status(self, party: "SimulatedNode", node: NodeId, status: e.NodeStatus) -> None:
        entry = e.NodeStatusSet(node=node, status=status, reason=self.reason, run=RUN)
        party.world.append_operator_entry(entry, None)


class CapacityLiar(NodeBehavior):
    """Claims a huge engine, is measured with two honest leases, then takes all that it gets and answers nothing."""

    name = "capacity-liar"
    delivers = 2
    requests = 20

    def make_request(self, request: LeaseRequest) -> LeaseRequest:
        return replace(request, tokens_per_s=2**40, rows_at_once=2**40)

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        answered = {logged.receipt.lease for logged in party.world.host.history.submissions.values()}
        mine = [answer.lease for answer in party.disk.answers if answer.lease in answered]
        return len(mine) < self.delivers or entry.receipt.lease in mine

    def attack(self, party: "SimulatedNode") -> None:
        """More requests than its agent would send."""
        request = LeaseRequest(checkpoint_step=max(0, party.world.host.history.latest), tokens_per_s=1)
        for _ in range(self.requests):
            party.post(self.make_request(request), RUN)


def find_owner_key(party: "SimulatedNode") -> WalletKey | None:
    """An owner is named after the first of its nodes, and has at most four in a row."""
    if party.profile.delegation is None:
        return None
    keys = (get_wallet(f"owner {number}") for number in range(party.number - 3, party.number + 1))
    return next(key for key in keys if key.node == party.profile.delegation.delegation.owner)


def list_verdicts(party: "SimulatedNode", submission: Digest) -> list[e.VerdictGiven]:
    """Verdicts on a submission so far."""
    logged = party.world.host.history.submissions.get(submission)
    return [line.entry for line in logged.verdicts] if logged else []


ADVERSARIES: tuple[type[NodeBehavior], ...] = (
    Forger,
    Sleeper,
    Hoarder,
    Latecomer,
    Duplicator,
    Copycat,
    Inflater,
    LeaseThief,
    StakeWithdrawer,
    ProtocolFuzzer,
    LazyValidator,
    VindictiveValidator,
    ColludingValidator,
    SilentValidator,
    EquivocatingValidator,
)
RARE_ADVERSARIES: tuple[type[NodeBehavior], ...] = (
    Backdater,
    DrawGrinder,
    FileSwapper,
    VerdictCopier,
    PersecutingValidator,
    PayDenier,
    VerdictWithholder,
    VerdictWaiter,
    OwnerLeaver,
    WorkerLeaver,
    DrawJoiner,
    DrawSuspender,
    InformedForger,
    DrawLeaker,
    TwoKeyOwner,
    CapacityLiar,
)
"""Drawn only when named, so that adding one does not change what a seed draws."""
ADVERSARY_NAMES = tuple(kind.name for kind in (*ADVERSARIES, *RARE_ADVERSARIES))


def submit_honest_replacement(party: "SimulatedNode", entry: e.Submitted) -> None:
    """Submit an honest file for a lease that already has a forged one."""
    file = party.world.files.get(entry.receipt.file_digest)
    assert file is not None
    attempt_submission(party, make_submission(party, replace(file, forgery=HONEST, salt=file.salt + 1)), about=entry)


def list_siblings(party: "SimulatedNode") -> set[NodeId]:
    """Other keys of the same owner."""
    owners = party.world.host.history.owners
    return {node for node, owner in owners.items() if owner == owners.get(party.node)} - {party.node}


def has_sibling_lease(party: "SimulatedNode", lease: LoggedLease) -> bool:
    """Whether another key of the owner has a lease of the same slots."""
    siblings, mine = list_siblings(party), lease.granted.entry
    return any(
        other.granted.entry.node in siblings and (other.granted.entry.step, other.slots) == (mine.step, lease.slots)
        for other in party.world.host.history.leases.values()
    )


def draw_behavior(role: Role, allowed: tuple[str, ...], rng: Random) -> NodeBehavior:
    """An adversary for a role; honest if none of the allowed kinds has that role."""
    fit: list[Callable[[], NodeBehavior]] = [
        kind
        for kind in (*ADVERSARIES, *(RARE_ADVERSARIES if allowed else ()))
        if kind.role is role and (not allowed or kind.name in allowed)
    ]
    return rng.choice(fit)() if fit else NodeBehavior()
