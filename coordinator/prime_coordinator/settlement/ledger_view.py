"""What settlement on a chain sees of the coordinator's own books: the state, the log on disk, and its proofs."""

from typing import Protocol

from prime_coordinator.core import Core
from prime_coordinator.log import LogWriter
from prime_coordinator.settlement.papers import CASE_KINDS, SlashCase
from prime_coordinator.store import LogStore
from prime_protocol.catalogue import read_letter
from prime_protocol.codec import decode
from prime_protocol.entries import PaidOut, SlashProposed
from prime_protocol.ids import Digest, RunId

PAGE = 500
CASE_ENTRIES_MAX = 1_000


class Books(Protocol):
    """The running coordinator, as far as settlement may look."""

    @property
    def core(self) -> Core: ...

    @property
    def log(self) -> LogStore: ...

    @property
    def writer(self) -> LogWriter: ...

    async def commit(self) -> None:
        """Return when everything that was written so far is on disk."""
        ...


async def list_slashed(store: LogStore, run: RunId, since: int) -> list[Digest]:
    """Submissions whose slash was proposed in the log at this index or later, oldest first."""
    found: list[Digest] = []
    before = None
    while True:
        rows = await store.list_entries(kinds=[SlashProposed.__name__], run=run, before=before, limit=PAGE)
        fresh = [row for row in rows if row.index >= since]
        found += [decode(SlashProposed, read_letter(row.leaf)[1].body).submission for row in fresh]
        if len(fresh) < PAGE:
            return found[::-1]
        before = rows[-1].index


async def read_case(store: LogStore, submission: Digest) -> SlashCase:
    """Everything about one slash."""
    rows = await store.list_entries(kinds=CASE_KINDS, subject=submission, limit=CASE_ENTRIES_MAX)
    case = SlashCase(submission)
    for row in reversed(rows):
        case.take(row.index, row.leaf)
    return case


async def last_payout(store: LogStore, run: RunId) -> int:
    """Index of the newest PaidOut entry of a run; -1 before the first."""
    rows = await store.list_entries(kinds=[PaidOut.__name__], run=run, limit=1)
    return rows[0].index if rows else -1
