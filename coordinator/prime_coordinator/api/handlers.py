"""The handlers of the read API, one for each route of routes.py. Nothing here changes anything.

The ledger's state is read without waiting; the log and the mirror are read in threads. A proof is verified before it is
returned.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from prime_coordinator.api import log_rows, schemas, state_rows
from prime_coordinator.api.log_rows import SLASH_KINDS, OpenedEntry, open_leaf
from prime_coordinator.api.queries import QueryParams, ResultPage
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

HISTORY_ENTRIES_MAX = 200
"""Entries about one submission: at most 16 rounds of 15 validators, in practice a dozen."""


def make_unknown_error(field: str, what: object) -> RefusalError:
    return RefusalError(RefusalCode.UNKNOWN, field, f"{what} is not known here")


# --- From the state -------------------------------------------------------------------------------------------------


async def get_status(context: AppContext, params: QueryParams) -> schemas.StatusRow:
    return state_rows.status_row(context.core, context.config.network_id, context.now_ms())


async def list_runs(context: AppContext, params: QueryParams) -> ResultPage:
    state = context.core.state
    start = _get_start(params, len(state.runs))
    found = list(islice(state.runs.items(), start, start + params.limit))
    after = start + len(found)
    page = tuple(state_rows.run_row(state, name, run) for name, run in found)
    return ResultPage(page, str(after) if after < len(state.runs) else None)


async def get_run(context: AppContext, params: QueryParams) -> schemas.RunDetail:
    name, run = find_run(context, params.run)
    return state_rows.run_detail(context.core.state, name, run)


def find_run(context: AppContext, name: RunId | None) -> tuple[RunId, RunState]:
    if name is None or name not in context.core.state.runs:
        raise make_unknown_error("run", name)
    return name, context.core.state.runs[name]


async def list_nodes(context: AppContext, params: QueryParams) -> ResultPage:
    """In the order of registration. The state never drops a node, so a position in that order is a stable cursor."""
    nodes = context.core.state.nodes
    position = _get_start(params, len(nodes))
    found: list[schemas.NodeRow] = []
    for name in islice(nodes, position, position + PAGE_SCAN_MAX):
        position += 1
        if _is_wanted(context, params, name):
            found.append(state_rows.node_row(context.core, name))
            if len(found) == params.limit:
                break
    return ResultPage(tuple(found), str(position) if position < len(nodes) else None)


def _get_start(params: QueryParams, total: int) -> int:
    return min(params.cursor[0], total) if params.cursor else 0


def _is_wanted(context: AppContext, params: QueryParams, name: NodeId) -> bool:
    state = context.core.state
    node = state.nodes[name]
    return (
        (params.status is None or node.status is params.status)
        and (params.role is None or params.role in node.roles)
        and (params.owner is None or state.owners[name] == params.owner)
        and (params.phase is None or context.core.liveness.phase(name) is params.phase)
    )


async def get_node(context: AppContext, params: QueryParams) -> schemas.NodeDetail:
    assert params.node is not None
    if params.node not in context.core.state.nodes:
        raise make_unknown_error("node", params.node)
    return state_rows.node_detail(context.core, params.node, context.now_ms())


async def list_leases(context: AppContext, params: QueryParams) -> ResultPage:
    """By run, then by number; the cursor is the position of the run and the number of the last lease."""
    found = list(islice(_open_leases(context, params), params.limit + 1))
    page = found[: params.limit]
    cursor = f"{page[-1][0]}.{page[-1][1].lease}" if len(found) > len(page) else None
    return ResultPage(tuple(row for _, row in page), cursor)


def _open_leases(context: AppContext, params: QueryParams) -> Iterator[tuple[int, schemas.LeaseRow]]:
    if params.run is not None:
        find_run(context, params.run)
    for position, (name, run) in enumerate(context.core.state.runs.items()):
        if params.run not in (None, name):
            continue
        for row in state_rows.lease_rows(name, run):
            is_after = params.cursor is None or (position, row.lease) > params.cursor
            if is_after and (params.node is None or row.node == str(params.node)):
                yield position, row


# --- From the log ---------------------------------------------------------------------------------------------------


async def read_page(
    context: AppContext, params: QueryParams, kinds: Sequence[str], *, subject: Any = None, author: Any = None
) -> tuple[list[OpenedEntry], str | None]:
    """Decoded entries, newest first, and the cursor of the next page."""
    found = await context.log.list_entries(
        kinds=kinds,
        author=author,
        run=params.run,
        subject=subject,
        before=params.cursor[0] if params.cursor else None,
        limit=params.limit,
    )
    taken: list[OpenedEntry] = []
    size = 0
    for listed in found:
        size += len(listed.leaf)
        if taken and size > PAGE_LEAF_BYTES_MAX:
            break
        taken.append(open_leaf(listed.index, listed.leaf))
    is_last = len(taken) == len(found) < params.limit
    return taken, None if is_last or not taken else str(taken[-1].index)


async def read_history(context: AppContext, submission: Digest, kinds: Sequence[str] = ()) -> list[OpenedEntry]:
    """Every entry about a submission, oldest first."""
    found = await context.log.list_entries(subject=submission, kinds=kinds, limit=HISTORY_ENTRIES_MAX)
    return [open_leaf(listed.index, listed.leaf) for listed in reversed(found)]


async def list_submissions(context: AppContext, params: QueryParams) -> ResultPage:
    """Submissions of a step that is not over come from the state: a trainer asks for them every second."""
    run = context.core.state.runs.get(params.run) if params.run is not None else None
    if run is not None and params.run is not None and params.step in run.steps:
        found = list(islice(_step_submissions(params.run, run, params), params.limit + 1))
        return ResultPage(
            tuple(found[: params.limit]), str(found[params.limit - 1].index) if len(found) > params.limit else None
        )
    taken, cursor = await read_page(context, params, ["Submitted"], author=params.node)
    found = [await _submission_row(context, opened) for opened in taken]
    return ResultPage(tuple(row for row in found if _matches(params, row)), cursor)


def _step_submissions(name: RunId, run: RunState, params: QueryParams) -> Iterator[schemas.SubmissionRow]:
    assert params.step is not None
    for digest in reversed(run.steps[params.step].submissions):
        row = state_rows.submission_row(name, digest, run.submissions[digest], run.submissions[digest].position.index)
        is_after = params.cursor is None or row.index < params.cursor[0]
        if is_after and (params.node is None or row.node == str(params.node)) and _matches(params, row):
            yield row


def _matches(params: QueryParams, row: schemas.SubmissionRow) -> bool:
    return params.step in (None, row.step) and params.progress in (None, row.progress)


async def _submission_row(context: AppContext, opened: OpenedEntry) -> schemas.SubmissionRow:
    assert isinstance(opened.entry, Submitted)
    name, run = compute_receipt_id(opened.entry.receipt), context.core.state.runs[opened.run]
    if name in run.submissions:
        return state_rows.submission_row(opened.run, name, run.submissions[name], opened.index)
    return log_rows.ended_submission_detail(run, await read_history(context, name)).summary


async def get_submission(context: AppContext, params: QueryParams) -> schemas.SubmissionDetail:
    assert params.submission is not None
    history = await read_history(context, params.submission)
    if not history or not isinstance(history[0].entry, Submitted):
        raise make_unknown_error("submission", params.submission)
    name, run = find_run(context, history[0].run)
    if params.submission in run.submissions:
        return state_rows.submission_detail(name, run, params.submission, history[0].index)
    return log_rows.ended_submission_detail(run, history)


async def list_verdicts(context: AppContext, params: QueryParams) -> ResultPage:
    taken, cursor = await read_page(context, params, ["VerdictGiven"], subject=params.submission, author=params.node)
    return ResultPage(tuple(map(log_rows.verdict_row, taken)), cursor)


async def list_slashes(context: AppContext, params: QueryParams) -> ResultPage:
    taken, cursor = await read_page(context, params, ["SlashProposed"])
    histories = [await _read_slash_history(context, opened.entry.submission) for opened in taken]  # type: ignore[union-attr]
    return ResultPage(tuple(log_rows.slash_row(context.core.state, history) for history in histories), cursor)


async def get_slash(context: AppContext, params: QueryParams) -> schemas.SlashRow:
    assert params.submission is not None
    history = await _read_slash_history(context, params.submission)
    if log_rows.slash_progress(history) is None:
        raise RefusalError(RefusalCode.UNKNOWN, "submission", f"{params.submission} was not slashed")
    return log_rows.slash_row(context.core.state, history)


async def list_appeals(context: AppContext, params: QueryParams) -> ResultPage:
    taken, cursor = await read_page(context, params, ["Appealed"])
    histories = [await _read_slash_history(context, opened.entry.submission) for opened in taken]  # type: ignore[union-attr]
    return ResultPage(tuple(map(log_rows.appeal_row, histories)), cursor)


async def _read_slash_history(context: AppContext, submission: Digest) -> list[OpenedEntry]:
    return await read_history(context, submission, ["Submitted", *SLASH_KINDS])


async def list_checkpoints(context: AppContext, params: QueryParams) -> ResultPage:
    taken, cursor = await read_page(context, params, ["CheckpointPublished"])
    return ResultPage(tuple(log_rows.checkpoint_row(context.core.state, opened) for opened in taken), cursor)


async def list_refused(context: AppContext, params: QueryParams) -> ResultPage:
    found = await context.log.list_refused(limit=params.limit)
    names = schemas.RefusedRow.__slots__
    return ResultPage(
        tuple(schemas.RefusedRow(**{name: getattr(each, name) for name in names}) for each in found), None
    )


async def list_entries(context: AppContext, params: QueryParams) -> ResultPage:
    kinds = [params.kind] if params.kind else []
    taken, cursor = await read_page(context, params, kinds, subject=params.subject, author=params.author)
    return ResultPage(tuple(map(log_rows.entry_row, taken)), cursor)


async def get_entry(context: AppContext, params: QueryParams) -> schemas.EntryDetail:
    index = params.index
    assert index is not None
    # An index past the end is not looked up: the largest one would overflow the database's 64-bit integers.
    found = await context.log.read(index, index + 1) if index < context.core.state.size else []
    if not found:
        raise make_unknown_error("index", index)
    (leaf,) = found
    folder = CoordinatorHome(context.config.folder).mirror

    def prove() -> tuple[str | None, tuple[str, ...]]:
        head = read_head_row(folder)
        if head.size <= index:
            return None, ()
        return head.note, prove_inclusion(folder, head, index, compute_leaf_hash(leaf))

    note, proof = await asyncio.to_thread(prove)
    summary = log_rows.entry_row(open_leaf(index, leaf))
    return schemas.EntryDetail(summary=summary, leaf="0x" + leaf.hex(), head=note, proof=proof)


async def get_head(context: AppContext, params: QueryParams) -> schemas.HeadRow:
    return await asyncio.to_thread(read_head_row, CoordinatorHome(context.config.folder).mirror)


async def get_consistency(context: AppContext, params: QueryParams) -> schemas.ConsistencyRow:
    assert params.old is not None
    return await asyncio.to_thread(
        prove_consistency, CoordinatorHome(context.config.folder).mirror, params.old, params.new
    )


# --- Proofs -----------------------------------------------------------------------------------------------------------


def read_head_row(folder: Path) -> schemas.HeadRow:
    """The newest signed head of the mirror."""
    raw = read_tree_head(folder)
    head = TreeHead.parse(SignedNote.parse(raw).text)
    return schemas.HeadRow(size=head.size, root=str(head.root), note=raw.decode())


def prove_inclusion(folder: Path, head: schemas.HeadRow, index: int, leaf: Digest) -> tuple[str, ...]:
    proof = build_inclusion_proof(index, head.size, read_nodes(folder, head.size))
    verify_inclusion(leaf, proof, index=index, size=head.size, root=Digest.parse(head.root))
    return tuple(map(str, proof))


def prove_consistency(folder: Path, old_size: int, new_size: int | None) -> schemas.ConsistencyRow:
    """Between any two sizes up to the newest head; neither needs a signed head of its own."""
    newest = read_head_row(folder).size
    new_size = newest if new_size is None else new_size
    if not old_size <= new_size <= newest:
        raise RemoteError("old" if old_size > new_size else "new", f"must be at most {min(new_size, newest)}")
    get_node = read_nodes(folder, newest)
    old_root, new_root = compute_root(old_size, get_node), compute_root(new_size, get_node)
    proof = build_consistency_proof(old_size, new_size, get_node)
    verify_consistency(proof, old_size=old_size, old_root=old_root, new_size=new_size, new_root=new_root)
    return schemas.ConsistencyRow(
        old_size=old_size,
        old_root=str(old_root),
        new_size=new_size,
        new_root=str(new_root),
        proof=tuple(map(str, proof)),
    )


def read_nodes(folder: Path, size: int) -> GetNode:
    """Reads nodes of the tree of this size; each tile is read once."""
    return make_node_reader(size, cache(partial(read_tile, folder)))


# --- Settlement -------------------------------------------------------------------------------------------------------


async def get_payout(context: AppContext, params: QueryParams) -> schemas.PayoutRow:
    assert params.run is not None and params.epoch is not None
    path = ChainFiles(context.config.folder).payout(params.run, params.epoch)
    try:
        plain = json.loads(await asyncio.to_thread(path.read_bytes))
    except FileNotFoundError:
        raise RefusalError(RefusalCode.UNKNOWN, "epoch", "has no payout root") from None
    paid = tuple(schemas.PaidRow(account=account, paid_nano=nano) for account, nano in plain["paid_nano"].items())
    return schemas.PayoutRow(run=plain["run"], epoch=plain["epoch"], size=plain["size"], paid=paid)


async def get_settlement(context: AppContext, params: QueryParams) -> schemas.SettlementRow:
    status, domain = context.settlement.describe(), context.core.state.domain
    return schemas.SettlementRow(
        kind=status["kind"],
        chain_id=domain.chain_id,
        court=str(domain.contract),
        head=status.get("head", 0),
        followed=max(0, status.get("followed", 0)),
        problem=status.get("problem", ""),
        pending=tuple(status.get("on_their_way", ())),
        refused=tuple(f"{action}: {why}" for action, why in status.get("put_off", {}).items()),
        anchors=tuple(schemas.AnchorRow(**row) for row in status.get("anchors", ())),
        promises=tuple(_promise_row(row) for row in status.get("promises", ())),
    )


def _promise_row(row: dict[str, Any]) -> schemas.PromiseRow:
    plain = {name: value for name, value in row.items() if name not in ("headSize", "maturesAt")}
    return schemas.PromiseRow(**plain, head_size=row["headSize"], matures_at_s=row["maturesAt"])
