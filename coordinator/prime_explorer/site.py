"""What each page is made of: parameters in, a view out, read from the index and from what else is known here.

Which page is where is in contents.py.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prime_explorer.asking import Ask
from prime_explorer.attendance import Attendances
from prime_explorer.constants import ANCHORS_SHOWN, EVIDENCE_BYTES_READ, ROLLOUT_FILE_BYTES_SHOWN, STEPS_DRAWN
from prime_explorer.live import Live, Objects
from prime_explorer.manifests import ManifestFacts, Manifests
from prime_explorer.margins import Strip, read_chunks
from prime_explorer.pages import (
    accounts,
    checkpoints,
    entries,
    network,
    nodes,
    overview,
    runs,
    search,
    slashes,
    submissions,
)
from prime_explorer.pages.tables import Rows
from prime_explorer.reading import Db, Reader
from prime_explorer.rollout_texts import Model, RolloutsShown, find_model, read_texts, refuse
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId

View = Any
MANIFESTS_AT_ONCE = 5 * STEPS_DRAWN
"""Newest checkpoints whose sizes a run's page shows."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where pages get what they show."""

    reader: Reader
    mirror: Path
    live: Live
    objects: Objects
    manifests: Manifests
    attendances: Attendances
    models: tuple[Model, ...] = ()

    async def read_manifest(self, digest: str, run: str, idx: int) -> ManifestFacts | None:
        """`idx` is the entry that published it: its author is who signed the manifest."""

        def find(db: Db) -> tuple[str, bytes]:
            author = db.value("SELECT author FROM entries WHERE idx=?", idx)
            return db.facts()["network"], author

        name, author = await self.reader.ask(find)
        return await self.manifests.read(
            Digest.parse(digest), network=NetworkId(name), run=RunId(run), trainer=NodeId(author)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutView:
    """What is read here."""

    network: str
    origin: str
    log_key: str
    is_key_given: bool
    size: int
    head_size: int


async def show_overview(site: Site, ask: Ask) -> View:
    attendance = site.live.count()
    return await site.reader.ask(lambda db: overview.read_overview(db, attendance))


async def show_run(site: Site, ask: Ask) -> View:
    run, before, attendance = ask.run(), ask.number("before"), site.live.count()
    assert run is not None
    view = await site.reader.ask(lambda db: runs.read_run(db, run, before, attendance))
    if view is None:
        return None
    newest = view.charted[-MANIFESTS_AT_ONCE:]
    facts = await asyncio.gather(*(site.read_manifest(step.manifest, run, step.idx) for step in newest))
    known = ((step, found) for step, found in zip(newest, facts, strict=True) if found is not None)
    weights = (
        runs.WeightsRow(
            step=step.step, kind=found.kind, transport_bytes=found.transport_bytes, full_bytes=found.full_bytes
        )
        for step, found in known
    )
    return replace(view, weights=tuple(weights))


async def show_checkpoint(site: Site, ask: Ask) -> View:
    run, step, before = ask.run(), ask.number("step"), ask.number("before")
    assert run is not None
    assert step is not None
    view = await site.reader.ask(lambda db: checkpoints.read_checkpoint(db, run, step, before))
    if view is None:
        return None
    facts = await site.read_manifest(view.step.manifest, run, view.step.idx)
    return replace(view, manifest=facts)


async def show_nodes(site: Site, ask: Ask) -> View:
    order = ask.choice("order", nodes.ORDERS, "units")
    role, status = ask.choice("role", nodes.ROLES), ask.choice("status", nodes.STATUSES)
    owner, after, query = ask.node("owner"), ask.place(), ask.text("q")

    def read(db: Db) -> nodes.NodesView:
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

    view = await site.reader.ask(read)
    listed = [NodeId.parse(row.node) for row in view.nodes.rows]
    return replace(view, presence=site.live.get_presence(listed), uptime=await site.attendances.read(listed))


async def show_node(site: Site, ask: Ask) -> View:
    node = ask.node("node")
    assert node is not None
    view = await site.reader.ask(lambda db: nodes.read_node(db, node) or accounts.read_account(db, node))
    if not isinstance(view, nodes.NodeView):
        return view
    presence = site.live.get_presence([node])
    refused = await site.live.list_refused(node)
    return replace(
        view,
        presence=presence[str(node)] if presence else None,
        sent_bytes=site.live.get_sent_bytes(node),
        uptime=(await site.attendances.read([node])).get(str(node)),
        refused=None if refused is None else tuple(refused),
    )


async def show_submissions(site: Site, ask: Ask) -> View:
    run, node, before = ask.run(), ask.node("node"), ask.number("before")
    state = ask.choice("state", submissions.PROGRESS)
    found = await site.reader.ask(lambda db: submissions.read_submissions(db, run, node, state, before))
    return submissions.SubmissionsView(run=run or "", node=str(node or ""), state=state, submissions=found)


async def show_submission(site: Site, ask: Ask) -> View:
    name, first = ask.digest("submission"), ask.number("first", 10**6) or 0
    assert name is not None
    view = await site.reader.ask(lambda db: submissions.read_submission(db, name))
    if view is None:
        return None
    return replace(view, rollouts=await _read_rollouts(site, view, first), chunk_strips=await _read_chunks(site, view))


async def _read_rollouts(site: Site, view: submissions.SubmissionView, first: int) -> RolloutsShown | None:
    if view.file_bytes > ROLLOUT_FILE_BYTES_SHOWN:
        return refuse("the file is too large for a page; download it")
    data = await site.objects.read(Digest.parse(view.file_digest), view.file_bytes)
    if data is None:
        return None
    row = view.summary
    terms = await site.reader.ask(lambda db: submissions.read_terms(db, row.run))
    lease = {"first_slot": row.first_slot, "slots": row.slots, "samples": row.samples}
    return await site.reader.run(lambda: read_texts(data, terms, lease, first, find_model(site.models, terms)))


async def _read_chunks(site: Site, view: submissions.SubmissionView) -> tuple[Strip, ...]:
    """Of the first evidence bundle that is here."""
    for name in dict.fromkeys(each.summary.evidence for each in view.verdicts if each.summary.outcome == "hard"):
        data = await site.objects.read(Digest.parse(name), EVIDENCE_BYTES_READ)
        if data is not None:
            return await site.reader.run(partial(read_chunks, data, view.tolerance))
    return ()


async def show_slashes(site: Site, ask: Ask) -> View:
    run, before = ask.run(), ask.number("before")
    found = await site.reader.ask(lambda db: slashes.read_slashes(db, run, before))
    return slashes.SlashesView(run=run or "", slashes=found)


async def show_slash(site: Site, ask: Ask) -> View:
    name = ask.digest("submission")
    assert name is not None
    return await site.reader.ask(lambda db: slashes.read_slash(db, name))


async def show_entries(site: Site, ask: Ask) -> View:
    kind, run, before = ask.choice("kind", entries.KINDS), ask.run(), ask.number("before")
    about, author = ask.subject("about"), ask.node("author")
    found = await site.reader.ask(
        lambda db: entries.read_entries(db, kind=kind, run=run, about=about, author=author, before=before)
    )
    return entries.EntriesView(
        kind=kind, run=run or "", about="0x" + about.hex() if about else "", author=str(author or ""), entries=found
    )


async def show_entry(site: Site, ask: Ask) -> View:
    index = ask.number("index")
    assert index is not None
    return await site.reader.ask(lambda db: entries.read_entry(db, site.mirror, index))


async def show_heads(site: Site, ask: Ask) -> View:
    before, old, new = ask.number("before"), ask.number("old"), ask.number("new")
    if old is not None and new is not None and old > new:
        raise RemoteError("old", f"is {old:,}, more than the newer head's {new:,}")
    view = await site.reader.ask(lambda db: entries.read_heads(db, before))
    anchors = tuple((site.live.list_anchors() or ())[:ANCHORS_SHOWN])
    return replace(view, old=old, new=new, anchors=anchors)


async def show_network(site: Site, ask: Ask) -> View:
    run = ask.run()
    view = await site.reader.ask(lambda db: network.read_network(db, run))
    if view is None or not view.run:
        return view
    serving = site.live.list_serving(RunId(view.run))
    if serving is None:
        return view
    return replace(view, serving=tuple(serving), ahead=sum(view.latest_manifest in each.manifests for each in serving))


async def show_search(site: Site, ask: Ask) -> View:
    query = ask.text("q")
    return await site.reader.ask(lambda db: search.search(db, query))


async def show_about(site: Site, ask: Ask) -> View:
    facts = await site.reader.ask(Db.facts)
    return AboutView(
        network=facts.get("network", ""),
        origin=facts.get("origin", ""),
        log_key=facts.get("log_key", ""),
        is_key_given=bool(facts.get("is_key_given")),
        size=facts.get("size", 0),
        head_size=facts.get("head_size", 0),
    )
