"""The section [settlement]: where value is kept, and how often the books are brought there."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.wire.ids import NodeId
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import check_parsed
from prime_runtime.settings.schema import Between, ConfigError, settings_class

DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000


class SettlementKind(StrEnum):
    """Who holds the value."""

    EMBEDDED = "embedded"
    EVM = "evm"


@settings_class
class SettlementConfig:
    """The section [settlement]: who holds stake and pay. Fixed when the network is created."""

    kind: SettlementKind = SettlementKind.EMBEDDED
    """embedded: value lives in the log alone. evm: stake and pay are held by contracts on a chain."""
    rpc: str = ""
    """evm: URL of a node of the chain: http://host:port."""
    rpc_bearer: Secret | None = None
    """evm: token that the node of the chain asks for, sent as a header."""
    court: str = ""
    """evm: address of the court, as `chain deploy` prints it; the other contracts follow from it."""
    start_block: Annotated[int, Between(0, 2**53)] = 0
    """evm: block of the deployment, where following begins."""
    confirmations: Annotated[int, Between(0, 10_000)] = 12
    """evm: blocks on top of a block before what it says is believed."""
    poll_ms: Annotated[int, Between(50, 600_000)] = 4_000
    """evm: time between two looks at the chain."""
    epoch_ms: Annotated[int, Between(1_000, 7 * DAY_MS)] = HOUR_MS
    """evm: time between two anchored heads, and between two payout roots of a run."""
    slash_window_ms: Annotated[int, Between(1_000, 90 * DAY_MS)] = 7 * DAY_MS
    """evm: how long after its anchor a slash can be brought before the court: so many days of slashes_per_day each."""
    judge_age_ms: Annotated[int, Between(0, 90 * DAY_MS)] = 0
    """evm: how long before the anchor a validator must have been bound in the vault for its verdict to count there."""
    payout_delay_ms: Annotated[int, Between(0, 90 * DAY_MS)] = HOUR_MS
    """evm: from a payout root to its first claim: the time to show that the log told two histories."""
    appeal_bond_nano: Annotated[int, Between(0, AMOUNT_NANO_MAX)] = 10**9
    """evm: what an appeal costs if it fails."""
    slashes_per_day: Annotated[int, Between(1, 10**6)] = 100
    """evm: most whole slashes of one run in a day."""
    epoch_steps_max: Annotated[int, Between(1, 10**6)] = 1_000
    """evm: most steps whose budget one epoch may promise."""
    gas: GasConfig = field(default_factory=GasConfig)

    def __post_init__(self) -> None:
        if self.kind is SettlementKind.EMBEDDED:
            return
        if not self.rpc.startswith(("http://", "https://")):
            raise ConfigError("settlement.rpc must be the URL of a node of the chain: http://host:port")
        if self.court:
            check_parsed(self, {"court": NodeId.parse})

    @property
    def is_evm(self) -> bool:
        return self.kind is SettlementKind.EVM

    @property
    def court_address(self) -> NodeId:
        return NodeId.parse(self.court)
