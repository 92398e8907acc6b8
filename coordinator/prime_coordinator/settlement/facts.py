"""What the chain and the log say of a run now, gathered for posting.py to decide on."""

from collections.abc import Mapping, Sequence
from typing import Any

from prime_coordinator.settlement.chain_terms import ChainTerms, chain_terms
from prime_coordinator.settlement.config import SettlementConfig
from prime_coordinator.settlement.ledger_view import Books, last_payout, list_slashed, read_case
from prime_coordinator.settlement.papers import SlashCase, choose_judges
from prime_coordinator.settlement.posting import (
    Payable,
    PoolOnChain,
    RunInLog,
    RunOnChain,
    RunPhase,
    SlashInLog,
    SlashOnChain,
    SlashPhase,
    is_over,
)
from prime_coordinator.settlement.vault_events import Followed, Stake
from prime_protocol.entries import RunStatus, VerdictGiven
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.merkle import root_of
from prime_runtime.chain.client import Chain, Question
from prime_runtime.chain.contracts import Contracts, run_key
from prime_runtime.chain.errors import ChainAway, ChainRefused

FAR = 2**48 - 1
"""A time after every announced change of terms."""


class Facts:
    """Of one network. What it remembers between two looks can be read again."""

    def __init__(self, chain: Chain, contracts: Contracts, config: SettlementConfig) -> None:
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

    async def gather(self, books: Books, name: RunId, followed: Followed) -> tuple[RunInLog, RunOnChain]:
        """Both sides of a run."""
        slashed = await self._load_cases(books, name)
        on_chain = await self.read_run(books, name, slashed)
        return await self._read_log(books, name, on_chain, followed, slashed), on_chain

    # --- The chain --------------------------------------------------------------------------------------------------

    async def read_run(self, books: Books, name: RunId, slashed: Sequence[Digest] = ()) -> RunOnChain:
        """In one request, and a second one where the newest head is not the one that was seen last."""
        at, run = self._contracts, run_key(name)
        asked: list[Question] = [
            (at.registry, "runOf", (run,)),
            (at.registry, "termsAt", (run, FAR)),
            (at.anchor, "latestSize", (run,)),
            (at.anchor, "frozenAt", (run,)),
            (at.pool, "poolOf", (run,)),
        ]
        asked += [(at.court, "slashOf", (submission,)) for submission in slashed]
        known, *rest = await self._chain.read_all(asked)
        if isinstance(known, ChainRefused) and known.name == "RunUnknown":
            return RunOnChain()
        refused = [each for each in (known, *rest) if isinstance(each, ChainRefused)]
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
            slashes={submission: slash_on_chain(seen) for submission, seen in zip(slashed, slashes, strict=True)},
        )

    async def _read_anchored_at(self, books: Books, name: RunId, size: int) -> int:
        """When the newest head came, and that it is our own; 0 before the first."""
        if not size:
            return 0
        known_size, anchored_at = self._newest.get(name, (0, 0))
        if known_size != size:
            anchored_at = int((await self.read_head(books, name, size))["anchoredAt"])
            self._newest[name] = (size, anchored_at)
        return anchored_at

    async def read_head(self, books: Books, name: RunId, size: int) -> Any:
        """An anchored head of our own log; refused by the anchor where the root there is another."""
        if size > books.writer.size:
            raise ChainAway(
                f"the chain has a head over {size} entries, and the log here has {books.writer.size}:"
                " was it restored from an old copy? Nothing is brought there before it has them again"
            )
        root = root_of(size, books.writer.tree.get_node)
        return await self._chain.read(self._contracts.anchor, "headAt", run_key(name), size, root)

    # --- The log ----------------------------------------------------------------------------------------------------

    async def _load_cases(self, books: Books, name: RunId) -> list[Digest]:
        """The slashes of a run that may not be over, oldest first."""
        found = await list_slashed(books.log, name, self._since.get(name, 0))
        for submission in found:
            case = self.cases.get(submission)
            if case is None or case.ended is None:
                self.cases[submission] = await read_case(books.log, submission)
        return found

    async def _read_log(
        self, books: Books, name: RunId, on_chain: RunOnChain, followed: Followed, slashed: list[Digest]
    ) -> RunInLog:
        run = books.core.state.runs[name]
        await self._find_payable(books, name, on_chain.size)
        return RunInLog(
            name=name,
            terms=chain_terms(run.terms, self._config, self._contracts.scale),
            size=books.writer.size,
            is_closed=run.status is RunStatus.CLOSED,
            payable=self.payable.get(name),
            paid_total=sum(run.paid.values()) * self._contracts.scale,
            slashes=tuple(self._list_open(name, on_chain, followed, slashed)),
        )

    async def _find_payable(self, books: Books, name: RunId, size: int) -> None:
        """After a restart: if nothing was paid since the anchored head, what is paid now was paid then."""
        known = self.payable.get(name)
        if known is not None and known.size == size:
            return
        # Copied before the log is asked: whatever is in the copy is on disk when the answer comes.
        paid = self.units(books.core.state.runs[name].paid)
        await books.commit()
        if await last_payout(books.log, name) < size:
            self.payable[name] = Payable(size, paid)

    def units(self, paid: Mapping[NodeId, int]) -> dict[NodeId, int]:
        return {account: nano * self._contracts.scale for account, nano in paid.items() if nano > 0}

    def _list_open(
        self, name: RunId, on_chain: RunOnChain, followed: Followed, slashed: list[Digest]
    ) -> list[SlashInLog]:
        """Those that are not over; the ones that are before all of these are not read again."""
        found: list[SlashInLog] = []
        for submission in slashed:
            slash = self._describe(self.cases[submission], on_chain, followed)
            if is_over(slash, on_chain):
                self.over.add(submission)
            elif submission not in self.lost:
                found.append(slash)
            if not found:
                self._since[name] = slash.proposed + 1
                del self.cases[submission]
        return found

    def _describe(self, case: SlashCase, on_chain: RunOnChain, followed: Followed) -> SlashInLog:
        quorum = on_chain.terms.quorum if on_chain.terms else 0
        barred = followed.judges.get(str(case.submission))
        deciding = self.choose(case.deciding(), on_chain, followed, barred) if barred is not None else []
        can_judge = 0 < quorum <= len(deciding)
        return SlashInLog(case.submission, case.proposed, case.ended, case.is_executed, can_judge)

    def choose(
        self, given: list[VerdictGiven], on_chain: RunOnChain, followed: Followed, barred: list[str]
    ) -> list[VerdictGiven]:
        """Verdicts that the court will count: of validators with enough in the vault, none of an owner barred."""
        terms = on_chain.terms
        if terms is None:
            return []

        def is_fit(validator: NodeId) -> bool:
            held = followed.stakes.get(str(validator), Stake())
            return held.stake + held.unbonding >= terms.stakeMin and held.owner not in barred

        return choose_judges(given, is_fit, {NodeId.parse(each) for each in barred}, terms.quorum)


def slash_on_chain(seen: Mapping[str, Any]) -> SlashOnChain:
    """ICourt.Slash, as far as posting goes by it."""
    return SlashOnChain(SlashPhase(seen["status"]), seen["appealUntil"], seen["judgeUntil"])
