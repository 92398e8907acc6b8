"""What readers are told, as JSON: from the index and the coordinator's live state, page by page."""

from pathlib import Path

import pytest

from prime_explorer.pages import entries
from prime_explorer.pages.proofs import read_nodes
from prime_protocol.constants import PROTOCOL_VERSION, TILE_HASHES
from prime_protocol.ledger.entries import NodeStatus, NodeStatusSet, Outcome, Role
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root, verify_consistency, verify_inclusion
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.proofs.class_bounds import parse_class_bounds
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import LeaseRequest, NodeActivity
from support.app_context import FakeAppContext
from support.ledger_network import MINUTE_MS, RUN, TERMS, TOKEN, World
from support.mirrors import write_mirror
from support.read_model import ask, ask_all, index_log, reading


async def test_status_counts_what_is_there(tmp_path: Path) -> None:
    world = World.started()
    world.settled("ann", Outcome.ACCEPT, 0)
    world.convicted("bob", 1)
    world.lease("ann", 2, 3)
    world.submit(world.lease("ann", 6))
    context = await FakeAppContext.open(world, tmp_path)
    context.core.liveness.beat(world.id("ann"), NodeActivity.WORKING, 0, world.now_ms)
    async with reading(context) as client:
        status = await ask(client, "/status")
    assert status["nodes"] == {"registered": 11, "online": 1, "late": 0, "lost": 10}
    assert (status["leases_open"], status["slashes_open"]) == (1, 1)
    counts = status["submissions"]
    assert (counts["accepted"], counts["fraudulent"], counts["waiting"]) == (1, 1, 1)
    assert status["entries"] == status["head_size"] == len(world.leaves)
    assert status["root"] == str(world.state.frontier.root())
    assert status["value"]["held_nano"] == world.state.funds.total_nano()
    (run,) = status["runs"]
    assert (run["run"], run["slots_done"], run["slots_held"], run["validators"]) == (RUN, 1, 4, 9)
    assert run["version_min"] == PROTOCOL_VERSION, "of the rules that the log follows"


async def test_run_shows_its_terms_and_steps(tmp_path: Path) -> None:
    table = parse_class_bounds(["gpu-a/x > gpu-b/x: margin_max=0.25", "gpu-c"], TERMS.tolerance, is_closed=True)
    calibrated = {"calibration": "two machines", "calibrated_at_ms": 1_700_000_000_000}
    world = World.started(**calibrated, class_bounds=table, version_min=3)
    world.lease("ann", 0, 2)
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        (live,) = (await ask(client, "/status"))["runs"]
        view = await ask(client, f"/runs/{RUN}")
        page = await (await client.get(f"/runs/{RUN}", headers={"Accept": "text/html"})).text()
        (card,) = await ask_all(client, "/runs")
    assert (card["calibration"], card["calibrated_at_ms"]) == ("two machines", 1_700_000_000_000)
    assert view["terms"]["trainer"] == str(world.id("trainer"))
    assert (live["engine_classes"], live["is_closed"]) == (["gpu-a/x", "gpu-b/x", "gpu-c"], True)
    assert view["class_bounds"] == [{"generating": "gpu-a/x", "judging": "gpu-b/x", "numbers": {"margin_max": 0.25}}]
    assert "Bounds of 1 pairs of engine classes" in page
    assert "margin_max 0.25" in page
    assert [(step["step"], step["slots_held"], step["leases"]) for step in view["steps"]["rows"]] == [(0, 2, 1)]
    assert (card["run"], card["leases_open"], card["validators"]) == (RUN, 1, 9)


async def test_pages_of_nodes_show_each_once(tmp_path: Path) -> None:
    world = World.started(workers=tuple(f"worker-{number}" for number in range(11)))
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        rows = await ask_all(client, "/nodes", "nodes", limit="4")
    assert sorted(row["node"] for row in rows) == sorted(str(node) for node in world.state.nodes)


async def test_nodes_are_found_by_status_role_phase_and_owner(tmp_path: Path) -> None:
    world = World.started()
    world.coordinate(NodeStatusSet(node=world.id("bob"), status=NodeStatus.BANNED, reason="cheated"))
    world.join("eve", Role.WORKER, owner="boss")
    context = await FakeAppContext.open(world, tmp_path)
    context.core.liveness.beat(world.id("ann"), NodeActivity.IDLE, -1, world.now_ms)
    async with reading(context) as client:
        banned = await ask_all(client, "/nodes", "nodes", status="banned")
        judges = await ask_all(client, "/nodes", "nodes", role="validator", limit="2")
        online = await ask(client, "/nodes", phase="online")
        lost = await ask_all(client, "/nodes", "nodes", phase="lost", limit="5")
        owned = await ask_all(client, "/nodes", "nodes", owner=str(world.id("boss")))
        detail = await ask(client, f"/nodes/{world.id('bob')}")
    ann = str(world.id("ann"))
    assert [row["node"] for row in banned] == [str(world.id("bob"))]
    assert len(judges) == 9
    assert [row["node"] for row in online["nodes"]["rows"]] == [ann]
    assert online["presence"][ann]["activity"] == "idle"
    assert {row["node"] for row in lost} == {str(node) for node in world.state.nodes} - {ann}
    assert [row["node"] for row in owned] == [str(world.id("eve"))]
    assert detail["reason"] == "cheated"


async def test_node_shows_stake_leases_and_open_audits(tmp_path: Path) -> None:
    world = World.started(workers=("ann",))
    context = await FakeAppContext.open(world, tmp_path)
    ann, now_ms = world.id("ann"), world.now_ms
    context.core.liveness.beat(ann, NodeActivity.IDLE, 0, now_ms)
    lease = context.core.leases.request(RUN, ann, _ask_for_work(), now_ms).lease
    assert lease is not None
    await context.commit()
    async with reading(context) as client:
        worker = await ask(client, f"/nodes/{ann}")
        judge = await ask(client, f"/nodes/{world.id('val-0')}")
    assert worker["summary"]["stake_nano"] == 100 * TOKEN
    assert [(row["lease"], row["slots"]) for row in worker["leases_open"]["rows"]] == [(lease.lease, lease.slots)]
    assert judge["work"]["audits"] == []
    assert [(row["run"], row["is_eligible"]) for row in worker["work"]["eligibility"]] == [(RUN, True)]
    assert [row["is_eligible"] for row in judge["work"]["eligibility"]] == [False], "it has not beaten yet"


def _ask_for_work() -> LeaseRequest:
    return LeaseRequest(checkpoint_step=0, tokens_per_s=100)


async def test_open_leases_are_listed_by_run_and_node_newest_first(tmp_path: Path) -> None:
    world = World.started()
    for slot in range(5):
        world.lease("ann" if slot % 2 else "bob", slot)
    world.submit(world.lease("ann", 7))
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        rows = await ask_all(client, "/leases", limit="2")
        of_ann = await ask_all(client, "/leases", node=str(world.id("ann")), run=RUN)
        elsewhere = await ask_all(client, "/leases", run="another")
    assert [row["first_slot"] for row in rows] == [4, 3, 2, 1, 0]
    assert [row["first_slot"] for row in of_ann] == [3, 1]
    assert elsewhere == []


async def test_submission_is_followed_from_intake_to_verdict(tmp_path: Path) -> None:
    world = World.started()
    waiting = world.submit(world.lease("ann", 0))
    auditing = world.submit(world.lease("ann", 1))
    drawn = world.judge(auditing, Outcome.ACCEPT)
    accepted = world.settled("bob", Outcome.ACCEPT, 2)
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        rows = await ask_all(client, "/submissions", "submissions", limit="2")
        of_bob = await ask_all(client, "/submissions", "submissions", node=str(world.id("bob")))
        detail = await ask(client, f"/submissions/{auditing}")
        verdicts = await ask_all(client, "/verdicts", submission=str(auditing))
        by_judge = await ask_all(client, "/verdicts", node=str(world.id(drawn[0])), limit="1")
        in_run = await ask_all(client, "/verdicts", run=RUN)
        every = await ask_all(client, "/verdicts", limit="2")
    assert {row["submission"]: row["progress"] for row in rows} == {
        str(waiting): "waiting",
        str(auditing): "auditing",
        str(accepted): "accepted",
    }
    assert [row["submission"] for row in of_bob] == [str(accepted)]
    assert detail["rounds"][0]["validators"] == [str(world.id(name)) for name in drawn]
    (verdict,) = detail["verdicts"]
    assert (verdict["summary"]["validator"], verdict["summary"]["outcome"]) == (str(world.id(drawn[0])), "accept")
    assert verdict["metrics"] == {"margin": 0.25}
    assert verdicts == [verdict["summary"]]
    assert verdict["summary"] in by_judge
    assert in_run == every
    assert len(every) > 1


async def test_submissions_are_found_by_step_and_progress_while_a_step_is_open_and_after(tmp_path: Path) -> None:
    world = World.started(lag_max=0)
    accepted = [world.settled("ann", Outcome.ACCEPT, slot) for slot in range(3)]
    invalid = world.settled("bob", Outcome.INVALID, 3)
    context = await FakeAppContext.open(world, tmp_path)
    async with reading(context) as client:
        given = {"run": RUN, "step": "0", "limit": "2"}
        open_rows = await ask_all(client, "/submissions", "submissions", **given, state="accepted")
        of_bob = await ask_all(client, "/submissions", "submissions", **given, node=str(world.id("bob")))
        every = await ask_all(client, "/submissions", "submissions", **given)
        assert await ask_all(client, "/submissions", "submissions", run=RUN, step="1") == []
        world.publish(*accepted)
        world.pay_out(0)
        assert not world.run.steps, "the state has let the step go"
        await context.save()
        index_log(context)
        after = await ask_all(client, "/submissions", "submissions", **given, state="accepted")
    assert [row["submission"] for row in open_rows] == [str(name) for name in reversed(accepted)]
    assert [(row["units"] is not None, row["trained_into"], row["slots"]) for row in open_rows] == [(True, None, 1)] * 3
    assert [row["submission"] for row in of_bob] == [str(invalid)]
    assert [row["submission"] for row in every] == [str(invalid), *(str(name) for name in reversed(accepted))]
    assert [row["submission"] for row in after] == [row["submission"] for row in open_rows]
    assert {row["trained_into"] for row in after} == {1}


async def test_slash_is_followed_from_proposal_to_end(tmp_path: Path) -> None:
    world = World.started(workers=("ann", "bob", "eve"))
    world.wait(MINUTE_MS)
    executed, appealed, proposed = (world.convicted(name, slot) for slot, name in enumerate(("ann", "bob", "eve")))
    world.appeal("bob", appealed)
    context = await FakeAppContext.open(world, tmp_path)
    async with reading(context) as client:
        found = await ask_all(client, "/slashes", "slashes", limit="1")
        appeals = await ask_all(client, "/appeals", run=RUN)
        shown = await ask(client, f"/submissions/{appealed}")
        world.wait(TERMS.long_stop_ms)
        world.execute(executed)
        world.overturn(appealed)
        await context.save()
        index_log(context)
        ended = await ask_all(client, "/slashes", "slashes", run=RUN)
        detail = await ask(client, f"/slashes/{executed}")
        after = await ask_all(client, "/appeals")
        overturned = await ask(client, f"/submissions/{appealed}")
    assert {row["submission"]: row["progress"] for row in found} == {
        str(executed): "proposed",
        str(appealed): "appealed",
        str(proposed): "proposed",
    }
    assert [(row["submission"], row["progress"]) for row in appeals] == [(str(appealed), "appealed")]
    assert appeals[0]["appealed_by"] == str(world.id("bob"))
    assert shown["summary"]["slash"] == "appealed"
    assert {row["submission"]: row["progress"] for row in ended} == {
        str(executed): "executed",
        str(appealed): "overturned",
        str(proposed): "proposed",
    }
    assert detail["summary"]["node"] == str(world.id("ann"))
    assert detail["summary"]["ended_ms"] is not None
    assert after[0]["progress"] == "overturned"
    assert overturned["summary"]["progress"] == "invalid", "the overturned slash leaves no blame"


async def test_checkpoints_come_newest_first_with_their_lineage(tmp_path: Path) -> None:
    world = World.started()
    world.publish(world.settled("ann", Outcome.ACCEPT))
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        rows = await ask_all(client, "/checkpoints", run=RUN, limit="1")
        every = await ask_all(client, "/checkpoints")
    assert [(row["step"], row["trained_on"], row["beacon"] is not None) for row in rows] == [(1, 1, True), (0, 0, True)]
    assert every == rows


async def test_entries_are_found_by_kind_author_and_subject(tmp_path: Path) -> None:
    world = World.started()
    ann = str(world.id("ann"))
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        every = await ask_all(client, "/log", "entries", limit="7")
        staked = await ask_all(client, "/log", "entries", kind="Staked", author=ann)
        about = await ask_all(client, "/log", "entries", about=ann)
        deposits = await ask_all(client, "/log", "entries", about=ann, kind="Deposited")
        bodies = [await ask(client, f"/log/{row['idx']}") for row in staked]
    assert [row["idx"] for row in every] == list(reversed(range(len(world.leaves))))
    assert [view["body"]["amount_nano"] for view in bodies] == [100 * TOKEN]
    assert {row["kind"] for row in about} == {"Deposited", "Staked"}
    assert {row["kind"] for row in deposits} == {"Deposited"}


async def test_a_search_for_rare_entries_ends_early_and_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_SCANNED_MAX", 3)
    world = World.started()
    coordinator = str(world.id("coordinator"))
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        first = await ask(client, "/log", author=coordinator, kind="NetworkCreated")
        rows = await ask_all(client, "/log", "entries", author=coordinator, kind="NetworkCreated")
    assert first["entries"]["rows"] == []
    assert first["entries"]["next"] is not None
    assert [row["idx"] for row in rows] == [0]


async def test_entry_comes_with_a_proof_that_a_stranger_can_check(tmp_path: Path) -> None:
    world = World.started()
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        view = await ask(client, "/log/5")
    head = TreeHead.parse(SignedNote.parse(view["head"].encode()).text)
    leaf = bytes.fromhex(view["leaf"].removeprefix("0x"))
    assert leaf == world.leaves[5]
    proof = [Digest.parse(each) for each in view["proof"]]
    verify_inclusion(compute_leaf_hash(leaf), proof, index=5, size=head.size, root=head.root)


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
    async with reading(await FakeAppContext.open(world, tmp_path)) as client:
        head = await ask(client, "/log/head")
        for old, new in ((0, size), (1, 2), (7, 20), (size, size), (16, size)):
            row = await ask(client, "/log/consistency", old=str(old), new=str(new))
            verify_consistency(
                [Digest.parse(each) for each in row["proof"]],
                old_size=old,
                old_root=Digest.parse(row["old_root"]),
                new_size=new,
                new_root=Digest.parse(row["new_root"]),
            )
        newest = await ask(client, "/log/consistency", old="3")
    assert (newest["new_size"], newest["new_root"]) == (head["size"], head["root"])


async def test_settlement_in_the_log_needs_no_chain(tmp_path: Path) -> None:
    async with reading(await FakeAppContext.open(World.started(), tmp_path)) as client:
        view = await ask(client, "/settlement")
    assert (view["kind"], view["chain_id"], view["problem"], view["promises"]) == ("embedded", 0, "", [])
