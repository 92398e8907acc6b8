"""Attacks on the books and among validators, in the simulator: the coordinator's and the nodes' own decisions.

A world with liars of one kind runs to its end, is checked from outside by every checker there is, and is then asked
what came of the liars.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prime_attacks.gallery import BOOKS, VALIDATORS, Attack, Outcome, Verdict
from prime_protocol.entries import Outcome as Finding
from prime_simulator.checkers import Scene
from prime_simulator.plan import Plan
from prime_simulator.simulation import play

NODES, STEPS = 24, 2
CROWD = 64
"""Nodes of a world of lying validators: every fourth validates, and three in sixteen of those lie. Where a third of a
handful of validators lies together, a quorum of three cannot be kept clear of them; docs/verification.md says so."""


SEEDS = range(3, 9)
"""Worlds that are tried until one gives the liars an occasion."""
Judged = tuple[Verdict | None, str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who lies in it, and what must come of that."""

    liars: tuple[str, ...]
    judge: Callable[[Scene], Judged]
    """Verdict, what named it, and a sentence; None where the liars had no occasion."""
    nodes: int = NODES
    malicious: float = 0.25


def judge_refused(check: str) -> Callable[[Scene], Judged]:
    """Nothing that a liar sent beyond its own honest answer is in the books: the checkers have seen to that."""

    def judge(scene: Scene) -> Judged:
        mine = [tale for tale in scene.chronicle.submissions.values() if tale.receipt.node not in scene.honest]
        forged = sum(scene.is_forged(tale) and bool(tale.credited) for tale in mine)
        verdict = Verdict.REFUSED if not forged else None
        return verdict, check, f"{len(mine)} answers of liars are in the log, {forged} of them not their own work"

    return judge


def judge_unanswered(scene: Scene) -> Judged:
    """Nobody who answers late gets anything into the log."""
    mine = [tale for tale in scene.chronicle.submissions.values() if tale.receipt.node not in scene.honest]
    leases = sum(lease.granted.entry.node not in scene.honest for lease in scene.chronicle.leases.values())
    if not leases:
        return None
    verdict = Verdict.REFUSED if not mine else None
    return verdict, "deadline", f"{leases} leases went to liars, {len(mine)} of their late answers were taken"


def judge_forgers(scene: Scene) -> Judged:
    """What was drawn and forged is rejected and slashed."""
    forged = [tale for tale in scene.chronicle.submissions.values() if scene.is_forged(tale)]
    drawn = [tale for tale in forged if tale.draws and tale.draws[0].entry.validators]
    hard = sum(tale.outcome is Finding.HARD for tale in drawn)
    slashed = sum(bool(tale.executed) for tale in forged)
    if not drawn:
        return None
    verdict = Verdict.HARD if hard == len(drawn) and slashed else None
    return verdict, "audit", f"{len(forged)} forged files, {len(drawn)} drawn, {hard} rejected, {slashed} slashed"


def judge_overlaps(scene: Scene) -> Judged:
    """Leases of the same slots are there, also of one owner's keys, and no slot is paid twice."""
    taken: dict[tuple[int, int], int] = {}
    paid: dict[tuple[int, int], int] = {}
    for tale in scene.chronicle.leases.values():
        for slot in tale.slots:
            place = (tale.granted.entry.step, slot)
            taken[place] = taken.get(place, 0) + 1
    for submission in scene.chronicle.submissions.values():
        for slot in submission.lease.slots if submission.lease and submission.credited else ():
            place = (submission.receipt.step, slot)
            paid[place] = paid.get(place, 0) + 1
    overlaps = sum(count > 1 for count in taken.values())
    twice = sum(count > 1 for count in paid.values())
    if not overlaps:
        return None
    verdict = Verdict.REFUSED if not twice else None
    return verdict, "slots", f"{overlaps} slots were leased more than once, {twice} were paid twice"


def judge_validators(scene: Scene) -> Judged:
    """Their verdicts do not stand, and are held against them."""
    scored = [
        line
        for tale in scene.chronicle.submissions.values()
        for line in tale.scored
        if line.entry.validator not in scene.honest
    ]
    if not scored:
        return None
    return Verdict.OVERRULED, "score", f"{len(scored)} verdicts of liars were overruled and counted against them"


def judge_harmless(check: str) -> Callable[[Scene], Judged]:
    def judge(scene: Scene) -> Judged:
        settled = sum(bool(tale.settled) for tale in scene.chronicle.submissions.values())
        return Verdict.HARMLESS, check, f"{settled} submissions were settled, none wrongly"

    return judge


WORLDS: dict[str, World] = {
    "late": World(liars=("latecomer",), judge=judge_unanswered),
    "backdated": World(liars=("backdater",), judge=judge_unanswered),
    "copycat": World(liars=("copycat",), judge=judge_refused("slots")),
    "two-keys": World(liars=("copycat", "hoarder"), malicious=0.4, judge=judge_overlaps),
    "duplicate": World(liars=("duplicator",), judge=judge_refused("lease")),
    "swapped-when-drawn": World(liars=("swapper",), judge=judge_forgers),
    "runs-with-stake": World(liars=("runner",), judge=judge_forgers),
    "sleeper": World(liars=("sleeper",), judge=judge_forgers),
    "lazy": World(liars=("lazy", "forger"), nodes=CROWD, malicious=0.2, judge=judge_validators),
    "vindictive": World(liars=("vindictive",), nodes=CROWD, malicious=0.2, judge=judge_validators),
    "colluding-minority": World(liars=("colluder", "forger"), nodes=CROWD, malicious=0.2, judge=judge_validators),
    "copies-verdicts": World(liars=("parrot", "forger"), nodes=CROWD, malicious=0.2, judge=judge_validators),
    "leaks-draws": World(liars=("swapper", "meddler"), judge=judge_harmless("audit")),
    "silent": World(liars=("silent",), judge=judge_harmless("rounds")),
}


def attack_networks() -> Iterator[tuple[Attack, Outcome]]:
    for attack in (*BOOKS, *VALIDATORS):
        yield attack, attack_network(WORLDS[attack.name])


def attack_network(world: World) -> Outcome:
    for seed in SEEDS:
        plan = Plan(seed=seed, nodes=world.nodes, steps=STEPS, malicious=world.malicious, liars=world.liars)
        report, scene = play(plan)
        if report.complaints:
            return Outcome(verdict=None, checks=(), reason=f"seed {seed}: {report.complaints[0]}")
        judged = world.judge(scene)
        if judged is not None:
            verdict, check, reason = judged
            return Outcome(verdict=verdict, checks=(check,) if verdict else (), reason=reason)
    return Outcome(verdict=None, checks=(), reason=f"the liars had no occasion in {len(SEEDS)} worlds")
