"""The node's door for its own machine: where it listens, and whether the page and the metrics are shown.

What a door is, and who is let in, is in prime_runtime.door.
"""

from collections.abc import Mapping

from prime_node.config import PageConfig
from prime_runtime.door import Door, Order, Page, Report

PAGE_PORT = 8470


class LocalServer:
    """One running door."""

    def __init__(
        self, report: Report, orders: Mapping[str, Order], page: PageConfig, pages: Mapping[str, Page] | None = None
    ) -> None:
        self._config = page
        self._door = Door(report, orders, (pages or {}) if page.enabled else {})

    @property
    def token(self) -> str:
        return self._door.token

    async def start(self) -> str:
        """Its URL. LocalError: the port that was asked for is taken."""
        config = self._config
        port = config.port or (PAGE_PORT if config.enabled else 0)
        return await self._door.open(port, advice="choose another --page-port", is_firm=bool(config.port))

    async def close(self) -> None:
        await self._door.close()
