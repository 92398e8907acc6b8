"""Parts for tests of the explorer: worlds whose log names a key, their mirrors, and indexes made from them."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledger_world import DAY_MS, NETWORK, World
from log_rig import LOG_KEY, VERIFIER
from mirrors import write_mirror

from prime_explorer.folding import Folding
from prime_explorer.following import Follower
from prime_explorer.index import Index
from prime_explorer.reading import Db
from prime_explorer.schema import TABLES
from prime_protocol import entries as e
from prime_protocol.ledger import Ledger
from prime_protocol.merkle import Frontier, leaf_hash
from prime_protocol.treehead import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_protocol.typed_data import EMBEDDED, Domain


class KeyedWorld(World):
    """Its first entry names the key that signs its heads."""

    def create_network(self, unbonding_ms: int = 7 * DAY_MS, domain: Domain = EMBEDDED) -> None:
        at = {"chain_id": domain.chain_id, "contract": domain.contract}
        self.coordinate(e.NetworkCreated(log_key=str(VERIFIER), **at, unbonding_ms=unbonding_ms))

    @classmethod
    def begun(cls, *, workers: Sequence[str] = ("ann", "bob"), validators: int = 9, **terms: Any) -> "KeyedWorld":
        world = cls._start(workers, validators, terms)
        assert isinstance(world, KeyedWorld)
        return world


def fold(leaves: Sequence[bytes], batch: int = 1_000) -> tuple[Db, Folding]:
    """An index in memory."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    folding = Folding(Ledger(NETWORK))
    for start in range(0, len(leaves), batch):
        for leaf in leaves[start : start + batch]:
            folding.take(leaf)
        for statement, values in folding.drain():
            connection.execute(statement, values)
    facts = {"size": len(leaves), "at_ms": folding.state.at_ms, "nodes": len(folding.state.nodes)}
    connection.executemany("INSERT INTO meta VALUES (?,?)", facts.items())
    return Db(connection), folding


def signed_head(leaves: Sequence[bytes]) -> bytes:
    root = Frontier().append_many(leaf_hash(leaf) for leaf in leaves).root()
    return sign_tree_head(TreeHead(ORIGIN_PREFIX + NETWORK, len(leaves), root), LOG_KEY)


def mirror(folder: Path, leaves: Sequence[bytes]) -> Path:
    write_mirror(folder, leaves, signed_head(leaves))
    return folder


def follower(folder: Path, made_by: str = "test") -> tuple[Follower, Index]:
    """Of the mirror in `log`, with its index beside it."""
    index = Index.open(folder / "index.db", made_by)
    return Follower(folder / "log", index, snapshot=folder / "state.snapshot", key=None), index
