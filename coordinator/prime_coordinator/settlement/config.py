"""The section [settlement]: where value is held, and how often the chain is updated."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.wire.ids import NodeId, parse_address
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import check_parsed
from prime_runtime.settings.schema import Between, ConfigError, settings_class

DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000


class SettlementKind(StrEnum):
    """Where value is held."""

    EMBEDDED = "embedded"
    EVM = "evm"


@settings_class
class SettlementConfig:
    """The section [settlement]. The kind is fixed when the network is created."""

    kind: SettlementKind = SettlementKind.EMBEDDED
    """embedded: value exists in the log alone. evm: contracts on a chain hold stake and rewards."""
    rpc: str = ""
    """evm: URL of a JSON-RPC node of the chain: http://host:port."""
    rpc_bearer: Secret | None = None
    """evm: bearer token for the JSON-RPC node."""
    court: str = ""
    """evm: address of the court, as `chain deploy` prints it; it names the other contracts."""
    start_block: Annotated[int, Between(0, 2**53)] = 0
    """evm: block of the deployment; events are read from here on."""
    confirmations: Annotated[int, Between(0, 10_000)] = 12
    """evm: confirmations before a block counts."""
    poll_ms: Annotated[int, Between(50, 600_000)] = 4_000
    """evm: time between two polls of the chain."""
    epoch_ms: Annotated[int, Between(1_000, 7 * DAY_MS)] = HOUR_MS
    """evm: time between two anchored heads, and between two payout roots of a run."""
    slash_window_ms: Annotated[int, Between(1_000, 90 * DAY_MS)] = 7 * DAY_MS
    """evm: how long after its anchor a slash can be proposed to the court; slashes_per_day limits each day of it."""
    judge_age_ms: Annotated[int, Between(0, 90 * DAY_MS)] = 0
    """evm: how long before the anchor a validator must be bound in the vault for its verdict to count in court."""
    payout_delay_ms: Annotated[int, Between(0, 90 * DAY_MS)] = HOUR_MS
    """evm: delay from a payout root to its first claim: the time to prove a fork of the log."""
    appeal_bond_nano: Annotated[int, Between(0, AMOUNT_NANO_MAX)] = 10**9
    """evm: bond of an appeal, lost if it fails."""
    slashes_per_day: Annotated[int, Between(1, 10**6)] = 100
    """evm: most full slashes of one run in a day."""
    epoch_steps_max: Annotated[int, Between(1, 10**6)] = 1_000
    """evm: most steps whose budget one epoch may pay."""
    gas: GasConfig = field(default_factory=GasConfig)

    def __post_init__(self) -> None:
        if self.kind is SettlementKind.EMBEDDED:
            return
        if not self.rpc.startswith(("http://", "https://")):
            raise ConfigError("settlement.rpc must be the URL of a JSON-RPC node: http://host:port")
        if self.court:
            check_parsed(self, {"court": parse_address})

    @property
    def is_evm(self) -> bool:
        return self.kind is SettlementKind.EVM

    @property
    def court_address(self) -> NodeId:
        return parse_address(self.court)
