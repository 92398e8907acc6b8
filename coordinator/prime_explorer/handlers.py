"""Page handlers: parameters in, a view out, read from the index and the other sources.

The parameters are in params.py, the paths of the pages in routes.py.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prime_explorer.config import ANCHORS_SHOWN, EVIDENCE_BYTES_READ, ROLLOUT_FILE_BYTES_SHOWN, STEPS_DRAWN
from prime_explorer.index.store import IndexReader, ReadTransaction
from prime_explorer.pages import entries, nodes, overview, proofs, runs, search, submissions
from prime_explorer.pages.keys import RotatedKeySummary, read_rotations
from prime_explorer.pages.live import NodeCounts
from prime_explorer.pages.rollouts import (
    RolloutsView,
    RunTokenizer,
    find_tokenizer,
    make_unavailable,
    read_rollout_views,
)
from prime_explorer.pages.submissions import MetricStrip, read_chunk_strips
from prime_explorer.pages.tables import (
    AppealSummary,
    CheckpointSummary,
    EntrySummary,
    LeaseSummary,
    Rows,
    SubmissionSummary,
    VerdictSummary,
    read_rows,
)
from prime_explorer.params import PageParams
from prime_explorer.sources import LiveState, ManifestCache, ManifestFacts, ObjectSource, UptimeCounter
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId

View = Any
MANIFESTS_AT_ONCE = 5 * STEPS_DRAWN
"""Newest checkpoints whose sizes the page of a run shows."""


class NotLive(Exception):
    """The page shows what only a running coordinator knows."""


@dataclass(frozen=True, slots=True)
class PageContext:
    """The sources that handlers read from."""

    reader: IndexReader
    mirror: Path
    live: LiveState | None
    """None: this explorer has only a mirror of the log."""
    objects: ObjectSource
    manifests: ManifestCache
    uptime: UptimeCounter
    models: tuple[RunTokenizer, ...] = ()

    def count_online(self) -> NodeCounts | None:
        return self.live.count() if self.live else None

    def require_live(self) -> LiveState:
        if self.live is None:
            raise NotLive
        return self.live

    async def find_expired(self, names: Sequence[str]) -> dict[str, int]:
        """When those of these files expired that are deleted."""
        found = await self.objects.find_expired([Digest.parse(name) for name in dict.fromkeys(names)])
        return {str(digest): at_ms for digest, at_ms in found.items()}

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
    rotations: tuple[RotatedKeySummary, ...]
    """Keys that the log had before, newest first."""
    is_key_given: bool
    size: int
    head_size: int


async def show_overview(context: PageContext, params: PageParams) -> View:
    online = context.count_online()
    return await context.reader.query(lambda db: overview.read_overview(db, online))


async def list_runs(context: PageContext, params: PageParams) -> View:
    return await context.reader.query(lambda db: overview.read_runs(db, params.before, params.limit))


async def show_run(context: PageContext, params: PageParams) -> View:
    run, online = params.run, context.count_online()
    assert run is not None
    view = await context.reader.query(lambda db: runs.read_run(db, run, params.before, online))
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


async def list_checkpoints(context: PageContext, params: PageParams) -> View:
    index = "steps_by_run" if params.run else "steps_by_place"
    return await _list(context, params, CheckpointSummary, index, run=params.run)


async def show_checkpoint(context: PageContext, params: PageParams) -> View:
    run, step = params.run, params.step
    assert run is not None
    assert step is not None
    view = await context.reader.query(lambda db: runs.read_checkpoint(db, run, step, params.before))
    if view is None:
        return None
    facts = await context.read_manifest(view.step.manifest, run, view.step.idx)
    return replace(view, manifest=facts, expired=await context.find_expired([view.step.manifest]))


async def show_nodes(context: PageContext, params: PageParams) -> View:
    among = context.require_live().list_phase(params.phase) if params.phase else None

    def read(db: ReadTransaction) -> nodes.NodesView:
        if params.q:
            found = Rows(search.search(db, params.q).nodes)
        else:
            found = nodes.read_nodes(
                db,
                order=params.order,
                role=params.role,
                status=params.status,
                owner=params.owner,
                among=among,
                after=params.after,
                limit=params.limit,
            )
        is_whole = not (params.q or params.role or params.status or params.phase or params.owner or params.after)
        return nodes.NodesView(
            order=params.order,
            role=params.role,
            status=params.status,
            phase=params.phase,
            owner=str(params.owner or ""),
            query=params.q,
            nodes=found,
            presence=None,
            uptime={},
            rank=1 if is_whole else 0,
        )

    view = await context.reader.query(read)
    listed = [NodeId.parse(row.node) for row in view.nodes.rows]
    presence = context.live.get_presence(listed) if context.live else None
    return replace(view, presence=presence, uptime=await context.uptime.get_uptime(listed))


async def show_node(context: PageContext, params: PageParams) -> View:
    node, live = params.node, context.live
    assert node is not None
    view = await context.reader.query(lambda db: nodes.read_node(db, node) or nodes.read_account(db, node))
    if not isinstance(view, nodes.NodeView) or live is None:
        return view
    return replace(
        view,
        presence=live.get_presence([node])[str(node)],
        work=live.get_work(node),
        sent_bytes=live.get_sent_bytes(node),
        uptime=(await context.uptime.get_uptime([node])).get(str(node)),
        refused=tuple(await live.list_refused(node)),
    )


async def list_leases(context: PageContext, params: PageParams) -> View:
    index = "leases_open_by_node" if params.node else "leases_open_by_run" if params.run else "leases_open"
    return await _list(context, params, LeaseSummary, index, run=params.run, node=params.node)


async def show_submissions(context: PageContext, params: PageParams) -> View:
    def read(db: ReadTransaction) -> Rows[SubmissionSummary]:
        return submissions.read_submissions(
            db, params.run, params.node, params.state, params.before, params.limit, params.step
        )

    found = await context.reader.query(read)
    return submissions.SubmissionsView(
        run=params.run or "", node=str(params.node or ""), state=params.state, submissions=found
    )


async def show_submission(context: PageContext, params: PageParams) -> View:
    name = params.submission
    assert name is not None
    view = await context.reader.query(lambda db: submissions.read_submission(db, name))
    if view is None:
        return None
    named = [view.file_digest, *([view.finding_evidence] if view.finding_evidence else []), *_list_evidence(view)]
    expired = await context.find_expired(named)
    return replace(
        view,
        rollouts=None if view.file_digest in expired else await _read_rollouts(context, view, params.first),
        chunk_strips=await _read_chunks(context, view),
        expired=expired,
    )


def _list_evidence(view: submissions.SubmissionView | submissions.SlashView) -> list[str]:
    """The bundles that its page links to: only verdicts of fraud have one."""
    return [each.summary.evidence for each in view.verdicts if each.summary.outcome == "fraudulent"]


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
    for name in dict.fromkeys([*_list_evidence(view), *([view.finding_evidence] if view.finding_evidence else [])]):
        data = await context.objects.read(Digest.parse(name), EVIDENCE_BYTES_READ)
        if data is not None:
            return await context.reader.run_in_thread(partial(read_chunk_strips, data, view.tolerance))
    return ()


async def list_verdicts(context: PageContext, params: PageParams) -> View:
    index = "verdicts_by_run" if params.run else ""
    index = "verdicts_by_validator" if params.node else index
    index = "verdicts_by_submission" if params.submission else index
    where = {"run": params.run, "validator": params.node, "submission": params.submission}
    return await _list(context, params, VerdictSummary, index, **where)


async def show_slashes(context: PageContext, params: PageParams) -> View:
    found = await context.reader.query(lambda db: submissions.read_slashes(db, params.run, params.before, params.limit))
    return submissions.SlashesView(run=params.run or "", slashes=found)


async def show_slash(context: PageContext, params: PageParams) -> View:
    name = params.submission
    assert name is not None
    view = await context.reader.query(lambda db: submissions.read_slash(db, name))
    if view is None:
        return None
    return replace(view, expired=await context.find_expired([view.evidence, *_list_evidence(view)]))


async def list_appeals(context: PageContext, params: PageParams) -> View:
    index = "slashes_appealed_by_run" if params.run else "slashes_appealed"
    return await _list(context, params, AppealSummary, index, run=params.run)


async def _list(context: PageContext, params: PageParams, row: type, index: str, **where: Any) -> Rows[Any]:
    return await context.reader.query(
        lambda db: read_rows(db, row, before=params.before, limit=params.limit, index=index, **where)
    )


async def show_entries(context: PageContext, params: PageParams) -> View:
    def read(db: ReadTransaction) -> Rows[EntrySummary]:
        return entries.read_entries(
            db,
            kind=params.kind,
            run=params.run,
            about=params.about,
            author=params.author,
            before=params.before,
            limit=params.limit,
        )

    return entries.EntriesView(
        kind=params.kind,
        run=params.run or "",
        about="0x" + params.about.hex() if params.about else "",
        author=str(params.author or ""),
        entries=await context.reader.query(read),
    )


async def show_entry(context: PageContext, params: PageParams) -> View:
    index = params.index
    assert index is not None
    return await context.reader.query(lambda db: entries.read_entry(db, context.mirror, index))


async def show_heads(context: PageContext, params: PageParams) -> View:
    old, new = params.old, params.new
    if old is not None and new is not None and old > new:
        raise RemoteError("old", f"is {old:,}, more than the newer head's {new:,}")
    view = await context.reader.query(lambda db: entries.read_heads(db, params.before, params.limit))
    anchors = context.live.list_anchors() if context.live else []
    return replace(view, old=old, new=new, anchors=tuple(anchors[:ANCHORS_SHOWN]))


async def show_newest_head(context: PageContext, params: PageParams) -> View:
    return await context.reader.run_in_thread(lambda: proofs.read_newest_head(context.mirror))


async def show_consistency(context: PageContext, params: PageParams) -> View:
    old = params.old
    assert old is not None
    return await context.reader.run_in_thread(lambda: proofs.prove_consistency(context.mirror, old, params.new))


async def show_network(context: PageContext, params: PageParams) -> View:
    view = await context.reader.query(lambda db: overview.read_network(db, params.run))
    if view is None or not view.run or context.live is None:
        return view
    serving = context.live.list_serving(RunId(view.run))
    return replace(view, serving=tuple(serving), ahead=sum(view.latest_manifest in each.manifests for each in serving))


async def show_search(context: PageContext, params: PageParams) -> View:
    return await context.reader.query(lambda db: search.search(db, params.q))


async def show_about(context: PageContext, params: PageParams) -> View:
    facts = await context.reader.query(ReadTransaction.read_meta)
    return AboutView(
        network=facts.get("network", ""),
        origin=facts.get("origin", ""),
        log_key=facts.get("log_key", ""),
        rotations=read_rotations(facts),
        is_key_given=bool(facts.get("is_key_given")),
        size=facts.get("size", 0),
        head_size=facts.get("head_size", 0),
    )


# --- From a running coordinator ---------------------------------------------------------------------------------------


async def show_status(context: PageContext, params: PageParams) -> View:
    return context.require_live().get_status()


async def show_settlement(context: PageContext, params: PageParams) -> View:
    return context.require_live().get_settlement()


async def show_payout(context: PageContext, params: PageParams) -> View:
    assert params.run is not None
    assert params.epoch is not None
    return await context.require_live().get_payout(params.run, params.epoch)


async def list_refused(context: PageContext, params: PageParams) -> View:
    return Rows(tuple((await context.require_live().list_refused())[: params.limit]))
