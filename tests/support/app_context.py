"""A context over a World: the real decisions, a real SQLite log and mirror in a folder, and a clock that tests move."""

from pathlib import Path

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.log.store import open_log_store
from prime_coordinator.settlement.interface import EmbeddedSettlement
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from support.ledger_network import NETWORK, World
from support.log_store import LOG_KEY
from support.mirrors import write_mirror


class FakeAppContext:
    """What routes see of a coordinator."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.config = CoordinatorConfig(folder=folder, network=NETWORK)
        self.core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
        self.log = open_log_store(f"sqlite:///{folder / 'log.db'}")
        self.settlement = EmbeddedSettlement(NETWORK, world.state, faucet_nano=0, nodes_max=0)
        self.commits = 0

    @classmethod
    async def open(cls, world: World, folder: Path) -> "FakeAppContext":
        """With everything that the world has written on disk."""
        context = cls(world, folder)
        await context.save()
        return context

    def now_ms(self) -> int:
        return self.world.now_ms

    async def commit(self) -> None:
        self.commits += 1
        self.world.leaves += self.core.entry_writer.drain()
        await self.save()

    async def save(self) -> None:
        """To the database and to the mirror, under a new signed head."""
        size = await self.log.size()
        fresh = self.world.leaves[size:]
        if fresh:
            await self.log.append(size, fresh, [compute_entry_keys(leaf) for leaf in fresh])
        head = TreeHead(ORIGIN_PREFIX + NETWORK, len(self.world.leaves), self.world.state.frontier.root())
        write_mirror(CoordinatorHome(self.config.folder).mirror, self.world.leaves, sign_tree_head(head, LOG_KEY))
        self.core.head_size = head.size
