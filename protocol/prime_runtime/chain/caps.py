"""What transactions may cost, as an operator sets it."""

from dataclasses import dataclass
from typing import Annotated

from prime_runtime.settings import Between


@dataclass(frozen=True, kw_only=True)
class GasConfig:
    """The section [settlement.gas]: what a transaction may cost, and how long it may wait."""

    fee_gwei_max: Annotated[int, Between(1, 10**6)] = 200
    """Most to be paid for a unit of gas; while the chain asks for more, settlement waits."""
    gas_max: Annotated[int, Between(21_000, 30_000_000)] = 12_000_000
    """Most gas of one transaction."""
    patience_ms: Annotated[int, Between(1_000, 86_400_000)] = 90_000
    """How long a transaction may wait for its block before it is offered again with higher fees."""
