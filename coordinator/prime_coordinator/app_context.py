"""What routes and timers see of the running coordinator.

The server is the one implementation that waits; the tests bring a small one of their own. Rules do not belong here.
"""

from typing import Protocol

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.log.store import LogStore
from prime_coordinator.settlement.interface import Settlement


class AppContext(Protocol):
    """The coordinator at work: the decisions, its settings and the log on disk."""

    @property
    def core(self) -> Core: ...

    @property
    def config(self) -> CoordinatorConfig: ...

    @property
    def log(self) -> LogStore: ...

    @property
    def settlement(self) -> Settlement: ...

    def now_ms(self) -> int: ...

    async def commit(self) -> None:
        """Return when everything that `core` has written so far is on disk; only then may a caller be answered."""
        ...
