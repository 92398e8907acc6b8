"""What readers are told: of open things from the state, of past ones from the log, page by page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.api.handlers import read_nodes
from prime_coordinator.api.queries import ResultPage, parse_query
from prime_coordinator.api.routes import ROUTES
from prime_coordinator.api.schemas import SlashProgress, SubmissionProgress
from prime_protocol.constants import TILE_HASHES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import NodeStatus, NodeStatusSet, Outcome, Role
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root, verify_consistency, verify_inclusion
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import NodeActivity
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.http.messages import RefusalError
from support.app_context import FakeAppContext
from support.ledger_network import HOUR_MS, MINUTE_MS, RUN, TOKEN, World
from support.mirrors import write_mirror


@asynccontextmanager
async def desk_of(world: World, folder: Path) -> AsyncIterator[FakeAppContext]:
    context = await FakeAppContext.open(world, folder)
    try:
        yield context
    finally:
        context.log.close()


async def ask(context: FakeAppContext, name: str, **given: str) -> Any:
    question = ROUTES[name]
    return await question.handler(context, parse_query(question, given))


async def ask_all(context: FakeAppContext, name: str, **given: str) -> list[Any]:
    """Every row, page after page."""
    rows: list[Any] = []
    page: ResultPage = await ask(context, name, **given)
    while True:
        rows += page.rows
        if page.next is None:
            return rows
        page = await ask(context, name, **given, cursor=page.next)


async def test_status_counts_what_is_there(tmp_path: Path) -> None:
    world = World.started()
    accepted = world.settled("ann", Outcome.ACCEPT, 0)
    world.convicted("bob", 1)
    world.credit(accepted)
    world.lease("ann", 2, 3)
    world.submit(world.lease("ann", 6))
    async with desk_of(world, tmp_path) as context:
        context.core.liveness.beat(world.id("ann"), NodeActivity.WORKING, 0, world.now_ms)
        status = await ask(context, "status")
    assert (status.nodes.registered, status.nodes.online, status.nodes.lost) == (11, 1, 10)
    assert (status.leases_open, status.slashes_open) == (1, 1)
    assert (status.submissions.accepted, status.submissions.fraudulent, status.submissions.waiting) == (1, 1, 1)
    assert status.entries == status.head_size == len(world.leaves)
    assert status.root == str(world.state.frontier.root())
    assert status.value.held_nano == world.state.funds.total_nano()
    (run,) = status.runs
    assert (run.run, run.slots_done, run.slots_held, run.validators) == (RUN, 1, 4, 9)


async def test_run_shows_its_terms_and_steps(tmp_path: Path) -> None:
    world = World.started()
    world.lease("ann", 0, 2)
    async with desk_of(world, tmp_path) as context:
        detail = await ask(context, "run", run=RUN)
        with pytest.raises(RefusalError) as refused:
            await ask(context, "run", run="another")
    assert refused.value.code is RefusalCode.UNKNOWN
    assert detail.terms["trainer"] == str(world.id("trainer"))
    assert [(step.step, step.slots_held, step.pending) for step in detail.steps] == [(0, 2, 1)]


async def test_pages_of_nodes_show_each_once_in_the_order_of_registration(tmp_path: Path) -> None:
    world = World.started(workers=tuple(f"worker-{number}" for number in range(11)))
    async with desk_of(world, tmp_path) as context:
        rows = await ask_all(context, "nodes", limit="4")
    assert [row.node for row in rows] == [str(node) for node in world.state.nodes]


async def test_page_of_nodes_ends_its_search_early_and_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_coordinator.api.handlers.PAGE_SCAN_MAX", 3)
    world = World.started()
    async with desk_of(world, tmp_path) as context:
        first = await ask(context, "nodes", role="validator")
        rows = await ask_all(context, "nodes", role="validator")
    assert (len(first.rows), first.next) == (1, "3")  # ann and bob came before
    assert len(rows) == 9


async def test_nodes_are_found_by_status_phase_and_owner(tmp_path: Path) -> None:
    world = World.started()
    world.coordinate(NodeStatusSet(node=world.id("bob"), status=NodeStatus.BANNED, reason="cheated"))
    world.join("eve", Role.WORKER, owner="boss")
    async with desk_of(world, tmp_path) as context:
        context.core.liveness.beat(world.id("ann"), NodeActivity.IDLE, -1, world.now_ms)
        banned = await ask_all(context, "nodes", status="banned")
        online = await ask_all(context, "nodes", phase="online")
        owned = await ask_all(context, "nodes", owner=str(world.id("boss")))
        detail = await ask(context, "node", node=str(world.id("bob")))
    assert [row.node for row in banned] == [str(world.id("bob"))]
    assert [(row.node, row.activity) for row in online] == [(str(world.id("ann")), "idle")]
    assert [row.node for row in owned] == [str(world.id("eve"))]
    assert detail.reason == "cheated"


async def test_node_shows_stake_leases_and_open_audits(tmp_path: Path) -> None:
    world = World.started(workers=("ann",))
    lease = world.lease("ann", 0, 2)
    name = world.submit(world.lease("ann", 4))
    validator = world.draw(name)[0]
    async with desk_of(world, tmp_path) as context:
        worker = await ask(context, "node", node=str(world.id("ann")))
        judge = await ask(context, "node", node=str(world.id(validator)))
        with pytest.raises(RefusalError, match="is not known here"):
            await ask(context, "node", node="0x" + "00" * 20)
    assert worker.summary.stake_nano == 100 * TOKEN
    assert [(row.lease, row.slots) for row in worker.leases] == [(lease, 2)]
    assert judge.audits == (str(name),)
    assert [(row.run, row.works) for row in worker.standings] == [(RUN, False)], "it has not beaten yet"


async def test_pages_of_leases_cover_all_runs(tmp_path: Path) -> None:
    world = World.started()
    for slot in range(5):
        world.lease("ann" if slot % 2 else "bob", slot)
    async with desk_of(world, tmp_path) as context:
        rows = await ask_all(context, "leases", limit="2")
        of_ann = await ask_all(context, "leases", node=str(world.id("ann")), run=RUN)
        with pytest.raises(RefusalError):
            await ask(context, "leases", run="another")
    assert [row.first_slot for row in rows] == [0, 1, 2, 3, 4]
    assert [row.first_slot for row in of_ann] == [1, 3]


async def test_submission_is_followed_from_intake_to_verdict(tmp_path: Path) -> None:
    world = World.started()
    waiting = world.submit(world.lease("ann", 0))
    auditing = world.submit(world.lease("ann", 1))
    drawn = world.judge(auditing, Outcome.ACCEPT)
    accepted = world.settled("bob", Outcome.ACCEPT, 2)
    async with desk_of(world, tmp_path) as context:
        rows = {row.submission: row for row in await ask_all(context, "submissions", limit="2")}
        of_bob = await ask_all(context, "submissions", node=str(world.id("bob")))
        detail = await ask(context, "submission", submission=str(auditing))
        verdicts = await ask_all(context, "verdicts", submission=str(auditing))
    assert {name: row.progress for name, row in rows.items()} == {
        str(waiting): SubmissionProgress.WAITING,
        str(auditing): SubmissionProgress.AUDITING,
        str(accepted): SubmissionProgress.ACCEPTED,
    }
    assert [row.submission for row in of_bob] == [str(accepted)]
    assert detail.rounds[0].validators == tuple(str(world.id(name)) for name in drawn)
    assert detail.rounds[0].verdicts == {str(world.id(drawn[0])): "accept"}
    assert [(row.validator, row.outcome, row.metrics) for row in verdicts] == [
        (str(world.id(drawn[0])), "accept", {"margin": 0.25})
    ]


async def test_submission_of_an_ended_step_is_read_from_the_log(tmp_path: Path) -> None:
    world = World.started(lag_max=0)
    accepted = world.settled("ann", Outcome.ACCEPT, 0)
    invalid = world.settled("bob", Outcome.INVALID, 1)
    world.credit(accepted)
    unread = world.readers(accepted)[:2]
    world.inspect(accepted, *unread)
    async with desk_of(world, tmp_path) as context:
        before = await ask(context, "submission", submission=str(accepted))
        world.publish(accepted)
        world.pay_out(0)
        assert not world.run.submissions, "the state has let them go"
        await context.save()
        after = await ask(context, "submission", submission=str(accepted))
        rows = await ask_all(context, "submissions")
    assert [(row.submission, row.progress) for row in rows] == [
        (str(invalid), SubmissionProgress.INVALID),
        (str(accepted), SubmissionProgress.ACCEPTED),
    ]
    assert after.summary.owner is None
    assert after.summary.credited
    for name in ("index", "node", "step", "lease", "output_tokens", "verdicts", "validators"):
        assert getattr(after.summary, name) == getattr(before.summary, name)
    assert [each.verdicts for each in after.rounds] == [each.verdicts for each in before.rounds]
    assert (after.file_digest, after.checkpoint_step) == (before.file_digest, before.checkpoint_step)
    assert after.refuted == before.refuted == tuple(map(str, sorted(world.id(validator) for validator in unread)))


async def test_submissions_are_found_by_step_and_progress_while_a_step_is_open_and_after(tmp_path: Path) -> None:
    world = World.started(lag_max=0)
    accepted = [world.settled("ann", Outcome.ACCEPT, slot) for slot in range(3)]
    invalid = world.settled("bob", Outcome.INVALID, 3)
    for name in accepted:
        world.credit(name)
    async with desk_of(world, tmp_path) as context:
        given = {"run": RUN, "step": "0", "limit": "2"}
        open_rows = await ask_all(context, "submissions", **given, progress="accepted")
        of_bob = await ask_all(context, "submissions", **given, node=str(world.id("bob")))
        every = await ask_all(context, "submissions", **given)
        assert await ask_all(context, "submissions", run=RUN, step="1") == []
        world.publish(*accepted)
        world.pay_out(0)
        assert not world.run.steps, "the state has let the step go"
        await context.save()
        after = await ask_all(context, "submissions", **given, progress="accepted")
    assert [row.submission for row in open_rows] == [str(name) for name in reversed(accepted)]
    assert [(row.credited, row.trained_into, row.slots) for row in open_rows] == [(True, None, 1)] * 3
    assert [row.submission for row in of_bob] == [str(invalid)]
    assert [row.submission for row in every] == [str(invalid), *(str(name) for name in reversed(accepted))]
    assert [(row.submission, row.index) for row in after] == [(row.submission, row.index) for row in open_rows]


async def test_overturned_slash_of_a_step_that_is_over_shows_no_blame(tmp_path: Path) -> None:
    world = World.started(lag_max=0)
    name = world.convicted("bob")
    world.appeal("bob", name)
    world.wait(HOUR_MS)
    world.overturn(name)
    world.publish()
    world.pay_out(0)
    assert not world.run.submissions
    async with desk_of(world, tmp_path) as context:
        detail = await ask(context, "submission", submission=str(name))
    assert (detail.summary.progress, detail.slash) == (SubmissionProgress.INVALID, SlashProgress.OVERTURNED)
    assert len(detail.evidence) == 3


async def test_slash_is_followed_from_proposal_to_end(tmp_path: Path) -> None:
    world = World.started(workers=("ann", "bob", "eve"))
    world.wait(MINUTE_MS)
    executed, appealed, proposed = (world.convicted(name, slot) for slot, name in enumerate(("ann", "bob", "eve")))
    world.appeal("bob", appealed)
    async with desk_of(world, tmp_path) as context:
        found = {row.submission: row.progress for row in await ask_all(context, "slashes", limit="1")}
        appeals = await ask_all(context, "appeals")
        shown = await ask(context, "submission", submission=str(appealed))
        world.wait(2 * HOUR_MS)
        world.execute(executed)
        world.overturn(appealed)
        await context.save()
        ended = {row.submission: row.progress for row in await ask_all(context, "slashes")}
        detail = await ask(context, "slash", submission=str(executed))
        after = await ask_all(context, "appeals")
    assert found == {
        str(executed): SlashProgress.PROPOSED,
        str(appealed): SlashProgress.APPEALED,
        str(proposed): SlashProgress.PROPOSED,
    }
    assert [(row.submission, row.progress) for row in appeals] == [(str(appealed), SlashProgress.APPEALED)]
    assert shown.slash is SlashProgress.APPEALED
    assert ended == {
        str(executed): SlashProgress.EXECUTED,
        str(appealed): SlashProgress.OVERTURNED,
        str(proposed): SlashProgress.PROPOSED,
    }
    assert detail.node == str(world.id("ann"))
    assert detail.appeal_until_ms is None
    assert detail.ended_index is not None
    assert after[0].progress is SlashProgress.OVERTURNED


async def test_submission_without_a_slash_has_none_to_show(tmp_path: Path) -> None:
    world = World.started()
    name = world.settled("ann", Outcome.ACCEPT)
    async with desk_of(world, tmp_path) as context:
        with pytest.raises(RefusalError, match="was not slashed"):
            await ask(context, "slash", submission=str(name))
        with pytest.raises(RefusalError, match="is not known here"):
            await ask(context, "submission", submission="0x" + "00" * 32)


async def test_checkpoints_come_newest_first_with_their_lineage(tmp_path: Path) -> None:
    world = World.started()
    world.publish(world.settled("ann", Outcome.ACCEPT))
    async with desk_of(world, tmp_path) as context:
        rows = await ask_all(context, "checkpoints", run=RUN)
    assert [(row.step, row.trained_on, row.beacon is not None) for row in rows] == [(1, 1, True), (0, 0, True)]


async def test_entries_are_found_by_kind_author_and_subject(tmp_path: Path) -> None:
    world = World.started()
    async with desk_of(world, tmp_path) as context:
        every = await ask_all(context, "entries", limit="7")
        staked = await ask_all(context, "entries", kind="Staked", author=str(world.id("ann")))
        about = await ask_all(context, "entries", subject=str(world.id("ann")))
    assert [row.index for row in every] == list(reversed(range(len(world.leaves))))
    assert [row.leaf_hash for row in every] == [str(compute_leaf_hash(leaf)) for leaf in reversed(world.leaves)]
    assert [row.body["amount_nano"] for row in staked] == [100 * TOKEN]
    assert {row.kind for row in about} == {"Deposited", "Staked"}


async def test_page_of_large_entries_is_cut_short_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_coordinator.api.handlers.PAGE_LEAF_BYTES_MAX", 1)
    world = World.started()
    async with desk_of(world, tmp_path) as context:
        first = await ask(context, "entries", limit="9")
        every = await ask_all(context, "entries", limit="9")
    assert len(first.rows) == 1
    assert [row.index for row in every] == list(reversed(range(len(world.leaves))))


async def test_entry_comes_with_a_proof_that_a_stranger_can_check(tmp_path: Path) -> None:
    world = World.started()
    async with desk_of(world, tmp_path) as context:
        detail = await ask(context, "entry", index="5")
        world.note_head()
        await context.log.append(len(world.leaves) - 1, world.leaves[-1:], [compute_entry_keys(world.leaves[-1])])
        newest = await ask(context, "entry", index=str(len(world.leaves) - 1))
        with pytest.raises(RefusalError):
            await ask(context, "entry", index="9999")
    head = TreeHead.parse(SignedNote.parse(detail.head.encode()).text)
    leaf = bytes.fromhex(detail.leaf.removeprefix("0x"))
    assert leaf == world.leaves[5]
    verify_inclusion(
        compute_leaf_hash(leaf), [Digest.parse(each) for each in detail.proof], index=5, size=head.size, root=head.root
    )
    assert (newest.head, newest.proof) == (None, ())  # newer than the signed head


async def test_partial_tile_that_a_full_one_has_replaced_is_read_from_it(tmp_path: Path) -> None:
    """A head that was read a moment ago may name a partial tile that is gone by now."""
    leaves = [bytes([number % 256]) * 3 for number in range(TILE_HASHES)]
    tree = MerkleTree(map(compute_leaf_hash, leaves))
    write_mirror(tmp_path, leaves, b"")
    assert not (tmp_path / "tile/0/000.p").exists()
    get_node = read_nodes(tmp_path, 200)
    assert compute_root(200, get_node) == compute_root(200, tree.get_node)


async def test_consistency_proof_holds_between_any_two_sizes(tmp_path: Path) -> None:
    world = World.started()
    size = len(world.leaves)
    async with desk_of(world, tmp_path) as context:
        head = await ask(context, "head")
        for old, new in ((0, size), (1, 2), (7, 20), (size, size), (16, size)):
            row = await ask(context, "consistency", old=str(old), new=str(new))
            verify_consistency(
                [Digest.parse(each) for each in row.proof],
                old_size=old,
                old_root=Digest.parse(row.old_root),
                new_size=new,
                new_root=Digest.parse(row.new_root),
            )
        newest = await ask(context, "consistency", old="3")
        for wrong in ({"old": "5", "new": "4"}, {"old": "5", "new": str(size + 1)}, {"old": str(size + 1)}):
            with pytest.raises(RemoteError):
                await ask(context, "consistency", **wrong)
    assert (newest.new_size, newest.new_root) == (head.size, head.root)
