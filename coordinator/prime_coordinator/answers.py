"""What the coordinator answers to readers: one function for each question; questions.py has the table of them.

Nothing here changes anything. The state is read without waiting; the log and the mirror are read in threads.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from prime_coordinator import history, listings, rows
from prime_coordinator.asking import Ask, Page
from prime_coordinator.constants import PAGE_LEAF_BYTES_MAX, PAGE_SCAN_MAX
from prime_coordinator.desk import Desk
from prime_coordinator.history import SLASH_KINDS, Opened, Story, open_leaf
from prime_coordinator.home import Home
from prime_coordinator.proofs import prove_consistency, prove_inclusion, read_head_row
from prime_protocol.entries import Submitted
from prime_protocol.exchange import RefusalCode
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.merkle import leaf_hash
from prime_protocol.receipts import receipt_id
from prime_protocol.state import RunState
from prime_runtime.http_body import RefuseRequest

STORY_MAX = 200
"""Entries about one submission: at most 16 rounds of 15 validators, in practice a dozen."""


def unknown(field: str, what: object) -> RefuseRequest:
    return RefuseRequest(RefusalCode.UNKNOWN, field, f"{what} is not known here")


# --- From the state -------------------------------------------------------------------------------------------------


async def get_status(desk: Desk, ask: Ask) -> rows.StatusRow:
    return listings.status_row(desk.core, desk.config.network_id, desk.now_ms())


async def list_runs(desk: Desk, ask: Ask) -> Page:
    state = desk.core.state
    start = ask.cursor[0] if ask.cursor else 0
    found = list(islice(state.runs.items(), start, start + ask.limit))
    after = start + len(found)
    page = tuple(listings.run_row(state, name, run) for name, run in found)
    return Page(page, str(after) if after < len(state.runs) else None)


async def get_run(desk: Desk, ask: Ask) -> rows.RunDetail:
    name, run = find_run(desk, ask.run)
    return listings.run_detail(desk.core.state, name, run)


def find_run(desk: Desk, name: RunId | None) -> tuple[RunId, RunState]:
    if name is None or name not in desk.core.state.runs:
        raise unknown("run", name)
    return name, desk.core.state.runs[name]


async def list_nodes(desk: Desk, ask: Ask) -> Page:
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
    return Page(tuple(found), str(place) if place < len(desk.core.state.nodes) else None)


def _is_wanted(desk: Desk, ask: Ask, name: NodeId) -> bool:
    state = desk.core.state
    node = state.nodes[name]
    return (
        (ask.status is None or node.status is ask.status)
        and (ask.role is None or ask.role in node.roles)
        and (ask.owner is None or state.owners[name] == ask.owner)
        and (ask.phase is None or desk.core.liveness.phase(name) is ask.phase)
    )


async def get_node(desk: Desk, ask: Ask) -> rows.NodeDetail:
    assert ask.node is not None
    if ask.node not in desk.core.state.nodes:
        raise unknown("node", ask.node)
    return listings.node_detail(desk.core, ask.node, desk.now_ms())


async def list_leases(desk: Desk, ask: Ask) -> Page:
    """By run, then by number; the cursor is the place of the run and the number of its last lease."""
    found = list(islice(_open_leases(desk, ask), ask.limit + 1))
    page = found[: ask.limit]
    cursor = f"{page[-1][0]}.{page[-1][1].lease}" if len(found) > len(page) else None
    return Page(tuple(row for _, row in page), cursor)


def _open_leases(desk: Desk, ask: Ask) -> Iterator[tuple[int, rows.LeaseRow]]:
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
    desk: Desk, ask: Ask, kinds: Sequence[str], *, subject: Any = None, author: Any = None
) -> tuple[list[Opened], str | None]:
    """Opened entries, newest first, and the cursor of the next page."""
    found = await desk.log.list_entries(
        kinds=kinds,
        author=author,
        run=ask.run,
        subject=subject,
        before=ask.cursor[0] if ask.cursor else None,
        limit=ask.limit,
    )
    taken: list[Opened] = []
    size = 0
    for listed in found:
        size += len(listed.leaf)
        if taken and size > PAGE_LEAF_BYTES_MAX:
            break
        taken.append(open_leaf(listed.index, listed.leaf))
    is_last = len(taken) == len(found) < ask.limit
    return taken, None if is_last or not taken else str(taken[-1].index)


async def read_story(desk: Desk, submission: Digest, kinds: Sequence[str] = ()) -> list[Opened]:
    """Every entry about a submission, oldest first."""
    found = await desk.log.list_entries(subject=submission, kinds=kinds, limit=STORY_MAX)
    return [open_leaf(listed.index, listed.leaf) for listed in reversed(found)]


async def list_submissions(desk: Desk, ask: Ask) -> Page:
    """Those of a step that is not over come from the state: a trainer asks for them every second."""
    run = desk.core.state.runs.get(ask.run) if ask.run is not None else None
    if run is not None and ask.run is not None and ask.step in run.steps:
        found = list(islice(_step_submissions(ask.run, run, ask), ask.limit + 1))
        return Page(tuple(found[: ask.limit]), str(found[ask.limit - 1].index) if len(found) > ask.limit else None)
    taken, cursor = await read_page(desk, ask, ["Submitted"], author=ask.node)
    found = [await _submission_row(desk, opened) for opened in taken]
    return Page(tuple(row for row in found if ask.step in (None, row.step) and _has_progress(ask, row)), cursor)


def _step_submissions(name: RunId, run: RunState, ask: Ask) -> Iterator[rows.SubmissionRow]:
    assert ask.step is not None
    for digest in reversed(run.steps[ask.step].submissions):
        row = listings.submission_row(name, digest, run.submissions[digest], run.submissions[digest].place.index)
        is_after = ask.cursor is None or row.index < ask.cursor[0]
        if is_after and (ask.node is None or row.node == str(ask.node)) and _has_progress(ask, row):
            yield row


def _has_progress(ask: Ask, row: rows.SubmissionRow) -> bool:
    return ask.progress in (None, row.progress)


async def _submission_row(desk: Desk, opened: Opened) -> rows.SubmissionRow:
    assert isinstance(opened.entry, Submitted)
    name, run = receipt_id(opened.entry.receipt), desk.core.state.runs[opened.run]
    if name in run.submissions:
        return listings.submission_row(opened.run, name, run.submissions[name], opened.index)
    return history.past_submission(run, await read_story(desk, name)).summary


async def get_submission(desk: Desk, ask: Ask) -> rows.SubmissionDetail:
    assert ask.submission is not None
    story = await read_story(desk, ask.submission)
    if not story or not isinstance(story[0].entry, Submitted):
        raise unknown("submission", ask.submission)
    name, run = find_run(desk, story[0].run)
    if ask.submission in run.submissions:
        return listings.submission_detail(name, run, ask.submission, story[0].index)
    return history.past_submission(run, story)


async def list_verdicts(desk: Desk, ask: Ask) -> Page:
    taken, cursor = await read_page(desk, ask, ["VerdictGiven"], subject=ask.submission, author=ask.node)
    return Page(tuple(map(history.verdict_row, taken)), cursor)


async def list_slashes(desk: Desk, ask: Ask) -> Page:
    taken, cursor = await read_page(desk, ask, ["SlashProposed"])
    stories = [await _slash_story(desk, opened) for opened in taken]
    return Page(tuple(history.slash_row(desk.core.state, story) for story in stories), cursor)


async def get_slash(desk: Desk, ask: Ask) -> rows.SlashRow:
    assert ask.submission is not None
    story = await read_story(desk, ask.submission, ["Submitted", *SLASH_KINDS])
    if history.slash_progress(story) is None:
        raise RefuseRequest(RefusalCode.UNKNOWN, "submission", f"{ask.submission} was not slashed")
    return history.slash_row(desk.core.state, story)


async def list_appeals(desk: Desk, ask: Ask) -> Page:
    taken, cursor = await read_page(desk, ask, ["Appealed"])
    stories = [await _slash_story(desk, opened) for opened in taken]
    return Page(tuple(map(history.appeal_row, stories)), cursor)


async def _slash_story(desk: Desk, opened: Any) -> Story:
    return await read_story(desk, opened.entry.submission, ["Submitted", *SLASH_KINDS])


async def list_checkpoints(desk: Desk, ask: Ask) -> Page:
    taken, cursor = await read_page(desk, ask, ["CheckpointPublished"])
    return Page(tuple(history.checkpoint_row(desk.core.state, opened) for opened in taken), cursor)


async def list_refused(desk: Desk, ask: Ask) -> Page:
    found = await desk.log.list_refused(limit=ask.limit)
    names = rows.RefusedRow.__slots__
    return Page(tuple(rows.RefusedRow(**{name: getattr(each, name) for name in names}) for each in found), None)


async def list_entries(desk: Desk, ask: Ask) -> Page:
    kinds = [ask.kind] if ask.kind else []
    taken, cursor = await read_page(desk, ask, kinds, subject=ask.subject, author=ask.author)
    return Page(tuple(map(history.entry_row, taken)), cursor)


async def get_entry(desk: Desk, ask: Ask) -> rows.EntryDetail:
    index = ask.index
    assert index is not None
    found = await desk.log.read(index, index + 1)
    if not found:
        raise unknown("index", index)
    (leaf,) = found
    folder = Home(desk.config.folder).mirror

    def prove() -> tuple[str | None, tuple[str, ...]]:
        head = read_head_row(folder)
        if head.size <= index:
            return None, ()
        return head.note, prove_inclusion(folder, head, index, leaf_hash(leaf))

    note, proof = await asyncio.to_thread(prove)
    summary = history.entry_row(open_leaf(index, leaf))
    return rows.EntryDetail(summary=summary, leaf="0x" + leaf.hex(), head=note, proof=proof)


async def get_head(desk: Desk, ask: Ask) -> rows.HeadRow:
    return await asyncio.to_thread(read_head_row, Home(desk.config.folder).mirror)


async def get_consistency(desk: Desk, ask: Ask) -> rows.ConsistencyRow:
    assert ask.old is not None
    return await asyncio.to_thread(prove_consistency, Home(desk.config.folder).mirror, ask.old, ask.new)
