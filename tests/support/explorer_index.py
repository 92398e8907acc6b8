"""Parts for tests of the explorer: worlds whose log names a key, their mirrors, and indexes made from them."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from prime_explorer.index.fold import LogFold
from prime_explorer.index.follower import LogFollower
from prime_explorer.index.schema import TABLES
from prime_explorer.index.store import IndexWriter, ReadTransaction
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from support.ledger_network import NETWORK
from support.log_store import LOG_KEY
from support.mirrors import write_mirror


def fold(leaves: Sequence[bytes], batch: int = 1_000) -> tuple[ReadTransaction, LogFold]:
    """An index in memory."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    folding = LogFold(Ledger(NETWORK))
    for start in range(0, len(leaves), batch):
        for leaf in leaves[start : start + batch]:
            folding.apply_leaf(leaf)
        for statement, values in folding.take_writes():
            connection.execute(statement, values)
    facts = {"size": len(leaves), "at_ms": folding.state.at_ms, "nodes": len(folding.state.nodes)}
    connection.executemany("INSERT INTO meta VALUES (?,?)", facts.items())
    return ReadTransaction(connection), folding


def signed_head(leaves: Sequence[bytes]) -> bytes:
    root = Frontier().append_many(compute_leaf_hash(leaf) for leaf in leaves).root()
    return sign_tree_head(TreeHead(ORIGIN_PREFIX + NETWORK, len(leaves), root), LOG_KEY)


def mirror(folder: Path, leaves: Sequence[bytes]) -> Path:
    write_mirror(folder, leaves, signed_head(leaves))
    return folder


def follower(folder: Path, made_by: str = "test") -> tuple[LogFollower, IndexWriter]:
    """Of the mirror in `log`, with its index beside it."""
    index = IndexWriter.open(folder / "index.db", made_by)
    return LogFollower(folder / "log", index, snapshot=folder / "state.snapshot", key=None), index
