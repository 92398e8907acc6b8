"""Which liars there are, and how one is drawn for a role; with the rarer ones, which are drawn only where named."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from prime_protocol import entries as e
from prime_protocol.entries import Outcome, Role
from prime_protocol.messages import AuditTask
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
    Vandal,
    Vindictive,
    answer,
    throw,
)
from prime_simulator.world import RUN

if TYPE_CHECKING:
    from prime_simulator.parties import NodeParty


class Backdater(Latecomer):
    """Sends every answer after its deadline, in an envelope that says it was written before."""

    name = "backdater"

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is not None:
            deadline_ms = lease.granted.entry.deadline_ms
            party.world.at(deadline_ms + 500, self._send, party, entry, deadline_ms - 1)
        return False

    def _send(self, party: "NodeParty", entry: e.Submitted, clock_ms: int) -> None:
        throw(party, party.world.seal(party.key, entry, RUN, clock_ms).frame)


class Swapper(Forger):
    """Forges, and once it hears that its file was drawn, sends an honest one for the same lease."""

    name = "swapper"

    def submits(self, party: "NodeParty", entry: e.Submitted) -> bool:
        file = party.world.files.get(entry.receipt.file_digest)
        assert file is not None
        honest = answer(party, replace(file, forgery="", salt=file.salt + 1))
        for wait_ms in (2_000, 6_000, 15_000):
            party.world.after(wait_ms, party.post, honest, RUN)
        return True


class Parrot(Habit):
    """Says what another validator has said of the same file; accepts where nobody has spoken yet."""

    name = "parrot"
    role = Role.VALIDATOR

    def judge(self, party: "NodeParty", task: AuditTask, truth: Outcome) -> Outcome | None:
        tale = party.world.host.chronicle.submissions.get(task.submission)
        heard = [line.entry.outcome for line in tale.verdicts] if tale else []
        return heard[-1] if heard else Outcome.ACCEPT


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
RARE: tuple[type[Habit], ...] = (Backdater, Swapper, Parrot)
"""Only where they are named: what a seed draws from the others stays what it was."""
NAMES = tuple(kind.name for kind in (*KINDS, *RARE))


def draw_habit(role: Role, allowed: tuple[str, ...], dice: Random) -> Habit:
    """A liar for a role; honest where none of the allowed kinds fits it."""
    fit: list[Callable[[], Habit]] = [
        kind
        for kind in (*KINDS, *(RARE if allowed else ()))
        if kind.role is role and (not allowed or kind.name in allowed)
    ]
    return dice.choice(fit)() if fit else Habit()
