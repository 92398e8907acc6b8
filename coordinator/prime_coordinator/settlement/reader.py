"""Reads what the log and the chain say about a run, for actions.py to decide on."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prime_coordinator.core import Core
from prime_coordinator.log.store import LogStore
from prime_coordinator.log.writer import LogWriter
from prime_coordinator.settlement.actions import (
    ChainTerms,
    Payable,
    PenaltyInLog,
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
from prime_coordinator.settlement.slash_cases import (
    CASE_KINDS,
    PenaltyCase,
    SlashCase,
    choose_judges,
    make_penalty_case,
)
from prime_protocol.ledger.entries import PaidOut, RunStatus, SlashProposed, ValidatorScored, VerdictGiven
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.payout_tree import list_payable
from prime_protocol.log.merkle import compute_root
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.chain.client import ChainClient, ViewCall
from prime_runtime.chain.contracts import NetworkContracts, run_key
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted

ENTRIES_PER_PAGE = 500
CASE_ENTRIES_MAX = 1_000


class LedgerView(Protocol):
    """What settlement sees of the running coordinator."""

    @property
    def core(self) -> Core: ...

    @property
    def log(self) -> LogStore: ...

    @property
    def writer(self) -> LogWriter: ...

    async def commit(self) -> None:
        """Return when every appended entry is on disk."""
        ...


async def list_slashed(store: LogStore, run: RunId, since: int) -> list[Digest]:
    """Submissions whose slash was proposed at this index of the log or later, oldest first."""
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
    """Everything that the log says about one slash."""
    rows = await store.list_entries(kinds=CASE_KINDS, subject=submission, limit=CASE_ENTRIES_MAX)
    case = SlashCase(submission)
    for row in reversed(rows):
        case.add_entry(row.index, row.leaf)
    return case


async def list_penalties(store: LogStore, run: RunId, since: int) -> tuple[list[PenaltyCase], int]:
    """Penalties that the log has from this index on, oldest first, and the index from which to read on."""
    found: list[PenaltyCase] = []
    before, next_index = None, since
    while True:
        rows = await store.list_entries(
            kinds=[ValidatorScored.__name__], run=run, before=before, limit=ENTRIES_PER_PAGE
        )
        fresh = [row for row in rows if row.index >= since]
        next_index = max([next_index, *(row.index + 1 for row in fresh)])
        for row in fresh:
            entry = decode(ValidatorScored, decode_leaf(row.leaf)[1].body)
            if entry.penalty_nano:
                verdicts = [given for _, given in (await read_case(store, entry.submission)).verdicts]
                found.append(make_penalty_case(row.index, entry, verdicts))
        if len(fresh) < ENTRIES_PER_PAGE:
            return found[::-1], next_index
        before = rows[-1].index


async def get_last_payout(store: LogStore, run: RunId) -> int:
    """Index of the newest PaidOut entry of a run; -1 before the first."""
    rows = await store.list_entries(kinds=[PaidOut.__name__], run=run, limit=1)
    return rows[0].index if rows else -1


FAR_FUTURE_S = 2**48 - 1
"""Later than every announced change of terms."""


class SettlementReader:
    """For one network. What it caches between two polls can be read again."""

    def __init__(self, chain: ChainClient, contracts: NetworkContracts, config: SettlementConfig) -> None:
        self._chain = chain
        self._contracts = contracts
        self._config = config
        self.payable: dict[RunId, Payable] = {}
        """What accounts were paid when the log had the anchored size."""
        self.cases: dict[Digest, SlashCase] = {}
        self.penalties: dict[Digest, PenaltyCase] = {}
        """By name: those that are not over."""
        self._penalties_read: dict[RunId, int] = {}
        """Penalties before this index of the log are known."""
        self.lost: set[Digest] = set()
        """Slashes and penalties that the court will never accept."""
        self.over: set[Digest] = set()
        """Slashes that have ended on the chain."""
        self._newest: dict[RunId, tuple[int, int]] = {}
        """Size of the newest head seen, and when it was anchored."""
        self._since: dict[RunId, int] = {}
        """Slashes proposed before this index of the log are over."""

    async def gather(self, ledger: LedgerView, name: RunId, followed: FollowedChain) -> tuple[RunInLog, RunOnChain]:
        """A run in the log and on the chain."""
        slashed = await self._load_cases(ledger, name)
        on_chain = await self.read_run(ledger, name, [*slashed, *await self._load_penalties(ledger, name)])
        return await self._read_log(ledger, name, on_chain, followed, slashed), on_chain

    # --- The chain --------------------------------------------------------------------------------------------------

    async def read_run(self, ledger: LedgerView, name: RunId, slashed: Sequence[Digest] = ()) -> RunOnChain:
        """One request, and a second one if there is a new head."""
        at, run = self._contracts, run_key(name)
        calls: list[ViewCall] = [
            (at.registry, "runOf", (run,)),
            (at.registry, "termsAt", (run, FAR_FUTURE_S)),
            (at.anchor, "latestSize", (run,)),
            (at.anchor, "frozenAt", (run,)),
            (at.pool, "poolOf", (run,)),
            (at.pool, "maturedOf", (run,)),
        ]
        calls += [(at.court, "slashOf", (submission,)) for submission in slashed]
        known, *rest = await self._chain.read_all(calls)
        if isinstance(known, ContractReverted) and known.name == "RunUnknown":
            return RunOnChain()
        refused = [each for each in (known, *rest) if isinstance(each, ContractReverted)]
        if refused:
            raise refused[0]
        terms, size, frozen_at, pool, matured, *slashes = rest
        return RunOnChain(
            phase=RunPhase(known["status"]),
            terms=ChainTerms.read(terms),
            size=size,
            anchored_at=await self._read_anchored_at(ledger, name, size),
            is_frozen=bool(frozen_at),
            pool=PoolOnChain(
                held=pool["held"],
                claimed=pool["claimed"],
                promised=pool["promised"],
                epoch=pool["epoch"],
                since=pool["promisedAt"] or known["createdAt"],
                matured=matured,
                is_abandoned=pool["abandoned"],
            ),
            slashes={submission: decode_slash(seen) for submission, seen in zip(slashed, slashes, strict=True)},
        )

    async def _read_anchored_at(self, ledger: LedgerView, name: RunId, size: int) -> int:
        """When the newest head was anchored, after checking that it is ours; 0 before the first."""
        if not size:
            return 0
        known_size, anchored_at = self._newest.get(name, (0, 0))
        if known_size != size:
            anchored_at = int((await self.read_head(ledger, name, size))["anchoredAt"])
            self._newest[name] = (size, anchored_at)
        return anchored_at

    async def read_head(self, ledger: LedgerView, name: RunId, size: int) -> Any:
        """An anchored head of our own log; the anchor refuses if its root differs."""
        if size > ledger.writer.size:
            raise ChainUnavailable(
                f"the chain has a head over {size} entries, and the log here has {ledger.writer.size}:"
                " was it restored from an old backup? Nothing is sent before the log has them again"
            )
        root = compute_root(size, ledger.writer.tree.get_node)
        return await self._chain.read(self._contracts.anchor, "headAt", run_key(name), size, root)

    # --- The log ----------------------------------------------------------------------------------------------------

    async def _load_cases(self, ledger: LedgerView, name: RunId) -> list[Digest]:
        """The slashes of a run that may still be open, oldest first."""
        found = await list_slashed(ledger.log, name, self._since.get(name, 0))
        for submission in found:
            case = self.cases.get(submission)
            if case is None or case.ended is None:
                self.cases[submission] = await read_case(ledger.log, submission)
        return found

    async def _load_penalties(self, ledger: LedgerView, name: RunId) -> list[Digest]:
        """The penalties of a run that may still be open. Each entry of the log is read once."""
        fresh, self._penalties_read[name] = await list_penalties(ledger.log, name, self._penalties_read.get(name, 0))
        for case in fresh:
            self.penalties[case.name] = case
        return [penalty for penalty, case in self.penalties.items() if case.verdict.receipt.run == name]

    async def _read_log(
        self, ledger: LedgerView, name: RunId, on_chain: RunOnChain, followed: FollowedChain, slashed: list[Digest]
    ) -> RunInLog:
        run = ledger.core.state.runs[name]
        await self._find_payable(ledger, name, on_chain.size)
        return RunInLog(
            name=name,
            terms=make_chain_terms(run.terms, self._config, self._contracts.scale),
            size=ledger.writer.size,
            is_closed=run.status is RunStatus.CLOSED,
            payable=self.payable.get(name),
            paid_total=sum(run.paid.values()) * self._contracts.scale,
            slashes=tuple(self._list_open(name, on_chain, followed, slashed)),
            penalties=tuple(self._list_open_penalties(name, on_chain, followed)),
        )

    async def _find_payable(self, ledger: LedgerView, name: RunId, size: int) -> None:
        """After a restart: if nothing was paid since the anchored head, the present totals are those of that head."""
        known = self.payable.get(name)
        if known is not None and known.size == size:
            return
        # Copied before the commit: everything in the copy is on disk when the log is queried.
        paid = list_payable(ledger.core.state.runs[name].paid, self._contracts.scale)
        await ledger.commit()
        if await get_last_payout(ledger.log, name) < size:
            self.payable[name] = Payable(size, paid)

    def _list_open(
        self, name: RunId, on_chain: RunOnChain, followed: FollowedChain, slashed: list[Digest]
    ) -> list[SlashInLog]:
        """Slashes that are not over. Those that ended before the first open one are not read again."""
        found: list[SlashInLog] = []
        for submission in slashed:
            slash = self._describe(self.cases[submission], on_chain, followed)
            if is_slash_over(submission, on_chain):
                self.over.add(submission)
            elif submission not in self.lost:
                found.append(slash)
            if not found:
                self._since[name] = slash.proposed + 1
                del self.cases[submission]
        return found

    def _list_open_penalties(self, name: RunId, on_chain: RunOnChain, followed: FollowedChain) -> list[PenaltyInLog]:
        """Penalties that are not over; the others are forgotten."""
        quorum = on_chain.terms.quorum if on_chain.terms else 0
        found: list[PenaltyInLog] = []
        for penalty, case in list(self.penalties.items()):
            if case.verdict.receipt.run != name:
                continue
            if penalty in self.lost or is_slash_over(penalty, on_chain):
                del self.penalties[penalty]
            else:
                can_judge = 0 < quorum <= len(self.choose_opposing(case, on_chain, followed))
                found.append(PenaltyInLog(penalty, case.index, can_judge))
        return found

    def choose_opposing(self, case: PenaltyCase, on_chain: RunOnChain, followed: FollowedChain) -> list[VerdictGiven]:
        """A quorum that refutes a verdict, none of it of the validator's owner; fewer if there are not enough."""
        owner = followed.stakes.get(str(case.entry.validator), VaultStake()).owner
        return self.choose_verdicts(list(case.opposing), on_chain, followed, [owner] if owner else [])

    def _describe(self, case: SlashCase, on_chain: RunOnChain, followed: FollowedChain) -> SlashInLog:
        quorum = on_chain.terms.quorum if on_chain.terms else 0
        barred = followed.judges.get(str(case.submission))
        deciding = self.choose_verdicts(case.deciding(), on_chain, followed, barred) if barred is not None else []
        can_judge = 0 < quorum <= len(deciding)
        return SlashInLog(case.submission, case.proposed, case.ended, case.is_executed, can_judge)

    def choose_verdicts(
        self, given: list[VerdictGiven], on_chain: RunOnChain, followed: FollowedChain, barred: list[str]
    ) -> list[VerdictGiven]:
        """Verdicts that the court counts: of validators with enough in the vault whose owner is not barred."""
        terms = on_chain.terms
        if terms is None:
            return []

        def is_fit(validator: NodeId) -> bool:
            held = followed.stakes.get(str(validator), VaultStake())
            return held.stake + held.unbonding >= terms.stakeMin and held.owner not in barred

        return choose_judges(given, is_fit, {NodeId.parse(each) for each in barred}, terms.quorum)


def decode_slash(seen: Mapping[str, Any]) -> SlashOnChain:
    """The fields of ICourt.Slash that actions.py needs."""
    return SlashOnChain(SlashPhase(seen["status"]), seen["appealUntil"], seen["judgeUntil"])
