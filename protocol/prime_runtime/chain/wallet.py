"""A key that pays for transactions: writes each down before it is sent, and looks after it until it counts for good.

A command and the program that runs beside it may use one key: they share its book, and take turns with it.
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
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey, checksum_address
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
"""Between two looks for a transaction that somebody waits for."""
GAS_ROOM_PERCENT = 120
"""Of the estimate: the state may change a little before the transaction is in a block."""
LOCK_POLL_MS, LOCK_POLLS_MAX = 20, 6_000
"""Between two tries for the book that another process has, and how many: longer than a chain may take to answer it."""
TIP_SALT_WEI = 1_000
"""A tip is higher by chance, by less than this: two programs that send the same for the same key must not sign the same
bytes, of which one counts and both believe it theirs.
"""
SENDS_MAX = 5
"""Times that a transaction is sent under a new nonce, because another program has used its."""


class Wallet:
    """One key on one chain. Without a file for its book it is this process's alone."""

    def __init__(
        self,
        chain: ChainClient,
        key: WalletKey,
        clock: Clock,
        *,
        gas: GasConfig,
        confirmations: int = 0,
        book: Path | None = None,
    ) -> None:
        self._chain = chain
        self._key = key
        self._clock = clock
        self._gas = gas
        self._confirmations = confirmations
        self._path = book
        self.pending: tuple[PendingTransaction, ...] = read_pending(book) if book else ()
        self._is_fresh = True
        self._chain_id = 0

    @property
    def node(self) -> NodeId:
        return self._key.node

    @property
    def is_busy(self) -> bool:
        """Something was sent and is in no block yet."""
        return any(sent.mined_in is None for sent in self.pending)

    async def update_pending(self, head: ChainBlock) -> None:
        """Look after everything in the book."""
        async with self._turn():
            if not self.pending:
                return
            chain_nonce = await self._chain.nonce(self.node)
            kept: list[PendingTransaction] = []
            for sent in drop_stranded(self.pending, chain_nonce):
                seen = await self._tend(sent, head, chain_nonce)
                if seen is not None:
                    kept.append(seen)
            self._is_fresh = False
            self._keep(tuple(kept))

    async def _tend(self, sent: PendingTransaction, head: ChainBlock, chain_nonce: int) -> PendingTransaction | None:
        """The transaction as it stands now; None where it needs no more looking after."""
        mined = await self._find(sent)
        sight = TransactionSight(mined.block if mined else None, head.number, chain_nonce, self._clock.now_ms())
        caps = {"patience_ms": self._gas.patience_ms, "fee_wei_max": self._gas.fee_gwei_max * GWEI}
        step = next_step(sent, sight, confirmations=self._confirmations, **caps)
        if mined is not None and sent.mined_in is None:
            log.info(
                "%s is in block %d%s", sent.purpose, mined.block, "" if mined.has_succeeded else ", and was refused"
            )
        if step is TransactionStep.FORGET:
            if mined is None:
                log.warning("another transaction has taken nonce %d; %s is decided anew", sent.nonce, sent.purpose)
            return None
        if step is TransactionStep.RAISE:
            fee_wei, tip_wei = raise_fees(sent.last, fee_wei_max=caps["fee_wei_max"])
            log.info("%s waits too long; offered again at %d gwei", sent.purpose, fee_wei // GWEI)
            sent = sent.add_attempt(await self._sign(sent, fee_wei, tip_wei))
            self._keep(tuple(sent if each.nonce == sent.nonce else each for each in self.pending))
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
        """A call of a contract; ChainRefused where it would fail."""
        data = self._chain.encode(contract, function, *values)
        return await self.send_data(purpose, checksum_address(contract.address), data)

    async def send_data(self, purpose: str, to: str, data: str) -> PendingTransaction:
        """Written down, then sent. `to` is empty for a new contract."""
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
        await self._check_money(purpose, gas * (head.base_fee_wei + tip_wei))
        async with self._turn():
            nonce = next_nonce(self.pending, await self._chain.nonce(self.node))
            draft = PendingTransaction(nonce, purpose, to, data, gas, ())
            sent = draft.add_attempt(await self._sign(draft, fee_wei, min(tip_wei, fee_wei)))
            self._keep((*self.pending, sent))
            await self._chain.send_raw(sent.last.raw)
        return sent

    async def _check_money(self, purpose: str, cost_wei: int) -> None:
        """Before it is written down: what cannot be paid for would be sent whenever it can."""
        held_wei = await self._chain.balance_wei(self.node)
        if held_wei < cost_wei:
            raise ChainUnavailable(
                f"{self.node} holds {held_wei} wei on the chain, and the gas of {purpose} may cost {cost_wei}:"
                " send it some"
            )

    async def send_and_wait(self, purpose: str, contract: Contract, function: str, *values: Any) -> MinedTransaction:
        """Send, and wait until it is in a block; ChainRefused where it failed there."""
        for left in reversed(range(SENDS_MAX)):
            sent = await self.send(purpose, contract, function, values)
            try:
                return await self._finish(sent)
            except NonceTaken as error:
                if not left:
                    raise
                log.info("%s: sent again", error)
        raise AssertionError("the last try returns or raises")

    async def wait_for(self, purpose: str) -> MinedTransaction:
        """Wait for what this process, or one before it, has sent for a purpose."""
        return await self._finish(next(sent for sent in self.pending if sent.purpose == purpose))

    async def _finish(self, sent: PendingTransaction) -> MinedTransaction:
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
            raise ContractReverted(f"{sent.purpose} was refused in block {mined.block}")
        return mined

    async def _explain_loss(self, sent: PendingTransaction) -> ChainUnavailable:
        """Of one that is in no block, and not in the book any more."""
        if await self._chain.nonce(self.node) > sent.nonce:
            return NonceTaken(f"another transaction of {self.node} took the place of {sent.purpose}")
        return ChainUnavailable(f"{sent.purpose} has not come into a block: the chain has lost a transaction before it")

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
    async def _turn(self) -> AsyncIterator[None]:
        """The book is ours alone until it is closed again, as whoever had it before has left it."""
        if self._path is None:
            yield
            return
        async with hold_file_lock(
            self._path.with_suffix(".lock"), self._clock, wait_ms=LOCK_POLL_MS, tries=LOCK_POLLS_MAX
        ):
            self.pending = read_pending(self._path)
            yield

    def _keep(self, book: tuple[PendingTransaction, ...]) -> None:
        if book != self.pending and self._path is not None:
            write_atomic(self._path, json.dumps([asdict(sent) for sent in book]).encode(), mode=0o600)
        self.pending = book


def read_pending(path: Path) -> tuple[PendingTransaction, ...]:
    """What was written down; LocalError where it cannot be read, since a nonce might be used twice."""
    try:
        rows = json.loads(path.read_bytes())
        return tuple(
            PendingTransaction(**{**row, "tries": tuple(SignedAttempt(**each) for each in row["tries"])})
            for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LocalError(
            f"{path} cannot be read ({error}); if no transaction of this key is on its way, remove it"
        ) from None
