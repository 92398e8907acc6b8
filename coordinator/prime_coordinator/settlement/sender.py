"""Turns the actions that actions.py finds due into transactions; refused ones are retried later."""

import logging
from typing import Any

from prime_coordinator.settlement.actions import (
    AnchorHead,
    ChainAction,
    ChainTerms,
    CloseRun,
    CreateRun,
    ExecutePenalty,
    ExecuteSlash,
    JudgeAppeal,
    JudgePenalty,
    OverturnSlash,
    Payable,
    PostPayoutRoot,
    ProposePenalty,
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
from prime_coordinator.settlement.slash_cases import SCORE_BYTES, encode_logged_entry, encode_receipt, encode_verdict
from prime_protocol.ledger.payout_tree import PayoutTree, list_payable
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
"""Added to the notice period of new terms, because the transaction takes time."""
FINAL_REFUSALS = ("SlashTooLate", "NothingToSlash")
"""Refusals of a slash that never change."""
NO_ACCOUNT = NodeId(bytes(20))
"""Of a slash without a bounty."""
ACTIONS_AT_ONCE = 16
"""Most transactions in one poll, if each is mined at once."""


class ActionSender:
    """Sends the actions of one network."""

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
        """Refused actions, and when each may be retried."""
        self.anchor_requested: set[RunId] = set()
        """Runs to anchor now, whatever the epoch."""
        self._ended: set[RunId] = set()
        """Runs closed in the log and on the chain: nothing is due for them."""
        self.refusals: dict[str, str] = {}
        """Refused actions and why, to show to people."""
        self._unappealable: set[Digest] = set()
        """Slashes that can no longer be appealed in court."""

    def is_appealable(self, submission: Digest) -> bool:
        """True until the opposite is known."""
        facts = self._reader
        return submission not in self._unappealable and submission not in facts.lost | facts.over

    async def post(self, ledger: LedgerView, followed: FollowedChain, head: ChainBlock) -> None:
        """Send every action that is due, one transaction at a time, as long as each is mined."""
        for _ in range(ACTIONS_AT_ONCE):
            if self._wallet.is_busy or not await self._post_one(ledger, followed, head):
                return
            head = await self._chain.newest()
            await self._wallet.update_pending(head)

    async def _post_one(self, ledger: LedgerView, followed: FollowedChain, head: ChainBlock) -> bool:
        """Send the most urgent action; False if none is due, or all due ones are refused."""
        for name in [name for name in ledger.core.state.runs if name not in self._ended]:
            in_log, on_chain = await self._reader.gather(ledger, name, followed)
            self._unappealable |= {
                slash.submission
                for slash in in_log.slashes
                if not is_appealable(in_log, slash, on_chain, followed.time_s)
            }
            for action in list_actions(in_log, on_chain, head.time_s, is_hastened=name in self.anchor_requested):
                if self._held.get(action, 0) <= head.time_s and await self._try(action, ledger, followed, head):
                    return True
            if on_chain.phase is RunPhase.CLOSED and not in_log.slashes and not in_log.penalties:
                self._ended.add(name)
        return False

    async def _try(self, action: ChainAction, ledger: LedgerView, followed: FollowedChain, head: ChainBlock) -> bool:
        name = type(action).__name__
        try:
            await self._do(action, ledger, followed, head)
        except (ContractReverted, GasCapExceeded) as error:
            if isinstance(action, ProposeSlash | ProposePenalty) and error.name in FINAL_REFUSALS:
                self._reader.lost.add(action.submission)
            self._hold(action, head, str(error))
            return False
        if isinstance(action, AnchorHead):
            self.anchor_requested.discard(action.run)
        self._held.pop(action, None)
        self.refusals.pop(repr(action), None)
        log.info("sent %s of %s to the chain", name, action.run)
        return True

    def _hold(self, action: ChainAction, head: ChainBlock, why: str) -> None:
        """A refused action must not block the others."""
        self._held[action] = head.time_s + max(1, self._config.epoch_ms // 1000)
        self.refusals[repr(action)] = why
        log.warning("%s of %s was refused and is retried later: %s", type(action).__name__, action.run, why)

    # --- Transactions -----------------------------------------------------------------------------------------------

    async def _do(self, action: ChainAction, ledger: LedgerView, followed: FollowedChain, head: ChainBlock) -> None:
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
                await send(name, at.anchor, "anchor", await self._anchor_values(ledger, action.run))
            case PostPayoutRoot(epoch=epoch):
                await send(name, at.pool, "postRoot", await self._root_values(action.run, epoch))
            case ProposeSlash(submission=submission):
                values = await self._propose_values(ledger, action.run, submission, followed)
                await send(f"{name} {submission}", at.court, "propose", values)
            case JudgeAppeal(submission=submission):
                values = await self._judge_values(ledger, action.run, submission, followed)
                await send(f"{name} {submission}", at.court, "judge", values)
            case ExecuteSlash(submission=submission) | OverturnSlash(submission=submission):
                case = self._reader.cases[submission]
                assert case.ended is not None
                entry = await self._entry(ledger, action.run, case.ended, case.end_bytes())
                purpose = f"{name} {submission}"
                if isinstance(action, ExecuteSlash):
                    await send(purpose, at.court, "execute", (submission, case.bounty_to or NO_ACCOUNT, entry))
                else:
                    await send(purpose, at.court, "overturn", (submission, entry))
            case RefundSlash(submission=submission):
                await send(f"{name} {submission}", at.court, "refund", (submission,))
            case ProposePenalty(submission=penalty):
                values = await self._penalty_values(ledger, action.run, penalty)
                await send(f"{name} {penalty}", at.court, "proposePenalty", values)
            case JudgePenalty(submission=penalty):
                values = await self._judge_penalty_values(ledger, action.run, penalty, followed)
                await send(f"{name} {penalty}", at.court, "judgePenalty", values)
            case ExecutePenalty(submission=penalty):
                await send(f"{name} {penalty}", at.court, "executePenalty", (penalty,))

    def _check_windows(self, terms: ChainTerms, unbonding_s: int) -> None:
        if terms.windows_s > unbonding_s:
            raise GasCapExceeded(
                f"a slash may take {terms.windows_s} s, and stake leaves the vault after {unbonding_s} s:"
                " shorten settlement.slash_window_ms, or the run's appeal_ms and long_stop_ms"
            )

    async def _anchor_values(self, ledger: LedgerView, name: RunId) -> tuple[Any, ...]:
        """A head over every entry, with the payouts at that point: the next root covers the same entries."""
        state = ledger.core.state
        size, paid = state.size, list_payable(state.runs[name].paid, self._contracts.scale)
        await ledger.commit()
        old_size = int(await self._chain.read(self._contracts.anchor, "latestSize", run_key(name)))
        root = compute_root(size, ledger.writer.tree.get_node)
        old_root = compute_root(old_size, ledger.writer.tree.get_node) if old_size else Digest(bytes(32))
        proof = ledger.writer.consistency_proof(old_size, size) if old_size else ()
        head = TreeHead(ORIGIN_PREFIX + ledger.core.entry_writer.ledger.network, size, root)
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
        self, ledger: LedgerView, name: RunId, submission: Digest, followed: FollowedChain
    ) -> tuple[Any, ...]:
        case, on_chain = self._reader.cases[submission], await self._reader.read_run(ledger, name)
        assert case.submitted is not None and case.evidence is not None
        owner = followed.stakes.get(str(case.submitted.receipt.node), VaultStake()).owner
        chosen = self._reader.choose_verdicts(case.accusing(), on_chain, followed, [owner] if owner else [])
        entry = await self._entry(ledger, name, case.proposed, case.proposal_bytes())
        verdicts = [encode_verdict(each) for each in chosen]
        return run_key(name), encode_receipt(case.submitted), verdicts, case.evidence, entry

    async def _judge_values(
        self, ledger: LedgerView, name: RunId, submission: Digest, followed: FollowedChain
    ) -> tuple[Any, ...]:
        case, on_chain = self._reader.cases[submission], await self._reader.read_run(ledger, name)
        judges = followed.judges[str(submission)]
        chosen = self._reader.choose_verdicts(case.deciding(), on_chain, followed, judges)
        assert case.ended is not None
        entry = await self._entry(ledger, name, case.ended, case.end_bytes())
        verdicts = [encode_verdict(each) for each in chosen]
        return submission, [NodeId.parse(each) for each in judges], verdicts, case.bounty_to or NO_ACCOUNT, entry

    async def _penalty_values(self, ledger: LedgerView, name: RunId, penalty: Digest) -> tuple[Any, ...]:
        case = self._reader.penalties[penalty]
        entry = await self._entry(ledger, name, case.index, SCORE_BYTES)
        return run_key(name), case.entry.submission, encode_verdict(case.verdict), case.entry.penalty_nano, entry

    async def _judge_penalty_values(
        self, ledger: LedgerView, name: RunId, penalty: Digest, followed: FollowedChain
    ) -> tuple[Any, ...]:
        case, on_chain = self._reader.penalties[penalty], await self._reader.read_run(ledger, name)
        verdicts = [encode_verdict(each) for each in self._reader.choose_opposing(case, on_chain, followed)]
        return case.entry.submission, case.entry.validator, verdicts

    async def _entry(self, ledger: LedgerView, name: RunId, index: int, begins: bytes) -> tuple[Any, ...]:
        """An entry of the log, in the first anchored head that covers it."""
        (leaf,) = await ledger.log.read(index, index + 1)
        size = int(await self._chain.read(self._contracts.anchor, "latestSize", run_key(name)))
        while True:
            found = await self._reader.read_head(ledger, name, size)
            if found["previous"] <= index:
                break
            size = int(found["previous"])
        proof = ledger.writer.inclusion_proof(index, size)
        return encode_logged_entry(leaf, index, size, proof, begins)
