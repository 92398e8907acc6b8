"""Settlement: how value enters the ledger and leaves it. The interface, and its embedded implementation.

The ledger itself is in the log, whatever settles it. A deposit counts once by its reference, so reporting one twice
does no harm. Embedded settlement keeps balances in the log alone; value comes from a faucet or from the operator. The
chain's code is imported only if there is a chain.
"""

import asyncio
from hashlib import sha256
from typing import Any, Protocol

from prime_coordinator.config import CoordinatorConfig
from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Appealed, Deposited, NodeStatusSet
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN
from prime_runtime.clock import Clock

SettlementEntry = Deposited | NodeStatusSet
"""Entries that settlement asks the coordinator to append."""


class Settlement(Protocol):
    """What app.py needs of a settlement."""

    def get_welcome_deposits(self, state: LedgerState, node: NodeId) -> list[Deposited]:
        """Deposits for a node that has just registered."""
        ...

    async def collect(self, state: LedgerState) -> list[SettlementEntry]:
        """What happened outside and is not in the ledger yet. Never waits for the chain."""
        ...

    def appeals(self, state: LedgerState) -> list[tuple[RunId, Appealed]]:
        """Appeals that were made on the chain and are not in the log yet."""
        ...

    def is_appealable(self, submission: Digest) -> bool:
        """Whether an appeal may still come from the chain: until then the log must not end the slash."""
        ...

    async def run(self, ledger: Any) -> None:
        """Runs as long as the coordinator. `ledger` is a LedgerView."""
        ...

    async def close(self) -> None:
        """Release everything; the coordinator ends."""
        ...

    def request_anchor(self) -> None:
        """Anchor the log's head as soon as possible, if there is a chain."""
        ...

    def describe(self) -> dict[str, Any]:
        """Where value is held, and how far the chain has been followed."""
        ...


class EmbeddedSettlement:
    """The faucet, limited to a number of nodes. The log says which nodes got it, so a restart changes nothing."""

    def __init__(self, network: NetworkId, state: LedgerState, *, faucet_nano: int, nodes_max: int) -> None:
        self._network = network
        self._faucet_nano = faucet_nano
        self._left = nodes_max - sum(self.reference(node) in state.references for node in state.nodes)

    def reference(self, node: NodeId) -> Digest:
        """The reference of the one faucet deposit that a node can get."""
        return Digest(sha256(b"prime-swarm faucet\n" + self._network.encode() + b"\n" + node).digest())

    def get_welcome_deposits(self, state: LedgerState, node: NodeId) -> list[Deposited]:
        reference = self.reference(node)
        free_nano = AMOUNT_NANO_MAX - state.funds.deposited_nano
        if not 0 < self._faucet_nano <= free_nano or self._left <= 0 or reference in state.references:
            return []
        self._left -= 1
        return [Deposited(account=node, amount_nano=self._faucet_nano, reference=reference)]

    async def collect(self, state: LedgerState) -> list[SettlementEntry]:
        """Nothing comes from outside."""
        return []

    def appeals(self, state: LedgerState) -> list[tuple[RunId, Appealed]]:
        """All appeals are in the log."""
        return []

    def is_appealable(self, submission: Digest) -> bool:
        """Appeals are made in the log only."""
        return False

    async def run(self, ledger: Any) -> None:
        """There is nothing to do."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is nothing to close."""

    def request_anchor(self) -> None:
        """There is no chain to anchor on."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}


def open_settlement(config: CoordinatorConfig, state: LedgerState, key: WalletKey, clock: Clock) -> Settlement:
    """LocalError if the settings differ from those that the network was created with."""
    if config.settlement.is_evm != (state.domain != EMBEDDED_DOMAIN):
        created = "embedded" if state.domain == EMBEDDED_DOMAIN else f"evm, with the court {state.domain.contract}"
        raise LocalError(f"the network was created with settlement {created}; settlement.kind says otherwise")
    if config.settlement.is_evm:
        from prime_coordinator.settlement.evm import open_evm

        return open_evm(config.settlement, key, config.folder, clock)
    faucet = config.faucet
    return EmbeddedSettlement(config.network_id, state, faucet_nano=faucet.amount_nano, nodes_max=faucet.nodes_max)
