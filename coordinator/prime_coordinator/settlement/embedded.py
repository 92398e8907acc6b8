"""Embedded settlement: balances live in the log alone. On a devnet a faucet makes value, elsewhere the operator."""

import asyncio
from hashlib import sha256
from typing import Any

from prime_coordinator.settlement import Order
from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.entries import Appealed, Deposited
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.state import State


class EmbeddedSettlement:
    """The faucet, bounded in nodes; it knows from the log whom it has given to, so a restart changes nothing."""

    def __init__(self, network: NetworkId, state: State, *, faucet_nano: int, nodes_max: int) -> None:
        self._network = network
        self._faucet_nano = faucet_nano
        self._left = nodes_max - sum(self.reference(node) in state.references for node in state.nodes)

    def reference(self, node: NodeId) -> Digest:
        """Names the one gift that a node can get."""
        return Digest(sha256(b"prime-swarm faucet\n" + self._network.encode() + b"\n" + node).digest())

    def welcome(self, state: State, node: NodeId) -> list[Deposited]:
        reference = self.reference(node)
        room_nano = AMOUNT_NANO_MAX - state.books.deposited_nano
        if not 0 < self._faucet_nano <= room_nano or self._left <= 0 or reference in state.references:
            return []
        self._left -= 1
        return [Deposited(account=node, amount_nano=self._faucet_nano, reference=reference)]

    async def collect(self, state: State) -> list[Order]:
        """Nothing comes from outside: there is no outside."""
        return []

    def appeals(self, state: State) -> list[tuple[RunId, Appealed]]:
        """All of them are in the log."""
        return []

    def is_appealable(self, submission: Digest) -> bool:
        """Nowhere but in the log."""
        return False

    async def run(self, books: Any) -> None:
        """Nothing is to be done, for ever."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is nothing to close."""

    def hasten(self) -> None:
        """There is nowhere to bring them."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}
