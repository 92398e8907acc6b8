"""A key that pays for transactions: writes each down before it is sent, and looks after it until it counts for good."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.signing import WalletKey, checksum_address
from prime_runtime.chain.caps import GasConfig
from prime_runtime.chain.client import Block, Chain, Contract, Mined, sign
from prime_runtime.chain.errors import ChainAway, ChainRefused, NotAllowed
from prime_runtime.chain.nonces import Sent, Sight, Step, Try, drop_stranded, next_nonce, next_step, raise_fees
from prime_runtime.clock import Clock
from prime_runtime.mirror import write_whole

log = logging.getLogger(__name__)

GWEI = 10**9
LOOK_MS = 250
"""Between two looks for a transaction that somebody waits for."""
GAS_ROOM_PERCENT = 120
"""Of the estimate: the state may change a little before the transaction is in a block."""


class Wallet:
    """One key on one chain. Two processes must not use the same key at once."""

    def __init__(
        self,
        chain: Chain,
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
        self.book: tuple[Sent, ...] = read_book(book) if book else ()
        self._is_fresh = True
        self._chain_id = 0
        self.last_mined: tuple[str, Mined] | None = None
        """Purpose and fate of what was last seen in a block."""

    @property
    def node(self) -> NodeId:
        return self._key.node

    @property
    def is_busy(self) -> bool:
        """Something was sent and is in no block yet."""
        return any(sent.mined_in is None for sent in self.book)

    async def tend(self, head: Block) -> None:
        """Look after everything in the book."""
        chain_nonce = await self._chain.nonce(self.node)
        kept: list[Sent] = []
        for sent in drop_stranded(self.book, chain_nonce):
            seen = await self._tend(sent, head, chain_nonce)
            if seen is not None:
                kept.append(seen)
        self._is_fresh = False
        self._keep(tuple(kept))

    async def _tend(self, sent: Sent, head: Block, chain_nonce: int) -> Sent | None:
        """The transaction as it stands now; None where it needs no more looking after."""
        mined = await self._find(sent)
        sight = Sight(mined.block if mined else None, head.number, chain_nonce, self._clock.now_ms())
        caps = {"patience_ms": self._gas.patience_ms, "fee_wei_max": self._gas.fee_gwei_max * GWEI}
        step = next_step(sent, sight, confirmations=self._confirmations, **caps)
        if mined is not None and sent.mined_in is None:
            self.last_mined = (sent.purpose, mined)
            log.info("%s is in block %d%s", sent.purpose, mined.block, "" if mined.is_good else ", and was refused")
        if step is Step.FORGET:
            if mined is None:
                log.warning("another transaction has taken nonce %d; %s is decided anew", sent.nonce, sent.purpose)
            return None
        if step is Step.RAISE:
            fee_wei, tip_wei = raise_fees(sent.last, fee_wei_max=caps["fee_wei_max"])
            log.info("%s waits too long; offered again at %d gwei", sent.purpose, fee_wei // GWEI)
            sent = sent.tried(await self._sign(sent, fee_wei, tip_wei))
            self._keep(tuple(sent if each.nonce == sent.nonce else each for each in self.book))
        if mined is None and (step is not Step.WAIT or self._is_fresh):
            await self._chain.send_raw(sent.last.raw)
        return replace(sent, mined_in=sight.mined_in)

    async def _find(self, sent: Sent) -> Mined | None:
        for attempt in reversed(sent.tries):
            mined = await self._chain.mined(attempt.hash)
            if mined is not None:
                return mined
        return None

    async def send(self, purpose: str, contract: Contract, function: str, values: Sequence[Any]) -> None:
        """A call of a contract; ChainRefused where it would fail."""
        data = self._chain.encode(contract, function, *values)
        await self.send_data(purpose, checksum_address(contract.address), data)

    async def send_data(self, purpose: str, to: str, data: str) -> None:
        """Written down, then sent. `to` is empty for a new contract."""
        estimate = await self._chain.estimate_gas(self.node, to, data)
        gas = min(self._gas.gas_max, estimate * GAS_ROOM_PERCENT // 100)
        if estimate > self._gas.gas_max:
            raise NotAllowed(f"{purpose} needs {estimate} gas, the cap is {self._gas.gas_max}: see gas_max")
        head, tip_wei = await self._chain.newest(), await self._chain.tip_wei()
        cap_wei = self._gas.fee_gwei_max * GWEI
        if head.base_fee_wei > cap_wei:
            raise ChainAway(f"the chain asks {head.base_fee_wei // GWEI} gwei, the cap is {self._gas.fee_gwei_max}")
        fee_wei = min(cap_wei, 2 * head.base_fee_wei + tip_wei)
        nonce = next_nonce(self.book, await self._chain.nonce(self.node))
        draft = Sent(nonce, purpose, to, data, gas, ())
        sent = draft.tried(await self._sign(draft, fee_wei, min(tip_wei, fee_wei)))
        self._keep((*self.book, sent))
        await self._chain.send_raw(sent.last.raw)

    async def do(self, purpose: str, contract: Contract, function: str, *values: Any) -> Mined:
        """Send, and wait until it is in a block; ChainRefused where it failed there."""
        await self.send(purpose, contract, function, values)
        return await self.finish(purpose)

    async def finish(self, purpose: str) -> Mined:
        """Wait until everything that was sent is in a block."""
        while self.is_busy:
            await self.tend(await self._chain.newest())
            if self.is_busy:
                await self._clock.sleep_ms(LOOK_MS)
        if self.last_mined is None or self.last_mined[0] != purpose:
            raise ChainAway(f"{purpose} has not come into a block: another transaction of this key took its place")
        mined = self.last_mined[1]
        if not mined.is_good:
            raise ChainRefused(f"{purpose} was refused in block {mined.block}")
        return mined

    async def _sign(self, sent: Sent, fee_wei: int, tip_wei: int) -> Try:
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
        name, raw = sign(self._key, {**fields, "to": sent.to} if sent.to else fields)
        return Try(name, raw, fee_wei, tip_wei, self._clock.now_ms())

    def _keep(self, book: tuple[Sent, ...]) -> None:
        if book != self.book and self._path is not None:
            write_whole(self._path, json.dumps([asdict(sent) for sent in book]).encode(), mode=0o600)
        self.book = book


def read_book(path: Path) -> tuple[Sent, ...]:
    """What was written down; LocalError where it cannot be read, since a nonce might be used twice."""
    try:
        rows = json.loads(path.read_bytes())
        return tuple(Sent(**{**row, "tries": tuple(Try(**each) for each in row["tries"])}) for row in rows)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LocalError(
            f"{path} cannot be read ({error}); if no transaction of this key is on its way, remove it"
        ) from None
