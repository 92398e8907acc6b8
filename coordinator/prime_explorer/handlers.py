"""Page handlers: parameters in, a view out, read from the index and the other sources.

Every parameter has exactly one accepted spelling. The paths of the pages are in routes.py.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prime_explorer.config import (
    ANCHORS_SHOWN,
    EVIDENCE_BYTES_READ,
    QUERY_CHARS_MAX,
    ROLLOUT_FILE_BYTES_SHOWN,
    STEPS_DRAWN,
)
from prime_explorer.index.store import IndexReader, ReadTransaction
from prime_explorer.pages import entries, nodes, overview, runs, search, submissions
from prime_explorer.pages.rollouts import (
    RolloutsView,
    RunTokenizer,
    find_tokenizer,
    make_unavailable,
    read_rollout_views,
)
from prime_explorer.pages.submissions import MetricStrip, read_chunk_strips
from prime_explorer.pages.tables import Rows
from prime_explorer.sources import LiveState, ManifestCache, ManifestFacts, ObjectSource, UptimeCounter
from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId

NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
CURSOR = re.compile(r"([0-9]{1,19})\.(0x[0-9a-f]{40})")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageParams:
    """The parameters of path and query. An empty parameter counts as absent, because HTML forms send them."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.values.get(name, "").strip()[:QUERY_CHARS_MAX]

    def number(self, name: str, most: int = LOG_ENTRIES_MAX) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not NUMBER.fullmatch(text) or int(text) > most:
            raise RemoteError(name, f"is not a whole number from 0 to {most:,}")
        return int(text)

    def choice(self, name: str, choices: Mapping[str, T], otherwise: str = "") -> str:
        text = self.text(name) or otherwise
        if text and text not in choices:
            raise RemoteError(name, f"is not one of {', '.join(choices)}")
        return text

    def node(self, name: str) -> NodeId | None:
        return _parse_id(name, self.text(name), NodeId)

    def digest(self, name: str) -> Digest | None:
        return _parse_id(name, self.text(name), Digest)

    def run(self, name: str = "run") -> RunId | None:
        text = self.text(name)
        try:
            return RunId(text) if text else None
        except RemoteError as error:
            raise RemoteError(name, error.problem) from None

    def subject(self, name: str) -> bytes | None:
        """An address or a digest."""
        text = self.text(name).lower()
        return _parse_id(name, text, NodeId if len(text) < 50 else Digest)

    def cursor(self, name: str = "after") -> tuple[int, bytes] | None:
        """Where a page of an ordered table starts: the last row's number and node."""
        text = self.text(name)
        if not text:
            return None
        match = CURSOR.fullmatch(text)
        if not match:
            raise RemoteError(name, "is not a position in this table; go back to its first page")
        return int(match[1]), bytes.fromhex(match[2][2:])


def _parse_id(name: str, text: str, kind: type[T]) -> T | None:
    if not text:
        return None
    try:
        return kind.parse(text)  # type: ignore[attr-defined, no-any-return]
    except RemoteError as error:
        raise RemoteError(name, error.problem) from None


View = Any
MANIFESTS_AT_ONCE = 5 * STEPS_DRAWN
"""Newest checkpoints whose sizes the page of a run shows."""


@dataclass(frozen=True, slots=True)
class PageContext:
    """The sources that handlers read from."""

    reader: IndexReader
    mirror: Path
    live: LiveState
    objects: ObjectSource
    manifests: ManifestCache
    uptime: UptimeCounter
    models: tuple[RunTokenizer, ...] = ()

    async def read_manifest(self, digest: str, run: str, idx: int) -> ManifestFacts | None:
        """`idx` is the entry that published it; the author of that entry signed the manifest."""

        def find(db: ReadTransaction) -> tuple[str, bytes]:
            author = db.value("SELECT author FROM entries WHERE idx=?", idx)
            return db.read_meta()["network"], author

        name, author = await self.reader.query(find)
        return await self.manifests.read(
            Digest.parse(digest), network=NetworkId(name), run=RunId(run), trainer=NodeId(author)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutView:
    """The log that this explorer reads."""

    network: str
    origin: str
    log_key: str
    is_key_given: bool
    size: int
    head_size: int


async def show_overview(context: PageContext, params: PageParams) -> View:
    online = context.live.count()
    return await context.reader.query(lambda db: overview.read_overview(db, online))


async def show_run(context: PageContext, params: PageParams) -> View:
    run, before, online = params.run(), params.number("before"), context.live.count()
    assert run is not None
    view = await context.reader.query(lambda db: runs.read_run(db, run, before, online))
    if view is None:
        return None
    newest = view.charted[-MANIFESTS_AT_ONCE:]
    facts = await asyncio.gather(*(context.read_manifest(step.manifest, run, step.idx) for step in newest))
    known = ((step, found) for step, found in zip(newest, facts, strict=True) if found is not None)
    weights = (
        runs.CheckpointSize(
            step=step.step, kind=found.kind, transport_bytes=found.transport_bytes, full_bytes=found.full_bytes
        )
        for step, found in known
    )
    return replace(view, weights=tuple(weights))


async def show_checkpoint(context: PageContext, params: PageParams) -> View:
    run, step, before = params.run(), params.number("step"), params.number("before")
    assert run is not None
    assert step is not None
    view = await context.reader.query(lambda db: runs.read_checkpoint(db, run, step, before))
    if view is None:
        return None
    facts = await context.read_manifest(view.step.manifest, run, view.step.idx)
    return replace(view, manifest=facts)


async def show_nodes(context: PageContext, params: PageParams) -> View:
    order = params.choice("order", nodes.NODE_ORDERS, "units")
    role, status = params.choice("role", nodes.ROLE_COLUMNS), params.choice("status", nodes.NODE_STATUSES)
    owner, after, query = params.node("owner"), params.cursor(), params.text("q")

    def read(db: ReadTransaction) -> nodes.NodesView:
        if query:
            found = Rows(search.search(db, query).nodes)
        else:
            found = nodes.read_nodes(db, order=order, role=role, status=status, owner=owner, after=after)
        is_whole = not (query or role or status or owner or after)
        return nodes.NodesView(
            order=order,
            role=role,
            status=status,
            owner=str(owner or ""),
            query=query,
            nodes=found,
            presence=None,
            uptime={},
            rank=1 if is_whole else 0,
        )

    view = await context.reader.query(read)
    listed = [NodeId.parse(row.node) for row in view.nodes.rows]
    return replace(view, presence=context.live.get_presence(listed), uptime=await context.uptime.get_uptime(listed))


async def show_node(context: PageContext, params: PageParams) -> View:
    node = params.node("node")
    assert node is not None
    view = await context.reader.query(lambda db: nodes.read_node(db, node) or nodes.read_account(db, node))
    if not isinstance(view, nodes.NodeView):
        return view
    presence = context.live.get_presence([node])
    refused = await context.live.list_refused(node)
    return replace(
        view,
        presence=presence[str(node)] if presence else None,
        sent_bytes=context.live.get_sent_bytes(node),
        uptime=(await context.uptime.get_uptime([node])).get(str(node)),
        refused=None if refused is None else tuple(refused),
    )


async def show_submissions(context: PageContext, params: PageParams) -> View:
    run, node, before = params.run(), params.node("node"), params.number("before")
    state = params.choice("state", submissions.SUBMISSION_PROGRESS)
    found = await context.reader.query(lambda db: submissions.read_submissions(db, run, node, state, before))
    return submissions.SubmissionsView(run=run or "", node=str(node or ""), state=state, submissions=found)


async def show_submission(context: PageContext, params: PageParams) -> View:
    name, first = params.digest("submission"), params.number("first", 10**6) or 0
    assert name is not None
    view = await context.reader.query(lambda db: submissions.read_submission(db, name))
    if view is None:
        return None
    return replace(
        view, rollouts=await _read_rollouts(context, view, first), chunk_strips=await _read_chunks(context, view)
    )


async def _read_rollouts(context: PageContext, view: submissions.SubmissionView, first: int) -> RolloutsView | None:
    if view.file_bytes > ROLLOUT_FILE_BYTES_SHOWN:
        return make_unavailable("the file is too large for a page; download it")
    data = await context.objects.read(Digest.parse(view.file_digest), view.file_bytes)
    if data is None:
        return None
    row = view.summary
    terms = await context.reader.query(lambda db: submissions.read_terms(db, row.run))
    lease = {"first_slot": row.first_slot, "slots": row.slots, "samples": row.samples}
    return await context.reader.run_in_thread(
        lambda: read_rollout_views(data, terms, lease, first, find_tokenizer(context.models, terms))
    )


async def _read_chunks(context: PageContext, view: submissions.SubmissionView) -> tuple[MetricStrip, ...]:
    """The strips of the first evidence bundle that is available."""
    for name in dict.fromkeys(each.summary.evidence for each in view.verdicts if each.summary.outcome == "fraudulent"):
        data = await context.objects.read(Digest.parse(name), EVIDENCE_BYTES_READ)
        if data is not None:
            return await context.reader.run_in_thread(partial(read_chunk_strips, data, view.tolerance))
    return ()


async def show_slashes(context: PageContext, params: PageParams) -> View:
    run, before = params.run(), params.number("before")
    found = await context.reader.query(lambda db: submissions.read_slashes(db, run, before))
    return submissions.SlashesView(run=run or "", slashes=found)


async def show_slash(context: PageContext, params: PageParams) -> View:
    name = params.digest("submission")
    assert name is not None
    return await context.reader.query(lambda db: submissions.read_slash(db, name))


async def show_entries(context: PageContext, params: PageParams) -> View:
    kind, run, before = params.choice("kind", entries.ENTRY_KINDS), params.run(), params.number("before")
    about, author = params.subject("about"), params.node("author")
    found = await context.reader.query(
        lambda db: entries.read_entries(db, kind=kind, run=run, about=about, author=author, before=before)
    )
    return entries.EntriesView(
        kind=kind, run=run or "", about="0x" + about.hex() if about else "", author=str(author or ""), entries=found
    )


async def show_entry(context: PageContext, params: PageParams) -> View:
    index = params.number("index")
    assert index is not None
    return await context.reader.query(lambda db: entries.read_entry(db, context.mirror, index))


async def show_heads(context: PageContext, params: PageParams) -> View:
    before, old, new = params.number("before"), params.number("old"), params.number("new")
    if old is not None and new is not None and old > new:
        raise RemoteError("old", f"is {old:,}, more than the newer head's {new:,}")
    view = await context.reader.query(lambda db: entries.read_heads(db, before))
    anchors = tuple((context.live.list_anchors() or ())[:ANCHORS_SHOWN])
    return replace(view, old=old, new=new, anchors=anchors)


async def show_network(context: PageContext, params: PageParams) -> View:
    run = params.run()
    view = await context.reader.query(lambda db: overview.read_network(db, run))
    if view is None or not view.run:
        return view
    serving = context.live.list_serving(RunId(view.run))
    if serving is None:
        return view
    return replace(view, serving=tuple(serving), ahead=sum(view.latest_manifest in each.manifests for each in serving))


async def show_search(context: PageContext, params: PageParams) -> View:
    query = params.text("q")
    return await context.reader.query(lambda db: search.search(db, query))


async def show_about(context: PageContext, params: PageParams) -> View:
    facts = await context.reader.query(ReadTransaction.read_meta)
    return AboutView(
        network=facts.get("network", ""),
        origin=facts.get("origin", ""),
        log_key=facts.get("log_key", ""),
        is_key_given=bool(facts.get("is_key_given")),
        size=facts.get("size", 0),
        head_size=facts.get("head_size", 0),
    )
