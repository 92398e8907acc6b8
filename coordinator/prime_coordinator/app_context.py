"""The interface through which routes see the running coordinator. app.py implements it; no rules belong here."""

from typing import Protocol

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.log.store import LogStore
from prime_coordinator.settlement.interface import Settlement


class AppContext(Protocol):
    """The decisions, the settings and the log on disk of a running coordinator."""

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
        """Return when every entry that `core` appended is on disk; only then may a caller be answered."""
        ...
