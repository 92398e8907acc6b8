"""Which settlement a coordinator has, by its settings. What a chain needs is imported only where there is one."""

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.settlement import Settlement
from prime_coordinator.settlement.embedded import EmbeddedSettlement
from prime_protocol.errors import LocalError
from prime_protocol.signing import WalletKey
from prime_protocol.state import State
from prime_protocol.typed_data import EMBEDDED
from prime_runtime.clock import Clock


def open_settlement(config: CoordinatorConfig, state: State, key: WalletKey, clock: Clock) -> Settlement:
    """LocalError where the settings are not those that the network was created with."""
    if config.settlement.is_evm != (state.domain != EMBEDDED):
        created = "embedded" if state.domain == EMBEDDED else f"evm, with the court {state.domain.contract}"
        raise LocalError(f"the network was created with settlement {created}; settlement.kind says otherwise")
    if config.settlement.is_evm:
        from prime_coordinator.settlement.evm import open_evm

        return open_evm(config.settlement, key, config.folder, clock)
    faucet = config.faucet
    return EmbeddedSettlement(config.network_id, state, faucet_nano=faucet.amount_nano, nodes_max=faucet.nodes_max)
