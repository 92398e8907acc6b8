"""A desk over a World: the real decisions, a real SQLite log and mirror in a folder, and a clock that tests move."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledger_world import NETWORK, World
from mirrors import write_mirror

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.core import Core
from prime_coordinator.home import Home
from prime_coordinator.settlement.embedded import EmbeddedSettlement
from prime_coordinator.store import open_log_store
from prime_protocol.catalogue import make_card
from prime_protocol.treehead import ORIGIN_PREFIX, TreeHead, sign_tree_head

LOG_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)


class SmallDesk:
    """What routes see of a coordinator."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.config = CoordinatorConfig(folder=folder, network=NETWORK)
        self.core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
        self.log = open_log_store(f"sqlite:///{folder / 'log.db'}")
        self.settlement = EmbeddedSettlement(NETWORK, world.state, faucet_nano=0, nodes_max=0)
        self.commits = 0

    @classmethod
    async def open(cls, world: World, folder: Path) -> "SmallDesk":
        """With everything that the world has written on disk."""
        desk = cls(world, folder)
        await desk.save()
        return desk

    def now_ms(self) -> int:
        return self.world.now_ms

    async def commit(self) -> None:
        self.commits += 1
        self.world.leaves += self.core.scribe.drain()
        await self.save()

    async def save(self) -> None:
        """To the database and to the mirror, under a new signed head."""
        size = await self.log.size()
        fresh = self.world.leaves[size:]
        if fresh:
            await self.log.append(size, fresh, [make_card(leaf) for leaf in fresh])
        head = TreeHead(ORIGIN_PREFIX + NETWORK, len(self.world.leaves), self.world.state.frontier.root())
        write_mirror(Home(self.config.folder).mirror, self.world.leaves, sign_tree_head(head, LOG_KEY))
        self.core.head_size = head.size
