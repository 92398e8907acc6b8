"""What settlement on a chain sees of the coordinator's own books: the state, the log on disk, and its proofs.

What the chain and the log say of a run now, gathered for posting.py to decide on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prime_coordinator.core import Core
from prime_coordinator.log.store import LogStore
from prime_coordinator.log.writer import LogWriter
from prime_coordinator.settlement.actions import (
    ChainTerms,
    Payable,
    PoolOnChain,
    RunInLog,
    RunOnChain,
    RunPhase,
    SlashInLog,
    SlashOnChain,
    SlashPhase,
    is_slash_over,
    make_chain_terms,
)
from prime_coordinator.settlement.chain_events import FollowedChain, VaultStake
from prime_coordinator.settlement.config import SettlementConfig
from prime_coordinator.settlement.slash_cases import CASE_KINDS, SlashCase, choose_judges
from prime_protocol.ledger.entries import PaidOut, RunStatus, SlashProposed, VerdictGiven
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.log.merkle import compute_root
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.chain.client import ChainClient, ViewCall
from prime_runtime.chain.contracts import NetworkContracts, run_key
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted

ENTRIES_PER_PAGE = 500
CASE_ENTRIES_MAX = 1_000


class LedgerView(Protocol):
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
        rows = await store.list_entries(kinds=[SlashProposed.__name__], run=run, before=before, limit=ENTRIES_PER_PAGE)
        fresh = [row for row in rows if row.index >= since]
        found += [decode(SlashProposed, decode_leaf(row.leaf)[1].body).submission for row in fresh]
        if len(fresh) < ENTRIES_PER_PAGE:
            return found[::-1]
        before = rows[-1].index


async def read_case(store: LogStore, submission: Digest) -> SlashCase:
    """Everything about one slash."""
    rows = await store.list_entries(kinds=CASE_KINDS, subject=submission, limit=CASE_ENTRIES_MAX)
    case = SlashCase(submission)
    for row in reversed(rows):
        case.take(row.index, row.leaf)
    return case


async def get_last_payout(store: LogStore, run: RunId) -> int:
    """Index of the newest PaidOut entry of a run; -1 before the first."""
    rows = await store.list_entries(kinds=[PaidOut.__name__], run=run, limit=1)
    return rows[0].index if rows else -1


FAR_FUTURE_S = 2**48 - 1
"""A time after every announced change of terms."""


class SettlementReader:
    """Of one network. What it remembers between two looks can be read again."""

    def __init__(self, chain: ChainClient, contracts: NetworkContracts, config: SettlementConfig) -> None:
        self._chain = chain
        self._contracts = contracts
        self._config = config
        self.payable: dict[RunId, Payable] = {}
        """What accounts were paid when the log had the size that is anchored."""
        self.cases: dict[Digest, SlashCase] = {}
        self.lost: set[Digest] = set()
        """Slashes that the court will never open any more."""
        self.over: set[Digest] = set()
        """Slashes that have ended on the chain."""
        self._newest: dict[RunId, tuple[int, int]] = {}
        """Size of the newest head that was seen, and when it was anchored."""
        self._since: dict[RunId, int] = {}
        """Slashes that were proposed in the log before this index are over."""

    async def gather(self, books: LedgerView, name: RunId, followed: FollowedChain) -> tuple[RunInLog, RunOnChain]:
        """Both sides of a run."""
        slashed = await self._load_cases(books, name)
        on_chain = await self.read_run(books, name, slashed)
        return await self._read_log(books, name, on_chain, followed, slashed), on_chain

    # --- The chain --------------------------------------------------------------------------------------------------

    async def read_run(self, books: LedgerView, name: RunId, slashed: Sequence[Digest] = ()) -> RunOnChain:
        """In one request, and a second one where the newest head is not the one that was seen last."""
        at, run = self._contracts, run_key(name)
        asked: list[ViewCall] = [
            (at.registry, "runOf", (run,)),
            (at.registry, "termsAt", (run, FAR_FUTURE_S)),
            (at.anchor, "latestSize", (run,)),
            (at.anchor, "frozenAt", (run,)),
            (at.pool, "poolOf", (run,)),
        ]
        asked += [(at.court, "slashOf", (submission,)) for submission in slashed]
        known, *rest = await self._chain.read_all(asked)
        if isinstance(known, ContractReverted) and known.name == "RunUnknown":
            return RunOnChain()
        refused = [each for each in (known, *rest) if isinstance(each, ContractReverted)]
        if refused:
            raise refused[0]
        terms, size, frozen_at, pool, *slashes = rest
        return RunOnChain(
            phase=RunPhase(known["status"]),
            terms=ChainTerms.read(terms),
            size=size,
            anchored_at=await self._read_anchored_at(books, name, size),
            is_frozen=bool(frozen_at),
            pool=PoolOnChain(
                held=pool["held"],
                claimed=pool["claimed"],
                promised=pool["promised"],
                epoch=pool["epoch"],
                since=pool["promisedAt"] or known["createdAt"],
                is_abandoned=pool["abandoned"],
            ),
            slashes={submission: decode_slash(seen) for submission, seen in zip(slashed, slashes, strict=True)},
        )

    async def _read_anchored_at(self, books: LedgerView, name: RunId, size: int) -> int:
        """When the newest head came, and that it is our own; 0 before the first."""
        if not size:
            return 0
        known_size, anchored_at = self._newest.get(name, (0, 0))
        if known_size != size:
            anchored_at = int((await self.read_head(books, name, size))["anchoredAt"])
            self._newest[name] = (size, anchored_at)
        return anchored_at

    async def read_head(self, books: LedgerView, name: RunId, size: int) -> Any:
        """An anchored head of our own log; refused by the anchor where the root there is another."""
        if size > books.writer.size:
            raise ChainUnavailable(
                f"the chain has a head over {size} entries, and the log here has {books.writer.size}:"
                " was it restored from an old copy? Nothing is brought there before it has them again"
            )
        root = compute_root(size, books.writer.tree.get_node)
        return await self._chain.read(self._contracts.anchor, "headAt", run_key(name), size, root)

    # --- The log ----------------------------------------------------------------------------------------------------

    async def _load_cases(self, books: LedgerView, name: RunId) -> list[Digest]:
        """The slashes of a run that may not be over, oldest first."""
        found = await list_slashed(books.log, name, self._since.get(name, 0))
        for submission in found:
            case = self.cases.get(submission)
            if case is None or case.ended is None:
                self.cases[submission] = await read_case(books.log, submission)
        return found

    async def _read_log(
        self, books: LedgerView, name: RunId, on_chain: RunOnChain, followed: FollowedChain, slashed: list[Digest]
    ) -> RunInLog:
        run = books.core.state.runs[name]
        await self._find_payable(books, name, on_chain.size)
        return RunInLog(
            name=name,
            terms=make_chain_terms(run.terms, self._config, self._contracts.scale),
            size=books.writer.size,
            is_closed=run.status is RunStatus.CLOSED,
            payable=self.payable.get(name),
            paid_total=sum(run.paid.values()) * self._contracts.scale,
            slashes=tuple(self._list_open(name, on_chain, followed, slashed)),
        )

    async def _find_payable(self, books: LedgerView, name: RunId, size: int) -> None:
        """After a restart: if nothing was paid since the anchored head, what is paid now was paid then."""
        known = self.payable.get(name)
        if known is not None and known.size == size:
            return
        # Copied before the log is asked: whatever is in the copy is on disk when the answer comes.
        paid = self.units(books.core.state.runs[name].paid)
        await books.commit()
        if await get_last_payout(books.log, name) < size:
            self.payable[name] = Payable(size, paid)

    def units(self, paid: Mapping[NodeId, int]) -> dict[NodeId, int]:
        return {account: nano * self._contracts.scale for account, nano in paid.items() if nano > 0}

    def _list_open(
        self, name: RunId, on_chain: RunOnChain, followed: FollowedChain, slashed: list[Digest]
    ) -> list[SlashInLog]:
        """Those that are not over; the ones that are before all of these are not read again."""
        found: list[SlashInLog] = []
        for submission in slashed:
            slash = self._describe(self.cases[submission], on_chain, followed)
            if is_slash_over(slash, on_chain):
                self.over.add(submission)
            elif submission not in self.lost:
                found.append(slash)
            if not found:
                self._since[name] = slash.proposed + 1
                del self.cases[submission]
        return found

    def _describe(self, case: SlashCase, on_chain: RunOnChain, followed: FollowedChain) -> SlashInLog:
        quorum = on_chain.terms.quorum if on_chain.terms else 0
        barred = followed.judges.get(str(case.submission))
        deciding = self.choose_verdicts(case.deciding(), on_chain, followed, barred) if barred is not None else []
        can_judge = 0 < quorum <= len(deciding)
        return SlashInLog(case.submission, case.proposed, case.ended, case.is_executed, can_judge)

    def choose_verdicts(
        self, given: list[VerdictGiven], on_chain: RunOnChain, followed: FollowedChain, barred: list[str]
    ) -> list[VerdictGiven]:
        """Verdicts that the court will count: of validators with enough in the vault, none of an owner barred."""
        terms = on_chain.terms
        if terms is None:
            return []

        def is_fit(validator: NodeId) -> bool:
            held = followed.stakes.get(str(validator), VaultStake())
            return held.stake + held.unbonding >= terms.stakeMin and held.owner not in barred

        return choose_judges(given, is_fit, {NodeId.parse(each) for each in barred}, terms.quorum)


def decode_slash(seen: Mapping[str, Any]) -> SlashOnChain:
    """ICourt.Slash, as far as posting goes by it."""
    return SlashOnChain(SlashPhase(seen["status"]), seen["appealUntil"], seen["judgeUntil"])
