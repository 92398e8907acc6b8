"""Settlement: how value comes into the books and leaves them. One interface; what is outside is an implementation's.

The books themselves are in the log, whatever settles them. A deposit counts once by its reference, so telling one twice
is no harm.

Embedded settlement: balances live in the log alone. On a devnet a faucet makes value, elsewhere the operator.

Which settlement a coordinator has, by its settings. What a chain needs is imported only where there is one.
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
"""What settlement has the coordinator write."""


class Settlement(Protocol):
    """What the server asks of it."""

    def get_welcome_deposits(self, state: LedgerState, node: NodeId) -> list[Deposited]:
        """What a node that has just registered is to be given."""
        ...

    async def collect(self, state: LedgerState) -> list[SettlementEntry]:
        """What happened outside and does not stand in the books yet. It never waits for the outside."""
        ...

    def appeals(self, state: LedgerState) -> list[tuple[RunId, Appealed]]:
        """Appeals that were made outside and that the log has not heard of."""
        ...

    def is_appealable(self, submission: Digest) -> bool:
        """Whether an appeal against a slash may still come from outside: the log must not end it before."""
        ...

    async def run(self, books: Any) -> None:
        """As long as the coordinator: whatever has to be done outside. `books` is a ledger_view.Books."""
        ...

    async def close(self) -> None:
        """The coordinator ends."""
        ...

    def request_anchor(self) -> None:
        """Bring the books outside as soon as can be, if they are brought there at all."""
        ...

    def describe(self) -> dict[str, Any]:
        """For people and their programs: where value is kept, and how far the books have been brought there."""
        ...


class EmbeddedSettlement:
    """The faucet, bounded in nodes; it knows from the log whom it has given to, so a restart changes nothing."""

    def __init__(self, network: NetworkId, state: LedgerState, *, faucet_nano: int, nodes_max: int) -> None:
        self._network = network
        self._faucet_nano = faucet_nano
        self._left = nodes_max - sum(self.reference(node) in state.references for node in state.nodes)

    def reference(self, node: NodeId) -> Digest:
        """Names the one gift that a node can get."""
        return Digest(sha256(b"prime-swarm faucet\n" + self._network.encode() + b"\n" + node).digest())

    def get_welcome_deposits(self, state: LedgerState, node: NodeId) -> list[Deposited]:
        reference = self.reference(node)
        room_nano = AMOUNT_NANO_MAX - state.funds.deposited_nano
        if not 0 < self._faucet_nano <= room_nano or self._left <= 0 or reference in state.references:
            return []
        self._left -= 1
        return [Deposited(account=node, amount_nano=self._faucet_nano, reference=reference)]

    async def collect(self, state: LedgerState) -> list[SettlementEntry]:
        """Nothing comes from outside: there is no outside."""
        return []

    def appeals(self, state: LedgerState) -> list[tuple[RunId, Appealed]]:
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

    def request_anchor(self) -> None:
        """There is nowhere to bring them."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}


def open_settlement(config: CoordinatorConfig, state: LedgerState, key: WalletKey, clock: Clock) -> Settlement:
    """LocalError where the settings are not those that the network was created with."""
    if config.settlement.is_evm != (state.domain != EMBEDDED_DOMAIN):
        created = "embedded" if state.domain == EMBEDDED_DOMAIN else f"evm, with the court {state.domain.contract}"
        raise LocalError(f"the network was created with settlement {created}; settlement.kind says otherwise")
    if config.settlement.is_evm:
        from prime_coordinator.settlement.evm import open_evm

        return open_evm(config.settlement, key, config.folder, clock)
    faucet = config.faucet
    return EmbeddedSettlement(config.network_id, state, faucet_nano=faucet.amount_nano, nodes_max=faucet.nodes_max)
