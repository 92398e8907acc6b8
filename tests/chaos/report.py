"""What came of a run, as tables for people and one line for scripts. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.checkers import Told
from chaos.schedule import Fault, Kind
from chaos.service_manager import Keeper, Weighed

WARM_S = 30.0
"""A process fills its caches first; its memory is compared from this age on."""


@dataclass(frozen=True, slots=True)
class Survived:
    """One fault and what came after it."""

    fault: Fault
    party_s: float | None
    """From its end until the party did its work again; None: never."""
    work_s: float | None
    """From its end until the network settled work again."""
    human: str
    """What had to be done by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole run."""

    survived: list[Survived]
    trouble: list[str]
    keepers: list[Keeper]
    told: Told
    heads: int
    entries: int
    seconds: float
    stood_s: float
    """How long the machine itself stood still."""


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def describe(outcome: Outcome) -> Iterator[str]:
    yield "| fault | injected | survived | by hand | back p50 s | back p99 s | work p50 s | work p99 s |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind in Kind:
        hits = [each for each in outcome.survived if each.fault.kind is kind]
        if hits:
            yield describe_kind(str(kind), hits)
    yield describe_kind("all", outcome.survived)
    yield ""
    yield (
        "| party | starts | ended by itself | longest life s | memory at 30 s MB | at half MB | at its end MB"
        " | growth in the second half MB/min |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for keeper in outcome.keepers:
        yield describe_party(keeper)
    told = outcome.told
    yield ""
    yield (
        f"{outcome.entries} entries, {outcome.heads} heads seen, {len(told.submitted)} submissions, all settled;"
        f" {len(told.credited)} credited; {len(told.steps)} checkpoints;"
        f" {outcome.seconds:.0f} s, and the machine itself stood still for {outcome.stood_s:.0f} s"
    )


def describe_kind(name: str, hits: Sequence[Survived]) -> str:
    back = [each.party_s for each in hits if each.party_s is not None]
    work = [each.work_s for each in hits if each.work_s is not None]
    times = [f"{quantile(values, share):.1f}" if values else "-" for values in (back, work) for share in (0.5, 0.99)]
    by_hand = sum(bool(each.human) for each in hits)
    return f"| {name} | {len(hits)} | {len(work)} | {by_hand} | {' | '.join(times)} |"


def describe_party(keeper: Keeper) -> str:
    life = find_longest(keeper.weights)
    warm = [each for each in life if each.age_s >= WARM_S]
    cells = ["-", "-", "-", "-"]
    if warm:
        half, end = next(each for each in warm if each.age_s >= warm[-1].age_s / 2), warm[-1]
        minutes = (end.age_s - half.age_s) / 60
        growth = (end.resident_kb - half.resident_kb) / 1024
        cells = [f"{each.resident_kb / 1024:.0f}" for each in (warm[0], half, end)]
        cells.append(f"{growth / minutes:+.2f}" if minutes >= 1 else "-")
    age_s = life[-1].age_s if life else 0.0
    return f"| {keeper.name} | {keeper.starts} | {len(keeper.ends)} | {age_s:.0f} | {' | '.join(cells)} |"


def find_longest(weights: Sequence[Weighed]) -> list[Weighed]:
    """The samples of the life that lasted longest."""
    lives: dict[int, list[Weighed]] = {}
    for each in weights:
        lives.setdefault(each.pid, []).append(each)
    return max(lives.values(), key=lambda life: life[-1].age_s, default=[])


def result_line(outcome: Outcome, seed: int) -> str:
    lost = sum(each.work_s is None for each in outcome.survived)
    return (
        f"RESULT seed={seed} faults={len(outcome.survived)} lost={lost} trouble={len(outcome.trouble)}"
        f" checkpoints={len(outcome.told.steps)} submissions={len(outcome.told.submitted)}"
        f" seconds={outcome.seconds:.0f}"
    )
