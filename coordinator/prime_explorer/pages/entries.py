"""The log itself: its entries, one entry with the data to prove it, and its signed tree heads."""

import json
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prime_explorer.config import ENTRIES_SCANNED_MAX, ROWS_PER_PAGE
from prime_explorer.index.fold import encode_json
from prime_explorer.index.store import ReadTransaction, format_id, make_row
from prime_explorer.pages.keys import RotatedKeySummary, read_rotations
from prime_explorer.pages.live import ChainAnchor
from prime_explorer.pages.proofs import HeadView, prove_inclusion, read_newest_head
from prime_explorer.pages.tables import EntrySummary, Rows, cut_page, read_rows
from prime_protocol.constants import SIGNATURE_BYTES, TILE_HASHES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.entry_index import decode_leaf, list_subjects
from prime_protocol.ledger.replay import ENTRY_TYPES, decode_entry
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.log.tiles import EntryBundle
from prime_protocol.log.tree_head import SignedNote
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.log_files import read_bundle

ENTRY_KINDS = {name: (kind.__doc__ or "").partition(".")[0] for name, kind in sorted(ENTRY_TYPES.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesView:
    """The table of entries."""

    kind: str
    run: str
    about: str
    author: str
    entries: Rows[EntrySummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """One decoded entry."""

    summary: EntrySummary
    meaning: str
    """What such an entry means, from the protocol."""
    body: dict[str, Any]
    leaf_hash: str
    leaf_bytes: int
    signature: str
    """The author's signature. It covers everything but the time at which the log accepted the entry."""
    version: int
    sequence: int
    issued_at_ms: int
    expires_at_ms: int
    mentions: tuple[str, ...]
    """Addresses and digests that it mentions."""
    size: int
    """Entries in the index, to link the next entry."""
    log_key: str
    rotations: tuple[RotatedKeySummary, ...]
    """Keys that the log had before, newest first."""
    leaf: str
    """The leaf's bytes: what leaf_hash is the hash of."""
    head: str | None
    """The newest signed tree head; null if the entry is newer."""
    proof: tuple[str, ...]
    """Inclusion proof of RFC 9162 for that head, leaf side first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeHeadSummary:
    """A signed tree head."""

    size: int
    at_ms: int
    root: str
    note: str
    cosigners: tuple[str, ...]
    """Names of cosigners. Their keys are unknown here, so their signatures are not verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsView:
    """Signed heads, newest first, and those that the log itself records."""

    heads: Rows[TreeHeadSummary]
    noted: Rows[EntrySummary]
    log_key: str
    coordinator: str
    rotations: tuple[RotatedKeySummary, ...]
    """Keys that the log had before, newest first."""
    is_key_given: bool
    """False: the key is the one that the log itself names."""
    chain_id: int
    randomness: str
    """Which chain audit draws come from, and who can predict it."""
    anchors: tuple[ChainAnchor, ...]
    """Newest first, as far as the coordinator has followed the chain."""
    old: int | None
    new: int | None


ENTRIES_ABOUT = (
    "SELECT entries.* FROM mentions JOIN entries ON entries.idx=mentions.idx"
    " WHERE subject=? AND mentions.idx<? ORDER BY mentions.idx DESC LIMIT ?"
)
ENTRIES_BY_AUTHOR = (
    "SELECT * FROM entries INDEXED BY entries_by_author WHERE author=? AND idx<? ORDER BY idx DESC LIMIT ?"
)


def read_entries(
    db: ReadTransaction,
    *,
    kind: str = "",
    run: RunId | None = None,
    about: bytes | None = None,
    author: NodeId | None = None,
    before: int | None = None,
    limit: int = ROWS_PER_PAGE,
) -> Rows[EntrySummary]:
    """Newest first. A page may be short, even empty, and still have a next one: a search ends early."""
    if about is not None or author is not None:
        query, subject = (ENTRIES_ABOUT, about) if about is not None else (ENTRIES_BY_AUTHOR, author)
        is_filtered = bool(kind or run or (about and author))
        scanned_max = ENTRIES_SCANNED_MAX if is_filtered else limit + 1
        found = db.rows(query, subject, 2**62 if before is None else before, scanned_max)
        wanted = [
            row
            for row in found
            if kind in ("", row["kind"]) and run in (None, row["run"]) and author in (None, row["author"])
        ]
        page = cut_page(tuple(make_row(EntrySummary, row) for row in wanted[: limit + 1]), limit)
        is_cut = page.next is None and is_filtered and len(found) == scanned_max
        return Rows(page.rows, str(found[-1]["idx"])) if is_cut else page
    index = {(True, True): "entries_by_run_and_kind", (True, False): "entries_by_run", (False, True): "entries_by_kind"}
    chosen = index.get((run is not None, bool(kind)), "")
    return read_rows(db, EntrySummary, before=before, limit=limit, index=chosen, run=run, kind=kind or None)


def read_entry(db: ReadTransaction, mirror: Path, idx: int) -> EntryView | None:
    row, facts = db.row("SELECT * FROM entries WHERE idx=?", idx), db.read_meta()
    if row is None:
        return None
    leaf = read_leaf(mirror, idx, facts["signed_size"])
    _, letter = decode_leaf(leaf)
    entry: Any = decode_entry(letter)
    head, leaf_hash = read_newest_head(mirror), compute_leaf_hash(leaf)
    return EntryView(
        summary=make_row(EntrySummary, row),
        meaning=" ".join((type(entry).__doc__ or "").split()),
        body=json.loads(encode_json(asdict(entry))),
        leaf_hash=str(leaf_hash),
        leaf_bytes=len(leaf),
        signature="0x" + decode(LogRecord, leaf).frame[:SIGNATURE_BYTES].hex(),
        version=letter.version,
        sequence=letter.sequence,
        issued_at_ms=letter.issued_at_ms,
        expires_at_ms=letter.expires_at_ms,
        mentions=tuple(text for text in list_subjects(letter.run, entry) if text.startswith("0x")),
        size=facts["size"],
        log_key=facts["log_key"],
        rotations=read_rotations(facts),
        leaf="0x" + leaf.hex(),
        head=head.note if idx < head.size else None,
        proof=_prove_if_possible(mirror, head, idx, leaf_hash) if idx < head.size else (),
    )


def _prove_if_possible(mirror: Path, head: HeadView, idx: int, leaf_hash: Digest) -> tuple[str, ...]:
    """The proof; empty where the copy of the log is damaged. The page shows it: its own check names the damage."""
    try:
        return prove_inclusion(mirror, head, idx, leaf_hash)
    except RemoteError:
        return ()


def read_leaf(mirror: Path, idx: int, size: int) -> bytes:
    """Read a leaf from its entry bundle in the tree of this size."""
    bundle, place = divmod(idx, TILE_HASHES)
    return read_bundle(mirror, EntryBundle(bundle, min(TILE_HASHES, size - bundle * TILE_HASHES)))[place]


def read_heads(db: ReadTransaction, before: int | None, limit: int = ROWS_PER_PAGE) -> HeadsView:
    facts = db.read_meta()
    last = 2**62 if before is None else before
    found = db.rows("SELECT * FROM heads WHERE size<? ORDER BY size DESC LIMIT ?", last, limit + 1)
    heads = tuple(map(_make_head_summary, found[:limit]))
    return HeadsView(
        heads=Rows(heads, str(heads[-1].size) if len(found) > limit else None),
        noted=read_rows(db, EntrySummary, limit=10, index="entries_by_kind", kind="HeadNoted"),
        log_key=facts.get("log_key", ""),
        coordinator=format_id(facts.get("coordinator", "")),
        rotations=read_rotations(facts),
        is_key_given=bool(facts.get("is_key_given")),
        chain_id=facts.get("chain_id", 0),
        randomness=facts.get("randomness", ""),
        anchors=(),
        old=None,
        new=None,
    )


def _make_head_summary(row: sqlite3.Row) -> TreeHeadSummary:
    note = SignedNote.parse(row["note"])
    origin = note.text.partition("\n")[0]
    cosigners = tuple(dict.fromkeys(each.name for each in note.signatures if each.name != origin))
    return make_row(TreeHeadSummary, row, note=row["note"].decode(), cosigners=cosigners)
