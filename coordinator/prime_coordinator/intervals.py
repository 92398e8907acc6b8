"""The section [intervals]: how often things happen. Apart from config.py, because the pure core needs it.

The defaults suit nodes all over the world; a network in one building, or on one machine, may go faster.
"""

from typing import Annotated

from prime_coordinator.constants import HEAD_MS_MIN, TICK_MS
from prime_protocol.constants import HEARTBEAT_MS
from prime_runtime.settings.schema import Between, settings_class


@settings_class
class IntervalsConfig:
    """The section [intervals]."""

    heartbeat_ms: Annotated[int, Between(100, HEARTBEAT_MS)] = HEARTBEAT_MS
    """Time between two heartbeats of a node: how soon it learns of new steps and audits."""
    head_ms: Annotated[int, Between(50, 60_000)] = HEAD_MS_MIN
    """Least time between two tree heads that beacons and audits are drawn from."""
    tick_ms: Annotated[int, Between(20, 1_000)] = TICK_MS
    """Time between two checks for what is due."""
