"""Search by the first characters of addresses, names, submissions, checkpoints, files, entries and runs."""

import re
from dataclasses import dataclass

from prime_explorer.config import SEARCH_RESULTS_MAX
from prime_explorer.index.store import ReadTransaction, format_id
from prime_explorer.pages.nodes import NodeCard, find_nodes_by_name, make_node_card
from prime_protocol.constants import ADDRESS_BYTES, DIGEST_BYTES

HEX = re.compile(r"(?:0x)?([0-9a-f]{4,64})")
NUMBER = re.compile(r"#?([0-9]{1,15})")
NAME = re.compile(r"[a-z0-9-]{2,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A search result that is not a node."""

    kind: str
    title: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """The results of a search."""

    query: str
    nodes: tuple[NodeCard, ...]
    hits: tuple[SearchHit, ...]

    @property
    def only(self) -> str | None:
        """The path of the only result, to redirect to."""
        paths = [f"/nodes/{node.node}" for node in self.nodes] + [hit.path for hit in self.hits]
        return paths[0] if len(paths) == 1 else None


def search(db: ReadTransaction, query: str) -> SearchView:
    text = query.strip().lower()
    nodes: dict[str, NodeCard] = {}
    hits: list[SearchHit] = []
    if match := HEX.fullmatch(text):
        nodes |= _find_addresses(db, match[1])
        hits += _find_digests(db, match[1])
    if match := NUMBER.fullmatch(text):
        hits += _find_entry(db, int(match[1]))
    if NAME.fullmatch(text):
        nodes |= {node.node: node for node in find_nodes_by_name(db, text, SEARCH_RESULTS_MAX)}
        hits += _find_runs(db, text)
    return SearchView(
        query=query, nodes=tuple(nodes.values())[:SEARCH_RESULTS_MAX], hits=tuple(hits[:SEARCH_RESULTS_MAX])
    )


def get_hex_range(digits: str, size: int) -> tuple[bytes, bytes] | None:
    """The first and the last id of `size` bytes that start with these digits."""
    if len(digits) > 2 * size:
        return None
    return bytes.fromhex(digits.ljust(2 * size, "0")), bytes.fromhex(digits.ljust(2 * size, "f"))


def _find_addresses(db: ReadTransaction, digits: str) -> dict[str, NodeCard]:
    ends = get_hex_range(digits, ADDRESS_BYTES)
    if ends is None:
        return {}
    found = db.rows("SELECT * FROM nodes WHERE node BETWEEN ? AND ? LIMIT ?", *ends, SEARCH_RESULTS_MAX)
    found += db.rows("SELECT * FROM nodes WHERE owner BETWEEN ? AND ? LIMIT ?", *ends, SEARCH_RESULTS_MAX)
    return {format_id(row["node"]): make_node_card(row) for row in found}


def _find_digests(db: ReadTransaction, digits: str) -> list[SearchHit]:
    ends = get_hex_range(digits, DIGEST_BYTES)
    assert ends is not None, "the pattern allows at most 64 digits"
    hits = [
        SearchHit(
            kind="submission", title=format_id(row["submission"]), path=f"/submissions/{format_id(row['submission'])}"
        )
        for row in db.rows("SELECT submission FROM submissions WHERE submission BETWEEN ? AND ? LIMIT 5", *ends)
    ]
    for row in db.rows("SELECT run, step, root FROM steps WHERE root BETWEEN ? AND ? LIMIT 5", *ends):
        path = f"/runs/{row['run']}/checkpoints/{row['step']}"
        hits.append(SearchHit(kind="checkpoint", title=f"step {row['step']} of {row['run']}", path=path))
    if not hits:
        query = "SELECT DISTINCT subject FROM mentions WHERE subject BETWEEN ? AND ? AND length(subject)=32 LIMIT 5"
        for row in db.rows(query, *ends):
            hits.append(
                SearchHit(kind="entries about", title=format_id(row[0]), path=f"/log?about={format_id(row[0])}")
            )
    return hits


def _find_entry(db: ReadTransaction, idx: int) -> list[SearchHit]:
    kind = db.value("SELECT kind FROM entries WHERE idx=?", idx)
    return [SearchHit(kind="entry", title=f"{idx}: {kind}", path=f"/log/{idx}")] if kind else []


def _find_runs(db: ReadTransaction, text: str) -> list[SearchHit]:
    found = db.rows("SELECT run FROM runs WHERE run>=? AND run<? LIMIT 5", text, text + "\U0010ffff")
    return [SearchHit(kind="run", title=row["run"], path=f"/runs/{row['run']}") for row in found]
