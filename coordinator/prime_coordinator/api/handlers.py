"""Proofs about the log, from the tiles of the coordinator's own mirror; each is verified before it is given out.

What the coordinator answers to readers: one function for each question; questions.py has the table of them.

Nothing here changes anything. The state is read without waiting; the log and the mirror are read in threads.

Settlement as people and programs are told of it: where value is kept, and how far the books were brought there.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from prime_coordinator.api import log_rows as history
from prime_coordinator.api import schemas as rows
from prime_coordinator.api import state_rows as listings
from prime_coordinator.api.log_rows import SLASH_KINDS, OpenedEntry, SubmissionHistory, open_leaf
from prime_coordinator.api.queries import QueryParams, ResultPage
from prime_coordinator.api.schemas import ConsistencyRow, HeadRow
from prime_coordinator.app_context import AppContext
from prime_coordinator.constants import PAGE_LEAF_BYTES_MAX, PAGE_SCAN_MAX
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.ledger.state import RunState
from prime_protocol.log.merkle import (
    GetNode,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_root,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.log.tiles import make_node_reader
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.rpc import RefusalCode
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.http.messages import RefusalError
from prime_runtime.log_files import read_tile, read_tree_head


def read_head_row(folder: Path) -> HeadRow:
    """The newest head whose files are all there."""
    raw = read_tree_head(folder)
    head = TreeHead.parse(SignedNote.parse(raw).text)
    return HeadRow(size=head.size, root=str(head.root), note=raw.decode())


def prove_inclusion(folder: Path, head: HeadRow, index: int, leaf: Digest) -> tuple[str, ...]:
    proof = build_inclusion_proof(index, head.size, read_nodes(folder, head.size))
    verify_inclusion(leaf, proof, index=index, size=head.size, root=Digest.parse(head.root))
    return tuple(map(str, proof))


def prove_consistency(folder: Path, old_size: int, new_size: int | None) -> ConsistencyRow:
    """Between any two sizes up to the newest head, of which the newer one need not have been signed."""
    newest = read_head_row(folder).size
    new_size = newest if new_size is None else new_size
    if not old_size <= new_size <= newest:
        raise RemoteError("old" if old_size > new_size else "new", f"must be at most {min(new_size, newest)}")
    get_node = read_nodes(folder, newest)
    old_root, new_root = compute_root(old_size, get_node), compute_root(new_size, get_node)
    proof = build_consistency_proof(old_size, new_size, get_node)
    verify_consistency(proof, old_size=old_size, old_root=old_root, new_size=new_size, new_root=new_root)
    return ConsistencyRow(
        old_size=old_size,
        old_root=str(old_root),
        new_size=new_size,
        new_root=str(new_root),
        proof=tuple(map(str, proof)),
    )


def read_nodes(folder: Path, size: int) -> GetNode:
    """Nodes of the tree of this size, each tile read once."""
    return make_node_reader(size, cache(partial(read_tile, folder)))


HISTORY_ENTRIES_MAX = 200
"""Entries about one submission: at most 16 rounds of 15 validators, in practice a dozen."""


def make_unknown_error(field: str, what: object) -> RefusalError:
    return RefusalError(RefusalCode.UNKNOWN, field, f"{what} is not known here")


# --- From the state -------------------------------------------------------------------------------------------------


async def get_status(desk: AppContext, ask: QueryParams) -> rows.StatusRow:
    return listings.status_row(desk.core, desk.config.network_id, desk.now_ms())


async def list_runs(desk: AppContext, ask: QueryParams) -> ResultPage:
    state = desk.core.state
    start = ask.cursor[0] if ask.cursor else 0
    found = list(islice(state.runs.items(), start, start + ask.limit))
    after = start + len(found)
    page = tuple(listings.run_row(state, name, run) for name, run in found)
    return ResultPage(page, str(after) if after < len(state.runs) else None)


async def get_run(desk: AppContext, ask: QueryParams) -> rows.RunDetail:
    name, run = find_run(desk, ask.run)
    return listings.run_detail(desk.core.state, name, run)


def find_run(desk: AppContext, name: RunId | None) -> tuple[RunId, RunState]:
    if name is None or name not in desk.core.state.runs:
        raise make_unknown_error("run", name)
    return name, desk.core.state.runs[name]


async def list_nodes(desk: AppContext, ask: QueryParams) -> ResultPage:
    """In the order they came. The state never forgets a node, so a place in that order stays."""
    start = ask.cursor[0] if ask.cursor else 0
    found: list[rows.NodeRow] = []
    place = start
    for name in islice(desk.core.state.nodes, start, start + PAGE_SCAN_MAX):
        place += 1
        if _is_wanted(desk, ask, name):
            found.append(listings.node_row(desk.core, name))
            if len(found) == ask.limit:
                break
    return ResultPage(tuple(found), str(place) if place < len(desk.core.state.nodes) else None)


def _is_wanted(desk: AppContext, ask: QueryParams, name: NodeId) -> bool:
    state = desk.core.state
    node = state.nodes[name]
    return (
        (ask.status is None or node.status is ask.status)
        and (ask.role is None or ask.role in node.roles)
        and (ask.owner is None or state.owners[name] == ask.owner)
        and (ask.phase is None or desk.core.liveness.phase(name) is ask.phase)
    )


async def get_node(desk: AppContext, ask: QueryParams) -> rows.NodeDetail:
    assert ask.node is not None
    if ask.node not in desk.core.state.nodes:
        raise make_unknown_error("node", ask.node)
    return listings.node_detail(desk.core, ask.node, desk.now_ms())


async def list_leases(desk: AppContext, ask: QueryParams) -> ResultPage:
    """By run, then by number; the cursor is the place of the run and the number of its last lease."""
    found = list(islice(_open_leases(desk, ask), ask.limit + 1))
    page = found[: ask.limit]
    cursor = f"{page[-1][0]}.{page[-1][1].lease}" if len(found) > len(page) else None
    return ResultPage(tuple(row for _, row in page), cursor)


def _open_leases(desk: AppContext, ask: QueryParams) -> Iterator[tuple[int, rows.LeaseRow]]:
    if ask.run is not None:
        find_run(desk, ask.run)
    for place, (name, run) in enumerate(desk.core.state.runs.items()):
        if ask.run not in (None, name):
            continue
        for row in listings.lease_rows(name, run):
            is_after = ask.cursor is None or (place, row.lease) > ask.cursor
            if is_after and (ask.node is None or row.node == str(ask.node)):
                yield place, row


# --- From the log ---------------------------------------------------------------------------------------------------


async def read_page(
    desk: AppContext, ask: QueryParams, kinds: Sequence[str], *, subject: Any = None, author: Any = None
) -> tuple[list[OpenedEntry], str | None]:
    """Opened entries, newest first, and the cursor of the next page."""
    found = await desk.log.list_entries(
        kinds=kinds,
        author=author,
        run=ask.run,
        subject=subject,
        before=ask.cursor[0] if ask.cursor else None,
        limit=ask.limit,
    )
    taken: list[OpenedEntry] = []
    size = 0
    for listed in found:
        size += len(listed.leaf)
        if taken and size > PAGE_LEAF_BYTES_MAX:
            break
        taken.append(open_leaf(listed.index, listed.leaf))
    is_last = len(taken) == len(found) < ask.limit
    return taken, None if is_last or not taken else str(taken[-1].index)


async def read_history(desk: AppContext, submission: Digest, kinds: Sequence[str] = ()) -> list[OpenedEntry]:
    """Every entry about a submission, oldest first."""
    found = await desk.log.list_entries(subject=submission, kinds=kinds, limit=HISTORY_ENTRIES_MAX)
    return [open_leaf(listed.index, listed.leaf) for listed in reversed(found)]


async def list_submissions(desk: AppContext, ask: QueryParams) -> ResultPage:
    """Those of a step that is not over come from the state: a trainer asks for them every second."""
    run = desk.core.state.runs.get(ask.run) if ask.run is not None else None
    if run is not None and ask.run is not None and ask.step in run.steps:
        found = list(islice(_step_submissions(ask.run, run, ask), ask.limit + 1))
        return ResultPage(
            tuple(found[: ask.limit]), str(found[ask.limit - 1].index) if len(found) > ask.limit else None
        )
    taken, cursor = await read_page(desk, ask, ["Submitted"], author=ask.node)
    found = [await _submission_row(desk, opened) for opened in taken]
    return ResultPage(tuple(row for row in found if ask.step in (None, row.step) and _has_progress(ask, row)), cursor)


def _step_submissions(name: RunId, run: RunState, ask: QueryParams) -> Iterator[rows.SubmissionRow]:
    assert ask.step is not None
    for digest in reversed(run.steps[ask.step].submissions):
        row = listings.submission_row(name, digest, run.submissions[digest], run.submissions[digest].position.index)
        is_after = ask.cursor is None or row.index < ask.cursor[0]
        if is_after and (ask.node is None or row.node == str(ask.node)) and _has_progress(ask, row):
            yield row


def _has_progress(ask: QueryParams, row: rows.SubmissionRow) -> bool:
    return ask.progress in (None, row.progress)


async def _submission_row(desk: AppContext, opened: OpenedEntry) -> rows.SubmissionRow:
    assert isinstance(opened.entry, Submitted)
    name, run = compute_receipt_id(opened.entry.receipt), desk.core.state.runs[opened.run]
    if name in run.submissions:
        return listings.submission_row(opened.run, name, run.submissions[name], opened.index)
    return history.ended_submission_detail(run, await read_history(desk, name)).summary


async def get_submission(desk: AppContext, ask: QueryParams) -> rows.SubmissionDetail:
    assert ask.submission is not None
    story = await read_history(desk, ask.submission)
    if not story or not isinstance(story[0].entry, Submitted):
        raise make_unknown_error("submission", ask.submission)
    name, run = find_run(desk, story[0].run)
    if ask.submission in run.submissions:
        return listings.submission_detail(name, run, ask.submission, story[0].index)
    return history.ended_submission_detail(run, story)


async def list_verdicts(desk: AppContext, ask: QueryParams) -> ResultPage:
    taken, cursor = await read_page(desk, ask, ["VerdictGiven"], subject=ask.submission, author=ask.node)
    return ResultPage(tuple(map(history.verdict_row, taken)), cursor)


async def list_slashes(desk: AppContext, ask: QueryParams) -> ResultPage:
    taken, cursor = await read_page(desk, ask, ["SlashProposed"])
    stories = [await _read_slash_history(desk, opened) for opened in taken]
    return ResultPage(tuple(history.slash_row(desk.core.state, story) for story in stories), cursor)


async def get_slash(desk: AppContext, ask: QueryParams) -> rows.SlashRow:
    assert ask.submission is not None
    story = await read_history(desk, ask.submission, ["Submitted", *SLASH_KINDS])
    if history.slash_progress(story) is None:
        raise RefusalError(RefusalCode.UNKNOWN, "submission", f"{ask.submission} was not slashed")
    return history.slash_row(desk.core.state, story)


async def list_appeals(desk: AppContext, ask: QueryParams) -> ResultPage:
    taken, cursor = await read_page(desk, ask, ["Appealed"])
    stories = [await _read_slash_history(desk, opened) for opened in taken]
    return ResultPage(tuple(map(history.appeal_row, stories)), cursor)


async def _read_slash_history(desk: AppContext, opened: Any) -> SubmissionHistory:
    return await read_history(desk, opened.entry.submission, ["Submitted", *SLASH_KINDS])


async def list_checkpoints(desk: AppContext, ask: QueryParams) -> ResultPage:
    taken, cursor = await read_page(desk, ask, ["CheckpointPublished"])
    return ResultPage(tuple(history.checkpoint_row(desk.core.state, opened) for opened in taken), cursor)


async def list_refused(desk: AppContext, ask: QueryParams) -> ResultPage:
    found = await desk.log.list_refused(limit=ask.limit)
    names = rows.RefusedRow.__slots__
    return ResultPage(tuple(rows.RefusedRow(**{name: getattr(each, name) for name in names}) for each in found), None)


async def list_entries(desk: AppContext, ask: QueryParams) -> ResultPage:
    kinds = [ask.kind] if ask.kind else []
    taken, cursor = await read_page(desk, ask, kinds, subject=ask.subject, author=ask.author)
    return ResultPage(tuple(map(history.entry_row, taken)), cursor)


async def get_entry(desk: AppContext, ask: QueryParams) -> rows.EntryDetail:
    index = ask.index
    assert index is not None
    found = await desk.log.read(index, index + 1)
    if not found:
        raise make_unknown_error("index", index)
    (leaf,) = found
    folder = CoordinatorHome(desk.config.folder).mirror

    def prove() -> tuple[str | None, tuple[str, ...]]:
        head = read_head_row(folder)
        if head.size <= index:
            return None, ()
        return head.note, prove_inclusion(folder, head, index, compute_leaf_hash(leaf))

    note, proof = await asyncio.to_thread(prove)
    summary = history.entry_row(open_leaf(index, leaf))
    return rows.EntryDetail(summary=summary, leaf="0x" + leaf.hex(), head=note, proof=proof)


async def get_head(desk: AppContext, ask: QueryParams) -> rows.HeadRow:
    return await asyncio.to_thread(read_head_row, CoordinatorHome(desk.config.folder).mirror)


async def get_consistency(desk: AppContext, ask: QueryParams) -> rows.ConsistencyRow:
    assert ask.old is not None
    return await asyncio.to_thread(prove_consistency, CoordinatorHome(desk.config.folder).mirror, ask.old, ask.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRow:
    """A head of the log that a contract holds."""

    run: str
    """As the chain names it: keccak256 of the name."""
    size: int
    root: str
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """A payout root that a contract holds."""

    run: str
    epoch: int
    root: str
    total: int
    """In units of the token."""
    head_size: int
    matures_at_s: int
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRow:
    """Who holds the value."""

    kind: str
    """embedded or evm."""
    chain_id: int
    """0 for embedded, as the network's first entry says."""
    court: str
    """Address of the contract that receipts are signed for; zeros for embedded."""
    head: int
    """Newest block of the chain that was seen."""
    followed: int
    """Block up to which the chain's events stand in the log."""
    problem: str
    """Why settlement waits; empty while it does not."""
    on_their_way: tuple[str, ...]
    """Transactions that are in no block yet."""
    put_off: tuple[str, ...]
    """What a contract refuses, and why; it is tried again an epoch later."""
    anchors: tuple[AnchorRow, ...]
    """Newest first."""
    promises: tuple[PromiseRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRow:
    """What an account was paid in a run, in all."""

    account: str
    paid_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutRow:
    """The table behind a payout root. It needs no trust: its tree has the root that is on the chain, or it is wrong."""

    run: str
    epoch: int
    size: int
    """Entries of the log that it was computed from."""
    paid: tuple[PaidRow, ...]


async def get_payout(desk: AppContext, ask: QueryParams) -> PayoutRow:
    assert ask.run is not None and ask.epoch is not None
    path = ChainFiles(desk.config.folder).payout(ask.run, ask.epoch)
    try:
        plain = json.loads(await asyncio.to_thread(path.read_bytes))
    except FileNotFoundError:
        raise RefusalError(RefusalCode.UNKNOWN, "epoch", "has no payout root here") from None
    paid = tuple(PaidRow(account=account, paid_nano=nano) for account, nano in plain["paid_nano"].items())
    return PayoutRow(run=plain["run"], epoch=plain["epoch"], size=plain["size"], paid=paid)


async def get_settlement(desk: AppContext, ask: QueryParams) -> SettlementRow:
    told, domain = desk.settlement.describe(), desk.core.state.domain
    return SettlementRow(
        kind=told["kind"],
        chain_id=domain.chain_id,
        court=str(domain.contract),
        head=told.get("head", 0),
        followed=max(0, told.get("followed", 0)),
        problem=told.get("problem", ""),
        on_their_way=tuple(told.get("on_their_way", ())),
        put_off=tuple(f"{action}: {why}" for action, why in told.get("put_off", {}).items()),
        anchors=tuple(AnchorRow(**row) for row in told.get("anchors", ())),
        promises=tuple(_promise_row(row) for row in told.get("promises", ())),
    )


def _promise_row(row: dict[str, Any]) -> PromiseRow:
    plain = {name: value for name, value in row.items() if name not in ("headSize", "maturesAt")}
    return PromiseRow(**plain, head_size=row["headSize"], matures_at_s=row["maturesAt"])
