"""What a run of the gallery found, as a table for people and a line for scripts. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prime_attacks.gallery import Attack, Outcome, Verdict

REASON_CHARS = 60


@dataclass(slots=True)
class Tally:
    """Everything that was tried."""

    tries: list[tuple[Attack, Outcome]] = field(default_factory=list)
    honest_chunks: int = 0
    honest_rows: int = 0
    refused: list[str] = field(default_factory=list)
    """Why honest work was refused, where it was."""
    escaped: list[str] = field(default_factory=list)
    """Attacks that were caught too seldom in many submissions, with the model."""
    is_whole: bool = True
    """Whether there was time for all that was asked for."""

    @property
    def missed(self) -> list[str]:
        """Attacks that did not come to what they must come to."""
        missed = [attack.name for attack, outcome in self.tries if not outcome.is_as_listed(attack)]
        return list(dict.fromkeys([*missed, *self.escaped]))

    @property
    def is_good(self) -> bool:
        return not self.missed and not self.refused


def list_rows(tries: Sequence[tuple[Attack, Outcome]]) -> Iterator[str]:
    yield f"{'attack':<24}{'by':<13}{'came to':<10}{'named by':<24}reason"
    for attack, outcome in tries:
        named = next((check for check in outcome.checks if check in attack.caught_by), "-")
        mark = "" if outcome.is_as_listed(attack) else f"   MISSED: must be {attack.verdict}"
        came_to = outcome.verdict or "nothing"
        yield f"{attack.name:<24}{attack.party:<13}{came_to:<10}{named:<24}{outcome.reason[:REASON_CHARS]}{mark}"


def describe(tally: Tally) -> Iterator[str]:
    yield from list_rows(tally.tries)
    yield f"honest work: {tally.honest_rows} completions, {tally.honest_chunks} chunks, {len(tally.refused)} refused"
    for attack, outcome in tally.tries:
        if outcome.verdict is Verdict.UNSEEN:
            yield f"NOT CAUGHT, as docs/verification.md says first: {attack.name}: {outcome.reason}"
    for name in tally.escaped:
        yield f"  caught too seldom: {name}"
    for reason in tally.refused:
        yield f"  refused: {reason}"
    yield (
        f"RESULT attacks={len({attack.name for attack, _ in tally.tries})} missed={len(tally.missed)} "
        f"false_rejects={len(tally.refused)} honest_chunks={tally.honest_chunks}"
    )
