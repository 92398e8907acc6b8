"""Slashes and appeals: the table of all, and the whole story of one, in order, with what it takes to check it."""

from dataclasses import dataclass

from prime_explorer.pages.submissions import RoundRow, VerdictDetail, read_rounds, read_story
from prime_explorer.pages.tables import EntryRow, Rows, SlashRow, VerdictRow, read_rows
from prime_explorer.reading import Db, as_row
from prime_protocol.ids import Digest, RunId

PROGRESS = {
    "proposed": "stake is in escrow, and can be appealed",
    "appealed": "other validators look again",
    "executed": "the stake is gone",
    "overturned": "stake and bond went back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashesView:
    """The table of slashes."""

    run: str
    slashes: Rows[SlashRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashView:
    """A slash, from its submission to its end."""

    summary: SlashRow
    evidence: str
    slash_to: str
    bond_nano: int
    rounds_before: int
    """Rounds up to this one led to the slash; later ones decide the appeal."""
    step: int
    appealed_idx: int | None
    appealed_ms: int | None
    appealed_by: str | None
    appeal_reason: str | None
    ended_idx: int | None
    outcome: str | None
    """What the submission is in the end."""
    rounds: tuple[RoundRow, ...]
    verdicts: tuple[VerdictDetail, ...]
    story: tuple[EntryRow, ...]


def read_slashes(db: Db, run: RunId | None, before: int | None) -> Rows[SlashRow]:
    index = "slashes_by_run" if run else "slashes_by_place"
    return read_rows(db, SlashRow, before=before, index=index, run=run)


def read_slash(db: Db, name: Digest) -> SlashView | None:
    row = db.row("SELECT * FROM slashes WHERE submission=?", name)
    if row is None:
        return None
    given = db.rows("SELECT * FROM verdicts WHERE submission=? ORDER BY idx", name)
    return as_row(
        SlashView,
        row,
        summary=as_row(SlashRow, row),
        step=db.value("SELECT step FROM submissions WHERE submission=?", name),
        rounds=read_rounds(db, name),
        verdicts=tuple(VerdictDetail(summary=as_row(VerdictRow, each), metrics={}) for each in given),
        story=read_story(db, name),
    )
