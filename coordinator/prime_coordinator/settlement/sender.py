"""Carries out what posting.py finds due: turns an action into one transaction, and puts off what is refused."""

import logging
from typing import Any

from prime_coordinator.settlement.actions import (
    AnchorHead,
    ChainAction,
    ChainTerms,
    CloseRun,
    CreateRun,
    ExecuteSlash,
    JudgeAppeal,
    OverturnSlash,
    Payable,
    PostPayoutRoot,
    ProposeSlash,
    RefundSlash,
    RunPhase,
    SetTerms,
    is_appealable,
    list_actions,
)
from prime_coordinator.settlement.chain_events import FollowedChain, VaultStake
from prime_coordinator.settlement.config import SettlementConfig
from prime_coordinator.settlement.files import ChainFiles
from prime_coordinator.settlement.reader import LedgerView, SettlementReader
from prime_coordinator.settlement.slash_cases import encode_logged_entry, encode_receipt, encode_verdict
from prime_protocol.ledger.payout_tree import PayoutTree
from prime_protocol.log.merkle import compute_root
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import sign_document
from prime_runtime.chain.client import ChainBlock, ChainClient
from prime_runtime.chain.contracts import NetworkContracts, run_key
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted, GasCapExceeded
from prime_runtime.chain.wallet import Wallet

log = logging.getLogger(__name__)

NOTICE_MARGIN_S = 3_600
"""Beyond the notice that new terms need: the transaction takes its time."""
FINAL_REFUSALS = ("SlashTooLate", "NothingToSlash")
"""Refusals of a slash that waiting does not change."""
ACTIONS_AT_ONCE = 16
"""Transactions in one look at the chain, where each comes into its block at once."""


class ActionSender:
    """For one network."""

    def __init__(
        self,
        chain: ChainClient,
        contracts: NetworkContracts,
        wallet: Wallet,
        key: WalletKey,
        files: ChainFiles,
        config: SettlementConfig,
    ) -> None:
        self._chain = chain
        self._contracts = contracts
        self._wallet = wallet
        self._key = key
        self._files = files
        self._config = config
        self._reader = SettlementReader(chain, contracts, config)
        self._held: dict[ChainAction, int] = {}
        """Actions that a contract refused, and when they may be tried again."""
        self.anchor_requested: set[RunId] = set()
        """Anchor these now, whatever the epoch."""
        self._ended: set[RunId] = set()
        """Closed here and there: nothing is due for them any more."""
        self.refusals: dict[str, str] = {}
        """What the chain refuses, by action, for people."""
        self._unappealable: set[Digest] = set()
        """Slashes of which the court hears no appeal any more."""

    def is_appealable(self, submission: Digest) -> bool:
        """Until it is known to be otherwise."""
        facts = self._reader
        return submission not in self._unappealable and submission not in facts.lost | facts.over

    async def post(self, books: LedgerView, followed: FollowedChain, head: ChainBlock) -> None:
        """Everything that is due, one transaction after the other, as far as they come into blocks."""
        for _ in range(ACTIONS_AT_ONCE):
            if self._wallet.is_busy or not await self._post_one(books, followed, head):
                return
            head = await self._chain.newest()
            await self._wallet.update_pending(head)

    async def _post_one(self, books: LedgerView, followed: FollowedChain, head: ChainBlock) -> bool:
        """Send what is most urgent; False where nothing is due, or everything due is refused."""
        for name in [name for name in books.core.state.runs if name not in self._ended]:
            in_log, on_chain = await self._reader.gather(books, name, followed)
            self._unappealable |= {
                slash.submission
                for slash in in_log.slashes
                if not is_appealable(in_log, slash, on_chain, followed.time_s)
            }
            for action in list_actions(in_log, on_chain, head.time_s, is_hastened=name in self.anchor_requested):
                if self._held.get(action, 0) <= head.time_s and await self._try(action, books, followed, head):
                    return True
            if on_chain.phase is RunPhase.CLOSED and not in_log.slashes:
                self._ended.add(name)
        return False

    async def _try(self, action: ChainAction, books: LedgerView, followed: FollowedChain, head: ChainBlock) -> bool:
        name = type(action).__name__
        try:
            await self._do(action, books, followed, head)
        except (ContractReverted, GasCapExceeded) as error:
            if isinstance(action, ProposeSlash) and error.name in FINAL_REFUSALS:
                self._reader.lost.add(action.submission)
            self._hold(action, head, str(error))
            return False
        if isinstance(action, AnchorHead):
            self.anchor_requested.discard(action.run)
        self._held.pop(action, None)
        self.refusals.pop(repr(action), None)
        log.info("%s of %s is on its way to the chain", name, action.run)
        return True

    def _hold(self, action: ChainAction, head: ChainBlock, why: str) -> None:
        """One that is refused must not keep the others waiting."""
        self._held[action] = head.time_s + max(1, self._config.epoch_ms // 1000)
        self.refusals[repr(action)] = why
        log.warning("%s of %s is put off: %s", type(action).__name__, action.run, why)

    # --- Doing ------------------------------------------------------------------------------------------------------

    async def _do(self, action: ChainAction, books: LedgerView, followed: FollowedChain, head: ChainBlock) -> None:
        at, run = self._contracts, run_key(action.run)
        name = f"{type(action).__name__} {action.run}"
        send = self._wallet.send
        match action:
            case CreateRun(terms=terms):
                self._check_windows(terms, await self._chain.read(at.registry, "unbondingDelay"))
                await send(name, at.registry, "createRun", (str(action.run), self._key.node, terms.words()))
            case SetTerms(terms=terms):
                notice_s = int(await self._chain.read(at.registry, "unbondingDelay"))
                self._check_windows(terms, notice_s)
                starts = head.time_s + notice_s + NOTICE_MARGIN_S
                await send(name, at.registry, "setTerms", (run, starts, terms.words()))
            case CloseRun():
                await send(name, at.registry, "setStatus", (run, int(RunPhase.CLOSED)))
            case AnchorHead():
                await send(name, at.anchor, "anchor", await self._anchor_values(books, action.run))
            case PostPayoutRoot(epoch=epoch):
                await send(name, at.pool, "postRoot", await self._root_values(action.run, epoch))
            case ProposeSlash(submission=submission):
                values = await self._propose_values(books, action.run, submission, followed)
                await send(f"{name} {submission}", at.court, "propose", values)
            case JudgeAppeal(submission=submission):
                values = await self._judge_values(books, action.run, submission, followed)
                await send(f"{name} {submission}", at.court, "judge", values)
            case ExecuteSlash(submission=submission) | OverturnSlash(submission=submission):
                case = self._reader.cases[submission]
                assert case.ended is not None
                entry = await self._entry(books, action.run, case.ended, submission, None)
                function = "execute" if isinstance(action, ExecuteSlash) else "overturn"
                await send(f"{name} {submission}", at.court, function, (submission, entry))
            case RefundSlash(submission=submission):
                await send(f"{name} {submission}", at.court, "refund", (submission,))

    def _check_windows(self, terms: ChainTerms, unbonding_s: int) -> None:
        if terms.windows_s > unbonding_s:
            raise GasCapExceeded(
                f"a slash may take {terms.windows_s} s, and stake leaves the vault after {unbonding_s} s:"
                " shorten settlement.slash_window_ms, or the run's appeal_ms and judgement_ms"
            )

    async def _anchor_values(self, books: LedgerView, name: RunId) -> tuple[Any, ...]:
        """A head over everything so far, and what everybody was paid then: the next root is over the same entries."""
        state = books.core.state
        size, paid = state.size, self._reader.units(state.runs[name].paid)
        await books.commit()
        old_size = int(await self._chain.read(self._contracts.anchor, "latestSize", run_key(name)))
        root = compute_root(size, books.writer.tree.get_node)
        old_root = compute_root(old_size, books.writer.tree.get_node) if old_size else Digest(bytes(32))
        proof = books.writer.consistency_proof(old_size, size) if old_size else ()
        head = TreeHead(ORIGIN_PREFIX + books.core.entry_writer.ledger.network, size, root)
        signature = sign_document(self._key, head, self._contracts.head_domain)
        self._reader.payable[name] = Payable(size, paid)
        return run_key(name), size, root, old_root, [bytes(each) for each in proof], bytes(signature)

    async def _root_values(self, name: RunId, epoch: int) -> tuple[Any, ...]:
        size = int(await self._chain.read(self._contracts.anchor, "latestSize", run_key(name)))
        payable = self._reader.payable[name]
        if payable.size != size:
            raise ChainUnavailable(f"the chain has taken back the head over {payable.size} entries, or has a newer one")
        tree = PayoutTree(payable.paid)
        scale = self._contracts.scale
        self._files.write_payout(name, epoch, size, {key: units // scale for key, units in payable.paid.items()})
        return run_key(name), epoch, size, tree.root, tree.total

    async def _propose_values(
        self, books: LedgerView, name: RunId, submission: Digest, followed: FollowedChain
    ) -> tuple[Any, ...]:
        case, on_chain = self._reader.cases[submission], await self._reader.read_run(books, name)
        assert case.submitted is not None and case.evidence is not None
        owner = followed.stakes.get(str(case.submitted.receipt.node), VaultStake()).owner
        chosen = self._reader.choose_verdicts(case.accusing(), on_chain, followed, [owner] if owner else [])
        entry = await self._entry(books, name, case.proposed, submission, case.evidence)
        verdicts = [encode_verdict(each) for each in chosen]
        return run_key(name), encode_receipt(case.submitted), verdicts, case.evidence, entry

    async def _judge_values(
        self, books: LedgerView, name: RunId, submission: Digest, followed: FollowedChain
    ) -> tuple[Any, ...]:
        case, on_chain = self._reader.cases[submission], await self._reader.read_run(books, name)
        judges = followed.judges[str(submission)]
        chosen = self._reader.choose_verdicts(case.deciding(), on_chain, followed, judges)
        assert case.ended is not None
        entry = await self._entry(books, name, case.ended, submission, None)
        verdicts = [encode_verdict(each) for each in chosen]
        return submission, [NodeId.parse(each) for each in judges], verdicts, entry

    async def _entry(
        self, books: LedgerView, name: RunId, index: int, submission: Digest, evidence: Digest | None
    ) -> tuple[Any, ...]:
        """The log's own entry, in the first anchored head that covers it."""
        (leaf,) = await books.log.read(index, index + 1)
        size = int(await self._chain.read(self._contracts.anchor, "latestSize", run_key(name)))
        while True:
            found = await self._reader.read_head(books, name, size)
            if found["previous"] <= index:
                break
            size = int(found["previous"])
        proof = books.writer.inclusion_proof(index, size)
        return encode_logged_entry(leaf, index, size, proof, submission, evidence)
