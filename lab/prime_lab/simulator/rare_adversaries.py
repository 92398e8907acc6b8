"""Which liars there are, and how one is drawn for a role; with the rarer ones, which are drawn only where named."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from prime_lab.simulator.adversaries import (
    ColludingValidator,
    Copycat,
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
    attempt_submission,
    make_submission,
)
from prime_lab.simulator.coordinator_host import HONEST, FakeFile
from prime_lab.simulator.log_history import LoggedLease
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import AuditTask
from prime_protocol.wire.typed_data import compute_receipt_id

if TYPE_CHECKING:
    from prime_lab.simulator.participants import SimulatedNode


LOG_POLL_MS = 500
"""How often a liar looks at the log."""
SUBMIT_MARGIN_MS = 10_000
"""Before a deadline: time for an answer to arrive."""


class Backdater(Latecomer):
    """Sends every answer after its deadline, in an envelope that says it was written before."""

    name = "backdater"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is not None:
            deadline_ms = lease.granted.entry.deadline_ms
            party.world.at(deadline_ms + 500, attempt_submission, party, entry, deadline_ms - 1)
        return False


class FileSwapper(Forger):
    """Forges, and once the log says that its file was drawn, sends an honest one for the same lease."""

    name = "swapper"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        party.world.after(LOG_POLL_MS, self._watch, party, entry)
        return True

    def _watch(self, party: "SimulatedNode", entry: e.Submitted) -> None:
        tale = party.world.host.chronicle.submissions.get(compute_receipt_id(entry.receipt))
        if tale is None or not tale.draws:
            party.world.after(LOG_POLL_MS, self._watch, party, entry)
        elif tale.draws[0].entry.validators:
            submit_honest_replacement(party, entry)


class InformedForger(Forger):
    """Forges, and swaps its file as soon as a friend among the validators tells it that it was drawn."""

    name = "confidant"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        def hear(task: AuditTask) -> None:
            if task.submission == compute_receipt_id(entry.receipt):
                submit_honest_replacement(party, entry)

        party.world.whispers[compute_receipt_id(entry.receipt)] = hear
        return True


class DrawLeaker(NodeBehavior):
    """Judges rightly, and before it says so hands its task to the worker whose file it is."""

    name = "leaker"
    role = Role.VALIDATOR

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        hear = party.world.whispers.get(task.submission)
        if hear is not None:
            hear(task)
        return truth


class TwoKeyOwner(NodeBehavior):
    """One of several keys of an owner. It holds its answer back until another of them gets the late lease's twin, and
    then both answer with one work. Who has no other key is honest.
    """

    name = "two-keys"

    def make(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        lease = party.world.host.chronicle.leases.get(honest.lease)
        is_done = lease is not None and has_sibling_lease(party, lease)
        self.haste = 0.01 if is_done else 1.0
        return replace(honest, salt=0)

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        """The agent tries again until the last moment."""
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is None or not list_siblings(party) or has_sibling_lease(party, lease):
            return True
        return bool(party.world.now_ms > lease.granted.entry.deadline_ms - SUBMIT_MARGIN_MS)


class VerdictCopier(NonReadingValidator):
    """Says what another validator has said of the same file; accepts where nobody has spoken yet."""

    name = "parrot"

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        heard = list_verdicts(party, task.submission)
        return heard[-1].outcome if heard else Outcome.ACCEPT

    def look(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        heard = list_verdicts(party, submission)
        return heard[-1].read_proof if heard else super().look(party, submission, reader)


def list_verdicts(party: "SimulatedNode", submission: Digest) -> list[e.VerdictGiven]:
    """What others have said of it so far."""
    tale = party.world.host.chronicle.submissions.get(submission)
    return [line.entry for line in tale.verdicts] if tale else []


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
    FileSwapper,
    VerdictCopier,
    InformedForger,
    DrawLeaker,
    TwoKeyOwner,
)
"""Only where they are named: what a seed draws from the others stays what it was."""
ADVERSARY_NAMES = tuple(kind.name for kind in (*ADVERSARIES, *RARE_ADVERSARIES))


def submit_honest_replacement(party: "SimulatedNode", entry: e.Submitted) -> None:
    """An honest file for a lease that was answered with a forged one."""
    file = party.world.files.get(entry.receipt.file_digest)
    assert file is not None
    attempt_submission(party, make_submission(party, replace(file, forgery=HONEST, salt=file.salt + 1)), about=entry)


def list_siblings(party: "SimulatedNode") -> set[NodeId]:
    """Other keys of the same owner."""
    owners = party.world.host.chronicle.owners
    return {node for node, owner in owners.items() if owner == owners.get(party.node)} - {party.node}


def has_sibling_lease(party: "SimulatedNode", lease: LoggedLease) -> bool:
    """Whether another key of the owner has a lease of the same slots."""
    siblings, mine = list_siblings(party), lease.granted.entry
    return any(
        other.granted.entry.node in siblings and (other.granted.entry.step, other.slots) == (mine.step, lease.slots)
        for other in party.world.host.chronicle.leases.values()
    )


def draw_behavior(role: Role, allowed: tuple[str, ...], dice: Random) -> NodeBehavior:
    """A liar for a role; honest where none of the allowed kinds fits it."""
    fit: list[Callable[[], NodeBehavior]] = [
        kind
        for kind in (*ADVERSARIES, *(RARE_ADVERSARIES if allowed else ()))
        if kind.role is role and (not allowed or kind.name in allowed)
    ]
    return dice.choice(fit)() if fit else NodeBehavior()
