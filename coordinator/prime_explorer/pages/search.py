"""One box for everything: addresses, names, submissions, checkpoints, files, entries, runs, by their beginnings."""

import re
from dataclasses import dataclass

from prime_explorer.constants import FOUND_MAX
from prime_explorer.pages.nodes import NodeRow, node_row, read_names
from prime_explorer.reading import Db, plain
from prime_protocol.constants import ADDRESS_BYTES, DIGEST_BYTES

HEX = re.compile(r"(?:0x)?([0-9a-f]{4,64})")
NUMBER = re.compile(r"#?([0-9]{1,15})")
NAME = re.compile(r"[a-z0-9-]{2,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Something that was found."""

    kind: str
    title: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """What was found."""

    query: str
    nodes: tuple[NodeRow, ...]
    hits: tuple[Hit, ...]

    @property
    def only(self) -> str | None:
        """Where to go at once: the one thing that was found."""
        paths = [f"/nodes/{node.node}" for node in self.nodes] + [hit.path for hit in self.hits]
        return paths[0] if len(paths) == 1 else None


def search(db: Db, query: str) -> SearchView:
    text = query.strip().lower()
    nodes: dict[str, NodeRow] = {}
    hits: list[Hit] = []
    if match := HEX.fullmatch(text):
        nodes |= _find_addresses(db, match[1])
        hits += _find_digests(db, match[1])
    if match := NUMBER.fullmatch(text):
        hits += _find_entry(db, int(match[1]))
    if NAME.fullmatch(text):
        nodes |= {node.node: node for node in read_names(db, text, FOUND_MAX)}
        hits += _find_runs(db, text)
    return SearchView(query=query, nodes=tuple(nodes.values())[:FOUND_MAX], hits=tuple(hits[:FOUND_MAX]))


def span(digits: str, size: int) -> tuple[bytes, bytes] | None:
    """The first and the last id of this size that begin with these digits."""
    if len(digits) > 2 * size:
        return None
    return bytes.fromhex(digits.ljust(2 * size, "0")), bytes.fromhex(digits.ljust(2 * size, "f"))


def _find_addresses(db: Db, digits: str) -> dict[str, NodeRow]:
    ends = span(digits, ADDRESS_BYTES)
    if ends is None:
        return {}
    found = db.rows("SELECT * FROM nodes WHERE node BETWEEN ? AND ? LIMIT ?", *ends, FOUND_MAX)
    found += db.rows("SELECT * FROM nodes WHERE owner BETWEEN ? AND ? LIMIT ?", *ends, FOUND_MAX)
    return {plain(row["node"]): node_row(row) for row in found}


def _find_digests(db: Db, digits: str) -> list[Hit]:
    ends = span(digits, DIGEST_BYTES)
    assert ends is not None, "at most 64 digits are looked for"
    hits = [
        Hit(kind="submission", title=plain(row["submission"]), path=f"/submissions/{plain(row['submission'])}")
        for row in db.rows("SELECT submission FROM submissions WHERE submission BETWEEN ? AND ? LIMIT 5", *ends)
    ]
    for row in db.rows("SELECT run, step, root FROM steps WHERE root BETWEEN ? AND ? LIMIT 5", *ends):
        path = f"/runs/{row['run']}/checkpoints/{row['step']}"
        hits.append(Hit(kind="checkpoint", title=f"step {row['step']} of {row['run']}", path=path))
    if not hits:
        query = "SELECT DISTINCT subject FROM mentions WHERE subject BETWEEN ? AND ? AND length(subject)=32 LIMIT 5"
        for row in db.rows(query, *ends):
            hits.append(Hit(kind="entries about", title=plain(row[0]), path=f"/log?about={plain(row[0])}"))
    return hits


def _find_entry(db: Db, idx: int) -> list[Hit]:
    kind = db.value("SELECT kind FROM entries WHERE idx=?", idx)
    return [Hit(kind="entry", title=f"{idx}: {kind}", path=f"/log/{idx}")] if kind else []


def _find_runs(db: Db, text: str) -> list[Hit]:
    found = db.rows("SELECT run FROM runs WHERE run>=? AND run<? LIMIT 5", text, text + "\U0010ffff")
    return [Hit(kind="run", title=row["run"], path=f"/runs/{row['run']}") for row in found]
