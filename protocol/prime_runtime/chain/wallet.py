"""A key that pays for transactions: it stores each transaction before sending it and follows it until it is final.

A command and a running program may use the same key: they share its file of pending transactions under a lock.
"""

import json
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.client import ChainBlock, ChainClient, Contract, MinedTransaction, sign_transaction
from prime_runtime.chain.transactions import (
    ChainUnavailable,
    ContractReverted,
    GasCapExceeded,
    GasConfig,
    NonceTaken,
    PendingTransaction,
    SignedAttempt,
    TransactionSight,
    TransactionStep,
    drop_stranded,
    next_nonce,
    next_step,
    raise_fees,
)
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic
from prime_runtime.lock import hold_file_lock

log = logging.getLogger(__name__)

GWEI = 10**9
MINED_POLL_MS = 250
"""Interval between checks for a transaction that a caller waits for."""
GAS_ROOM_PERCENT = 120
"""Gas limit relative to the estimate: the state may change before the transaction is mined."""
LOCK_POLL_MS, LOCK_POLLS_MAX = 20, 6_000
"""Interval and number of attempts for the lock of another process: longer than a chain may take to answer it."""
TIP_SALT_WEI = 1_000
"""Random extra tip, below this: two programs that send the same call with the same key must not sign the same bytes, of
which one is mined and both claim it."""
SENDS_MAX = 5
"""Attempts with a new nonce, if another program has used the first."""


class Wallet:
    """A key on one chain. Without a file no other process may use it."""

    def __init__(
        self,
        chain: ChainClient,
        key: WalletKey,
        clock: Clock,
        *,
        gas: GasConfig,
        confirmations: int = 0,
        path: Path | None = None,
    ) -> None:
        self._chain = chain
        self._key = key
        self._clock = clock
        self._gas = gas
        self._confirmations = confirmations
        self._path = path
        self.pending: tuple[PendingTransaction, ...] = read_pending(path) if path else ()
        self._is_fresh = True
        self._chain_id = 0

    @property
    def node(self) -> NodeId:
        return self._key.node

    @property
    def is_busy(self) -> bool:
        """A sent transaction is not mined yet."""
        return any(sent.mined_in is None for sent in self.pending)

    async def update_pending(self, head: ChainBlock) -> None:
        """Check every pending transaction and do what is due."""
        async with self._locked():
            if not self.pending:
                return
            chain_nonce = await self._chain.nonce(self.node)
            kept: list[PendingTransaction] = []
            for sent in drop_stranded(self.pending, chain_nonce):
                seen = await self._update(sent, head, chain_nonce)
                if seen is not None:
                    kept.append(seen)
            self._is_fresh = False
            self._store(tuple(kept))

    async def _update(self, sent: PendingTransaction, head: ChainBlock, chain_nonce: int) -> PendingTransaction | None:
        """The updated transaction; None if it is settled."""
        mined = await self._find(sent)
        sight = TransactionSight(mined.block if mined else None, head.number, chain_nonce, self._clock.now_ms())
        caps = {"patience_ms": self._gas.patience_ms, "fee_wei_max": self._gas.fee_gwei_max * GWEI}
        step = next_step(sent, sight, confirmations=self._confirmations, **caps)
        if mined is not None and sent.mined_in is None:
            log.info("%s is in block %d%s", sent.purpose, mined.block, "" if mined.has_succeeded else ", and reverted")
        if step is TransactionStep.FORGET:
            if mined is None:
                log.warning("another transaction used nonce %d; %s is decided again", sent.nonce, sent.purpose)
            return None
        if step is TransactionStep.RAISE:
            fee_wei, tip_wei = raise_fees(sent.last, fee_wei_max=caps["fee_wei_max"])
            log.info("%s waits too long; sent again at %d gwei", sent.purpose, fee_wei // GWEI)
            sent = sent.add_attempt(await self._sign(sent, fee_wei, tip_wei))
            self._store(tuple(sent if each.nonce == sent.nonce else each for each in self.pending))
        if mined is None and (step is not TransactionStep.WAIT or self._is_fresh):
            await self._chain.send_raw(sent.last.raw)
        return replace(sent, mined_in=sight.mined_in)

    async def _find(self, sent: PendingTransaction) -> MinedTransaction | None:
        for attempt in reversed(sent.attempts):
            mined = await self._chain.mined(attempt.hash)
            if mined is not None:
                return mined
        return None

    async def send(self, purpose: str, contract: Contract, function: str, values: Sequence[Any]) -> PendingTransaction:
        """Call a contract. ContractReverted: it would fail."""
        data = self._chain.encode(contract, function, *values)
        return await self.send_data(purpose, checksum_address(contract.address), data)

    async def send_data(self, purpose: str, to: str, data: str) -> PendingTransaction:
        """Store a transaction, then send it. `to` is empty for a new contract."""
        estimate = await self._chain.estimate_gas(self.node, to, data)
        gas = min(self._gas.gas_max, estimate * GAS_ROOM_PERCENT // 100)
        if estimate > self._gas.gas_max:
            raise GasCapExceeded(f"{purpose} needs {estimate} gas, the cap is {self._gas.gas_max}: see gas_max")
        head = await self._chain.newest()
        tip_wei = await self._chain.tip_wei() + secrets.randbelow(TIP_SALT_WEI)
        cap_wei = self._gas.fee_gwei_max * GWEI
        if head.base_fee_wei > cap_wei:
            raise ChainUnavailable(
                f"the chain asks {head.base_fee_wei // GWEI} gwei, the cap is {self._gas.fee_gwei_max}"
            )
        fee_wei = min(cap_wei, 2 * head.base_fee_wei + tip_wei)
        await self._check_balance(purpose, gas * (head.base_fee_wei + tip_wei))
        async with self._locked():
            nonce = next_nonce(self.pending, await self._chain.nonce(self.node))
            draft = PendingTransaction(nonce, purpose, to, data, gas, ())
            sent = draft.add_attempt(await self._sign(draft, fee_wei, min(tip_wei, fee_wei)))
            self._store((*self.pending, sent))
            await self._chain.send_raw(sent.last.raw)
        return sent

    async def _check_balance(self, purpose: str, cost_wei: int) -> None:
        """Checked before the transaction is stored: an unfunded one would be sent whenever funds arrive."""
        held_wei = await self._chain.balance_wei(self.node)
        if held_wei < cost_wei:
            raise ChainUnavailable(
                f"{self.node} holds {held_wei} wei on the chain, and the gas of {purpose} may cost {cost_wei}:"
                " send it funds"
            )

    async def send_and_wait(self, purpose: str, contract: Contract, function: str, *values: Any) -> MinedTransaction:
        """Send and wait until it is mined. ContractReverted: it failed there."""
        for left in reversed(range(SENDS_MAX)):
            sent = await self.send(purpose, contract, function, values)
            try:
                return await self._wait_for(sent)
            except NonceTaken as error:
                if not left:
                    raise
                log.info("%s: sent again", error)
        raise AssertionError("the last try returns or raises")

    async def wait_for(self, purpose: str) -> MinedTransaction:
        """Wait for the transaction that this or an earlier process sent for a purpose."""
        return await self._wait_for(next(sent for sent in self.pending if sent.purpose == purpose))

    async def _wait_for(self, sent: PendingTransaction) -> MinedTransaction:
        while True:
            await self.update_pending(await self._chain.newest())
            known = next((each for each in self.pending if each.nonce == sent.nonce), None)
            sent = known or sent
            mined = await self._find(sent)
            if mined is not None:
                break
            if known is None:
                raise await self._explain_loss(sent)
            await self._clock.sleep_ms(MINED_POLL_MS)
        if not mined.has_succeeded:
            raise ContractReverted(f"{sent.purpose} reverted in block {mined.block}")
        return mined

    async def _explain_loss(self, sent: PendingTransaction) -> ChainUnavailable:
        """The error of a transaction that is neither mined nor pending."""
        if await self._chain.nonce(self.node) > sent.nonce:
            return NonceTaken(f"another transaction of {self.node} used the nonce of {sent.purpose}")
        return ChainUnavailable(f"{sent.purpose} was not mined: the chain has lost an earlier transaction")

    async def _sign(self, sent: PendingTransaction, fee_wei: int, tip_wei: int) -> SignedAttempt:
        self._chain_id = self._chain_id or await self._chain.chain_id()
        fields = {
            "type": 2,
            "chainId": self._chain_id,
            "nonce": sent.nonce,
            "gas": sent.gas,
            "maxFeePerGas": fee_wei,
            "maxPriorityFeePerGas": tip_wei,
            "value": 0,
            "data": sent.data,
        }
        name, raw = sign_transaction(self._key, {**fields, "to": sent.to} if sent.to else fields)
        return SignedAttempt(name, raw, fee_wei, tip_wei, self._clock.now_ms())

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the file lock and reload the pending transactions."""
        if self._path is None:
            yield
            return
        async with hold_file_lock(
            self._path.with_suffix(".lock"), self._clock, wait_ms=LOCK_POLL_MS, tries=LOCK_POLLS_MAX
        ):
            self.pending = read_pending(self._path)
            yield

    def _store(self, pending: tuple[PendingTransaction, ...]) -> None:
        if pending != self.pending and self._path is not None:
            write_atomic(self._path, json.dumps([asdict(sent) for sent in pending]).encode(), mode=0o600)
        self.pending = pending


def read_pending(path: Path) -> tuple[PendingTransaction, ...]:
    """The stored transactions. LocalError if unreadable: continuing might use a nonce twice."""
    try:
        rows = json.loads(path.read_bytes())
        return tuple(
            PendingTransaction(**{**row, "attempts": tuple(SignedAttempt(**each) for each in row["attempts"])})
            for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LocalError(
            f"{path} cannot be read ({error}); if no transaction of this key is pending, remove it"
        ) from None
