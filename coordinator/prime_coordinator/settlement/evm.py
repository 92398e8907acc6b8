"""Settlement on an EVM chain: follows the events of its contracts, and sends heads, payout roots and slashes to them.

The log remains the record of everything; the chain holds stake and rewards. An unreachable chain stops no work: once it
is back, whatever is due is found by comparing both sides.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_coordinator.settlement.chain_events import (
    ChainDeposit,
    FollowedChain,
    explain_challenge,
    find_unassigned,
    find_unlogged_appeals,
    format_run_key,
    is_deposit,
    list_backing_changes,
    list_missing_deposits,
    read_deposit,
)
from prime_coordinator.settlement.config import SettlementConfig
from prime_coordinator.settlement.files import ChainFiles
from prime_coordinator.settlement.interface import SettlementEntry
from prime_coordinator.settlement.reader import LedgerView
from prime_coordinator.settlement.sender import ActionSender
from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Appealed, Deposited
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.client import ChainBlock, ChainClient, ChainEvent
from prime_runtime.chain.contracts import NetworkContracts, deposit_reference, find_contracts, run_key
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

UNREACHABLE_PAUSE_MS_MAX = 60_000
"""Longest pause between two polls of an unreachable chain."""
QUIET_BLOCKS_MAX = 100
"""Blocks without events before the position is written to disk: a write waits for the disk, reading those blocks again
after a restart is one request.
"""


class EvmSettlement:
    """Settlement of one network on one chain."""

    def __init__(self, config: SettlementConfig, key: WalletKey, folder: Path, clock: Clock) -> None:
        self._config = config
        self._key = key
        self._clock = clock
        self._files = ChainFiles(folder)
        self._chain = ChainClient(config.rpc, bearer=config.rpc_bearer.reveal() if config.rpc_bearer else None)
        self._wallet = Wallet(
            self._chain,
            key,
            clock,
            gas=config.gas,
            confirmations=config.confirmations,
            path=self._files.transactions,
        )
        self._followed = self._files.read_followed(config.start_block)
        self._kept_block = self._followed.block
        self._waiting: list[Deposited] = []
        """Deposits on the chain that the log does not have yet."""
        self._contracts: NetworkContracts | None = None
        self._sender: ActionSender | None = None
        self._is_current = False
        """Whether every confirmed block was read."""
        self._is_anchor_requested = False
        self._head = 0
        self._problem = "the chain was not polled yet"

    # --- The interface ----------------------------------------------------------------------------------------------

    def get_welcome_deposits(self, state: LedgerState, node: NodeId) -> list[Deposited]:
        """None: stake comes through the vault."""
        return []

    async def collect(self, state: LedgerState) -> list[SettlementEntry]:
        """Deposits on the chain, and nodes whose stake left the vault."""
        free_nano = AMOUNT_NANO_MAX - state.funds.deposited_nano
        orders: list[SettlementEntry] = []
        for deposit in self._waiting:
            if deposit.reference not in state.references and deposit.amount_nano <= free_nano:
                free_nano -= deposit.amount_nano
                orders.append(deposit)
        if self._is_current and self._contracts is not None and not orders:
            orders += list_backing_changes(state, self._followed.stakes, self._contracts.scale)
        return orders

    def appeals(self, state: LedgerState) -> list[tuple[RunId, Appealed]]:
        """Appeals in court that the log does not have."""
        return find_unlogged_appeals(state, self._followed.appealed)

    def is_appealable(self, submission: Digest) -> bool:
        """True while the court may still get an appeal, or may have one that is not confirmed."""
        return self._sender is None or self._sender.is_appealable(submission)

    async def run(self, ledger: LedgerView) -> None:
        """Runs as long as the coordinator; nothing on the chain ends it."""
        wait_ms = self._config.poll_ms
        while True:
            try:
                await self.settle(ledger)
                self._set_problem("")
                wait_ms = self._config.poll_ms
            except (ChainUnavailable, ContractReverted) as error:
                self._set_problem(str(error))
                wait_ms = min(max(UNREACHABLE_PAUSE_MS_MAX, self._config.poll_ms), 2 * wait_ms)
            await self._clock.sleep_ms(wait_ms)

    async def close(self) -> None:
        await self._chain.close()

    def request_anchor(self) -> None:
        """Anchor at the next poll, whatever the epoch."""
        self._is_anchor_requested = True

    def describe(self) -> dict[str, Any]:
        contracts = self._contracts
        named = ("court", "vault", "pool", "registry", "anchor", "token")
        return {
            "kind": "evm",
            "chain_id": contracts.chain_id if contracts else None,
            "contracts": {name: str(getattr(contracts, name).address) for name in named} if contracts else {},
            "head": self._head,
            "followed": self._followed.block,
            "problem": self._problem,
            "pending": [sent.purpose for sent in self._wallet.pending if sent.mined_in is None],
            "refused": dict(self._sender.refusals) if self._sender else {},
            "anchors": self._followed.anchors[::-1],
            "promises": self._followed.promises[::-1],
        }

    # --- One poll of the chain --------------------------------------------------------------------------------------

    async def settle(self, ledger: LedgerView) -> None:
        """Read events, track sent transactions, send what is due. ChainUnavailable if the chain is unreachable."""
        poster = self._sender or await self._connect(ledger.core.state)
        head = await self._chain.newest()
        self._head = head.number
        await self._follow(ledger, head)
        await self._wallet.update_pending(head)
        if self._is_anchor_requested:
            poster.anchor_requested |= set(ledger.core.state.runs)
            self._is_anchor_requested = False
        if self._is_current:
            await poster.post(ledger, self._followed, head)

    async def _connect(self, state: LedgerState) -> ActionSender:
        contracts = await find_contracts(self._chain, self._config.court_address)
        if contracts.domain != state.domain:
            raise ChainUnavailable(
                f"this is chain {contracts.chain_id} with the court {contracts.court.address}, and the network was"
                f" created on chain {state.domain.chain_id} with {state.domain.contract}: is settlement.rpc right?"
            )
        self._contracts = contracts
        self._sender = ActionSender(self._chain, contracts, self._wallet, self._key, self._files, self._config)
        log.info("settling on chain %d, court %s", contracts.chain_id, contracts.court.address)
        return self._sender

    async def _follow(self, ledger: LedgerView, head: ChainBlock) -> None:
        """Read confirmed blocks. The position is stored once the log has their deposits on disk."""
        await self._check_history()
        if self._followed.unassigned and not await self._credit_unassigned(ledger):
            return
        while (span := self._followed.next_span(head.number, self._config.confirmations)) is not None:
            self._is_current = False
            last = await self._chain.block(span[-1])
            assert self._contracts is not None
            events = await self._chain.events(self._contracts.watched, span[0], span[-1])
            if last is None:
                return  # the chain became shorter meanwhile
            found = await self._read_deposits([event for event in events if is_deposit(event)])
            runs = get_runs_by_key(ledger.core.state)
            if not await self._book(ledger, found, runs):
                return  # the log will have them at the next poll
            for event in events:
                self._followed.apply(event)
                if warning := explain_challenge(event, runs):
                    log.error("%s", warning)
            self._keep_unassigned(find_unassigned(found, runs))
            self._followed.block, self._followed.hash, self._followed.time_s = last.number, last.hash, last.time_s
            if events or last.number - self._kept_block >= QUIET_BLOCKS_MAX:
                self._files.write_followed(self._followed)
                self._kept_block = last.number
        self._is_current = True

    async def _check_history(self) -> None:
        """Start over if the chain dropped a confirmed block."""
        followed = self._followed
        if not followed.hash:
            return
        seen = await self._chain.block(followed.block)
        if seen is not None and seen.hash == followed.hash:
            return
        log.error(
            "block %d of the chain has changed: a reorganisation of over %d blocks, or another chain."
            " All events are read again",
            followed.block,
            self._config.confirmations,
        )
        self._followed = FollowedChain(block=self._config.start_block - 1)
        self._kept_block = self._followed.block

    async def _read_deposits(self, events: list[ChainEvent]) -> list[ChainDeposit]:
        assert self._contracts is not None
        found = []
        for event in events:
            mined = await self._chain.mined(event.transaction)
            if mined is None:
                raise ChainUnavailable(f"transaction {event.transaction} is gone again")
            at = self._contracts
            source = at.vault if event.contract == "StakeVault" else at.pool
            offset = event.index - mined.first_event
            reference = deposit_reference(at.chain_id, source.address, event.transaction, offset)
            found.append(read_deposit(event, reference, at.scale, at.court.address))
        return found

    async def _credit_unassigned(self, ledger: LedgerView) -> bool:
        """Whether the log has on disk the deposits of runs that it has since learned of."""
        unassigned, runs = self._followed.unassigned, get_runs_by_key(ledger.core.state)
        if not await self._book(ledger, unassigned, runs):
            return False
        self._followed.unassigned = find_unassigned(unassigned, runs)
        return True

    async def _book(self, ledger: LedgerView, found: list[ChainDeposit], runs: Mapping[str, RunId]) -> bool:
        """Whether the log has these on disk, except those of unknown runs; `collect` reports what it lacks."""
        state = ledger.core.state
        free_nano = AMOUNT_NANO_MAX - state.funds.deposited_nano
        missing = list_missing_deposits(found, runs, state.references)
        self._waiting = [deposit for deposit in missing if deposit.amount_nano <= free_nano]
        if self._waiting:
            return False
        for deposit in missing:
            log.error("the ledger cannot hold a deposit of %d nano by %s", deposit.amount_nano, deposit.account)
        await ledger.commit()
        return True

    def _keep_unassigned(self, unassigned: list[ChainDeposit]) -> None:
        """Keep deposits of unknown runs, outside of any balance: what a pool holds must not be spent elsewhere."""
        for deposit in unassigned:
            log.error(
                "%d nano of %s are in the pool of %s, a run that the log does not know; they are credited once it does",
                deposit.amount_nano,
                deposit.account,
                deposit.run,
            )
        self._followed.unassigned += unassigned

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("settlement waits, work continues: %s", problem)
        elif self._problem and not problem:
            log.info("settlement has followed the chain to block %d", self._followed.block)
        self._problem = problem


def get_runs_by_key(state: LedgerState) -> dict[str, RunId]:
    """The runs of the log by their key on the chain."""
    return {format_run_key(run_key(name)): name for name in state.runs}


def open_evm(config: SettlementConfig, key: WalletKey, folder: Path, clock: Clock) -> EvmSettlement:
    if not config.court:
        raise LocalError("settlement.court is empty: make the contracts with: prime-coordinator chain deploy")
    return EvmSettlement(config, key, folder, clock)
