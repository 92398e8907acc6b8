"""Which liars there are, and how one is drawn for a role; with the rarer ones, which are drawn only where named."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from prime_protocol import entries as e
from prime_protocol.entries import Outcome, Role
from prime_protocol.ids import Digest, NodeId
from prime_protocol.messages import AuditTask
from prime_protocol.receipts import receipt_id
from prime_simulator.chronicle import LeaseTale
from prime_simulator.files import HONEST, FakeFile
from prime_simulator.liars import (
    Colluder,
    Copycat,
    Duplicator,
    Forger,
    Habit,
    Hoarder,
    Inflater,
    Latecomer,
    Lazy,
    Meddler,
    Runner,
    Silent,
    Sleeper,
    Thief,
    Unread,
    Vandal,
    Vindictive,
    answer,
    attempt,
)

if TYPE_CHECKING:
    from prime_simulator.parties import NodeParty


WATCH_MS = 500
"""How often a liar looks at the log."""
LAST_MOMENT_MS = 10_000
"""Before a deadline: time for an answer to arrive."""


class Backdater(Latecomer):
    """Sends every answer after its deadline, in an envelope that says it was written before."""

    name = "backdater"

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is not None:
            deadline_ms = lease.granted.entry.deadline_ms
            party.world.at(deadline_ms + 500, attempt, party, entry, deadline_ms - 1)
        return False


class Swapper(Forger):
    """Forges, and once the log says that its file was drawn, sends an honest one for the same lease."""

    name = "swapper"

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        party.world.after(WATCH_MS, self._watch, party, entry)
        return True

    def _watch(self, party: "NodeParty", entry: e.Submitted) -> None:
        tale = party.world.host.chronicle.submissions.get(receipt_id(entry.receipt))
        if tale is None or not tale.draws:
            party.world.after(WATCH_MS, self._watch, party, entry)
        elif tale.draws[0].entry.validators:
            swap(party, entry)


class Confidant(Forger):
    """Forges, and swaps its file as soon as a friend among the validators tells it that it was drawn."""

    name = "confidant"

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        def hear(task: AuditTask) -> None:
            if task.submission == receipt_id(entry.receipt):
                swap(party, entry)

        party.world.whispers[receipt_id(entry.receipt)] = hear
        return True


class Leaker(Habit):
    """Judges rightly, and before it says so hands its task to the worker whose file it is."""

    name = "leaker"
    role = Role.VALIDATOR

    def judge(self, party: "NodeParty", task: AuditTask, truth: Outcome) -> Outcome | None:
        hear = party.world.whispers.get(task.submission)
        if hear is not None:
            hear(task)
        return truth


class TwoKeys(Habit):
    """One of several keys of an owner. It holds its answer back until another of them gets the late lease's twin, and
    then both answer with one work. Who has no other key is honest.
    """

    name = "two-keys"

    def make(self, party: "NodeParty", honest: FakeFile) -> FakeFile:
        lease = party.world.host.chronicle.leases.get(honest.lease)
        is_done = lease is not None and has_twin(party, lease)
        self.haste = 0.01 if is_done else 1.0
        return replace(honest, salt=0)

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        """The agent tries again until the last moment."""
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is None or not list_siblings(party) or has_twin(party, lease):
            return True
        return bool(party.world.now_ms > lease.granted.entry.deadline_ms - LAST_MOMENT_MS)


class Parrot(Unread):
    """Says what another validator has said of the same file; accepts where nobody has spoken yet."""

    name = "parrot"

    def judge(self, party: "NodeParty", task: AuditTask, truth: Outcome) -> Outcome | None:
        heard = hear(party, task.submission)
        return heard[-1].outcome if heard else Outcome.ACCEPT

    def look(self, party: "NodeParty", submission: Digest, reader: NodeId) -> bytes:
        heard = hear(party, submission)
        return heard[-1].looks if heard else super().look(party, submission, reader)


def hear(party: "NodeParty", submission: Digest) -> list[e.VerdictGiven]:
    """What others have said of it so far."""
    tale = party.world.host.chronicle.submissions.get(submission)
    return [line.entry for line in tale.verdicts] if tale else []


KINDS: tuple[type[Habit], ...] = (
    Forger,
    Sleeper,
    Hoarder,
    Latecomer,
    Duplicator,
    Copycat,
    Inflater,
    Thief,
    Runner,
    Vandal,
    Lazy,
    Vindictive,
    Colluder,
    Silent,
    Meddler,
)
RARE: tuple[type[Habit], ...] = (Backdater, Swapper, Parrot, Confidant, Leaker, TwoKeys)
"""Only where they are named: what a seed draws from the others stays what it was."""
NAMES = tuple(kind.name for kind in (*KINDS, *RARE))


def swap(party: "NodeParty", entry: e.Submitted) -> None:
    """An honest file for a lease that was answered with a forged one."""
    file = party.world.files.get(entry.receipt.file_digest)
    assert file is not None
    attempt(party, answer(party, replace(file, forgery=HONEST, salt=file.salt + 1)), about=entry)


def list_siblings(party: "NodeParty") -> set[NodeId]:
    """Other keys of the same owner."""
    owners = party.world.host.chronicle.owners
    return {node for node, owner in owners.items() if owner == owners.get(party.node)} - {party.node}


def has_twin(party: "NodeParty", lease: LeaseTale) -> bool:
    """Whether another key of the owner has a lease of the same slots."""
    siblings, mine = list_siblings(party), lease.granted.entry
    return any(
        other.granted.entry.node in siblings and (other.granted.entry.step, other.slots) == (mine.step, lease.slots)
        for other in party.world.host.chronicle.leases.values()
    )


def draw_habit(role: Role, allowed: tuple[str, ...], dice: Random) -> Habit:
    """A liar for a role; honest where none of the allowed kinds fits it."""
    fit: list[Callable[[], Habit]] = [
        kind
        for kind in (*KINDS, *(RARE if allowed else ()))
        if kind.role is role and (not allowed or kind.name in allowed)
    ]
    return dice.choice(fit)() if fit else Habit()
