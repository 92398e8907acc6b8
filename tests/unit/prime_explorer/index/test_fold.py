"""The index says what the books say, whatever was written into the log, and however it was cut into batches."""

import json
import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from prime_explorer.index.fold import LogFold, get_stake, list_run_records
from prime_explorer.index.store import ReadTransaction
from prime_explorer.pages.runs import read_checkpoint, read_run
from prime_explorer.pages.submissions import read_history, read_rounds, read_submission
from prime_protocol.constants import READ_PROOF_BYTES, READ_PROOF_PROBES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import LedgerState
from prime_protocol.proofs.read_proofs import encode_read_proof
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NodeId
from support.explorer_index import fold
from support.ledger_crowd import crowd, try_act
from support.ledger_network import BUDGET, HOUR_MS, RUN, TERMS, World, digest

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
ACTS = 500


def table(db: ReadTransaction, name: str) -> list[dict[str, Any]]:
    return [dict(row) for row in db.rows(f"SELECT * FROM {name}")]


def check_nodes(db: ReadTransaction, state: LedgerState) -> None:
    rows = {NodeId(row["node"]): row for row in table(db, "nodes")}
    assert rows.keys() == state.nodes.keys()
    for name, node in state.nodes.items():
        row = rows[name]
        outcomes = (node.settled[ACCEPT], node.settled[INVALID], node.settled[FRAUDULENT])
        assert (row["accepted"], row["invalid"], row["fraudulent"]) == outcomes
        assert (row["units"], row["earned_nano"], row["faults"]) == (node.units, node.earned_nano, node.faults)
        assert (row["stake_nano"], row["unbonding_nano"]) == get_stake(state, name)
        assert (row["owner"], row["status"]) == (state.owners[name], str(node.status))
        assert json.loads(row["run_records"]) == list_run_records(state, name)
        last = db.row("SELECT * FROM stakes WHERE node=? ORDER BY idx DESC", name)
        assert last is None or (last["stake_nano"], last["unbonding_nano"]) == get_stake(state, name)
        paid = db.value("SELECT total(amount_nano) FROM payouts WHERE node=?", name)
        assert paid == node.earned_nano == db.value("SELECT total(paid_nano) FROM contributions WHERE node=?", name)
        assert node.units == db.value("SELECT total(units) FROM contributions WHERE node=?", name)
        upheld = db.value("SELECT count(*) FROM verdicts WHERE validator=? AND upheld=1", name)
        assert row["upheld"] == upheld
    for submission, made in [item for run in state.runs.values() for item in run.submissions.items()]:
        found = db.rows("SELECT validator FROM verdicts WHERE submission=? AND refuted", submission)
        assert {each["validator"] for each in found} == made.refuted


def check_sums(db: ReadTransaction, state: LedgerState) -> None:
    """The same numbers by node, by step, by run and counted one by one."""
    columns = "total(accepted), total(invalid), total(fraudulent), total(units), total(rollouts), total(tokens)"
    sums = [
        tuple(db.row(f"SELECT {columns} FROM {name}") or ()) for name in ("nodes", "steps", "runs", "contributions")
    ]
    assert len(set(sums)) == 1, sums
    for progress, column in (("accepted", 0), ("invalid", 1), ("fraudulent", 2)):
        assert db.value("SELECT count(*) FROM submissions WHERE progress=?", progress) == sums[0][column]
    counted = "SELECT total(slots*samples), total(output_tokens) FROM submissions WHERE progress='accepted'"
    assert tuple(db.row(counted) or ()) == sums[0][4:]
    assert {row["account"]: row["balance_nano"] for row in table(db, "accounts") if row["balance_nano"]} == dict(
        +state.funds.balances
    )
    for row in table(db, "runs"):
        run = state.runs[row["run"]]
        assert (row["latest_step"], row["status"], row["slashes_open"]) == (
            run.latest,
            str(run.status),
            len(run.slashes),
        )
        assert row["pool_nano"] == state.funds.pools[row["run"]]
        assert row["slashes"] == row["executed"] + row["overturned"] + len(run.slashes)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_mob_writes_the_index_agrees_with_the_books(seed: int) -> None:
    world, mob = crowd(seed)
    for _ in range(ACTS):
        try_act(mob)
    db, folding = fold(world.leaves, batch=1 + 37 * seed)
    assert folding.state == world.state, f"seed {seed}"
    check_nodes(db, world.state)
    check_sums(db, world.state)


def test_batches_make_no_difference() -> None:
    world, mob = crowd(11)
    for _ in range(ACTS):
        try_act(mob)
    small, large = fold(world.leaves, batch=1)[0], fold(world.leaves, batch=10_000)[0]
    for row in large.rows("SELECT name FROM sqlite_master WHERE type='table'"):
        assert table(small, row["name"]) == table(large, row["name"]), row["name"]


def one(db: ReadTransaction, name: str) -> sqlite3.Row:
    rows = db.rows(f"SELECT * FROM {name}")
    assert len(rows) == 1
    return rows[0]


def test_a_submissions_way_to_its_pay() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"), 20)
    assert one(fold(world.leaves)[0], "submissions")["progress"] == "waiting"
    world.draw(name)
    assert one(fold(world.leaves)[0], "submissions")["progress"] == "auditing"
    world.agree(name, ACCEPT, is_drawn=True)
    world.settle(name)
    row = one(fold(world.leaves)[0], "submissions")
    asked = [len(each.validators) for each in world.submission(name).rounds]
    assert (row["progress"], row["validators"], row["units"]) == ("accepted", sum(asked), 20)
    assert row["settled_idx"] == row["credited_idx"] == len(world.leaves) - 1
    assert row["verdicts"] == sum(len(each.verdicts) for each in world.submission(name).rounds)
    world.publish(name)
    world.pay_out(0)
    row = one(fold(world.leaves)[0], "submissions")
    assert (row["units"], row["trained_into"], row["paid_idx"]) == (20, 1, len(world.leaves) - 1)


@pytest.mark.parametrize(
    ("verdict", "finding", "progress"),
    [(FRAUDULENT, "upheld", "fraudulent"), (ACCEPT, "dismissed", "accepted"), (None, "undecided", "accepted")],
)
def test_a_finding_is_shown_with_its_evidence_and_end_and_its_finders_balance(
    verdict: Outcome | None, finding: str, progress: str
) -> None:
    world = World.started(audit_probation=0, audit_floor=1, slots_per_step=64)
    world.deposit("eve", 2 * TERMS.finding_bond_nano)
    name = world.not_drawn("ann")
    world.file_finding("eve", name)
    row = fold(world.leaves)[0].row("SELECT * FROM submissions WHERE submission=?", name)
    assert row is not None
    assert (row["finding"], row["finding_evidence"]) == ("filed", digest("bundle"))
    if verdict is None:
        world.wait(world.run.terms.judgement_ms)
        world.dismiss(name)
    else:
        world.agree(name, verdict)
        (world.uphold if verdict is FRAUDULENT else world.dismiss)(name)
    if verdict is FRAUDULENT:
        world.propose(name)
        world.wait(world.run.terms.appeal_ms)
        world.execute(name)
    db = fold(world.leaves, batch=1)[0]
    row = db.row("SELECT * FROM submissions WHERE submission=?", name)
    assert row is not None
    assert (row["finding"], row["progress"]) == (finding, progress)
    balance = db.value("SELECT balance_nano FROM accounts WHERE account=?", world.id("eve"))
    assert balance == world.balance("eve")


def test_what_is_credited_after_its_step_was_paid_is_paid_with_the_next() -> None:
    world = World.started()
    world.settled("bob", ACCEPT)
    name = world.convicted("ann", 1)
    world.appeal("ann", name)
    world.publish()
    world.pay_out(0)
    world.agree(name, ACCEPT)
    world.overturn(name)
    world.credit(name)
    db, _ = fold(world.leaves)
    row = db.row("SELECT * FROM submissions WHERE submission=?", name)
    assert row is not None
    assert (row["progress"], row["is_carried"], row["paid_idx"], row["slash"]) == ("accepted", 1, None, "overturned")
    world.settled("bob", ACCEPT)
    world.publish()
    world.pay_out(1)
    db, folding = fold(world.leaves)
    assert db.value("SELECT paid_idx FROM submissions WHERE submission=?", name) == len(world.leaves) - 1
    check_nodes(db, folding.state)


def test_a_reason_is_the_verdicts_or_says_why_there_is_none() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    for _ in range(3):
        world.draw(name)
        world.wait(world.run.terms.verdict_ms)
    assert world.settle(name) is INVALID
    row = one(fold(world.leaves)[0], "submissions")
    assert row["reason"] == "the validators did not reach a majority, and no inspector decided in time"
    judged = world.submit(world.lease("bob", 1))
    world.judge(judged, INVALID, INVALID, ACCEPT)
    world.judge(judged, INVALID, INVALID, INVALID)
    world.judge(judged, INVALID)
    assert world.settle(judged) is INVALID
    db, _ = fold(world.leaves)
    row = db.row("SELECT * FROM submissions WHERE submission=?", judged)
    assert row is not None
    assert row["reason"] == db.value("SELECT reason FROM verdicts WHERE outcome=? ORDER BY idx", str(INVALID))
    assert [each["upheld"] for each in db.rows("SELECT upheld FROM verdicts ORDER BY idx")] == [1, 1, 0, 1, 1, 1, 1]


def test_an_inspected_verdict_is_shown_with_how_far_its_looks_were_off() -> None:
    world = World.started(quorum=4, inspectors=(World().id("inspector"), World().id("second")))
    name = world.submit(world.lease("ann"))
    honest, liar, mute, unseen = world.draw(name)
    said = {
        honest: encode_read_proof([0.1] * READ_PROOF_PROBES),
        liar: encode_read_proof([2.0] * READ_PROOF_PROBES),
        mute: b"",
        unseen: bytes(READ_PROOF_BYTES),
    }
    world.give(*[world.opinion(validator, name, FRAUDULENT, looks=looks) for validator, looks in said.items()])
    world.settle(name)
    found = world.inspection(name, {reader: bytes(READ_PROOF_BYTES) for reader in (honest, liar, mute)})
    world.write("inspector", found)
    db, folding = fold(world.leaves)
    view = read_submission(db, name)
    assert view is not None
    assert [each.summary.refuted for each in view.verdicts] == [0, 1, 1, None]
    assert [each.summary.read_proof_error for each in view.verdicts] == [pytest.approx(0.1, abs=1e-3), 2.0, None, None]
    assert [row.brief for row in view.history if row.kind == "Inspected"] == ["3 verdicts inspected"]
    check_nodes(db, folding.state)

    world.write("second", world.inspection(name, {liar: said[liar]}))
    db, folding = fold(world.leaves)
    view = read_submission(db, name)
    assert view is not None
    shown = view.verdicts[1].summary
    assert (shown.refuted, shown.read_proof_error) == (1, 2.0), "as the ledger has it"
    assert [row.brief for row in view.history if row.kind == "Inspected"][1:] == ["1 verdict inspected"]
    check_nodes(db, folding.state)


def test_staleness_and_reward_are_averages_of_what_was_trained_on_and_found() -> None:
    world = World.started(lag_max=2)
    old = world.settled("ann", ACCEPT)
    world.publish()
    new = world.submit(world.lease("bob"))
    metrics = (e.Metric(name="reward_mean", value=0.75), e.Metric(name="margin_max", value=0.1))
    world.give(*[replace(world.opinion(each, new, ACCEPT), metrics=metrics) for each in world.draw(new)])
    world.agree(new, ACCEPT)
    world.settle(new)
    world.publish(old, new)
    db, _ = fold(world.leaves)
    steps = {row["step"]: row for row in db.rows("SELECT * FROM steps WHERE run=?", RUN)}
    assert (steps[2]["lag_sum"], steps[2]["lag_max"], steps[2]["trained_on"]) == (1, 1, 2)
    assert (steps[1]["reward_sum"], steps[1]["rewards"], steps[0]["rewards"]) == (0.75, 1, 0)


def test_a_lease_without_an_answer_is_kept_with_its_reason() -> None:
    world = World.started()
    lease = world.lease("ann", slots=3)
    assert db_steps(world) == (3, 0)
    world.wait(2 * HOUR_MS)
    world.coordinate(e.LeaseEnded(lease=lease, reason="no word in time"))
    row = one(fold(world.leaves)[0], "leases")
    assert (row["state"], row["reason"]) == ("ended", "no word in time")
    assert one(fold(world.leaves)[0], "runs")["expired"] == 1
    assert db_steps(world) == (0, 1)


def db_steps(world: World) -> tuple[int, int]:
    row = one(fold(world.leaves)[0], "steps")
    return row["slots_held"], row["expired"]


def test_a_leaf_that_does_not_hold_changes_nothing() -> None:
    world = World.started()
    folding = LogFold(Ledger(world.ledger.network))
    for leaf in world.leaves:
        folding.apply_leaf(leaf)
    folding.take_writes()
    before = world.snapshot()
    record = decode(e.LogRecord, world.seal("ann", e.Staked(node=world.id("ann"), amount_nano=1)))
    forged = encode(e.LogRecord(at_ms=record.at_ms, frame=record.frame[:-1] + bytes([record.frame[-1] ^ 1])))
    for leaf in (forged, world.seal("ann", e.PaidOut(step=0)), world.seal("bob", e.LeaseEnded(lease=99, reason=""))):
        with pytest.raises(RemoteError):
            folding.apply_leaf(leaf)
    assert folding.state == world.state
    assert world.snapshot() == before
    assert folding.take_writes() == []


def test_a_payouts_shares_add_up_to_what_left_the_pool() -> None:
    world = World.started()
    for slot, who in enumerate(("ann", "bob", "ann")):
        world.settled(who, ACCEPT, slot)
    world.publish()
    world.pay_out(0)
    db, folding = fold(world.leaves)
    paid = db.value("SELECT paid_nano FROM steps WHERE step=0")
    assert paid == db.value("SELECT sum(amount_nano) FROM payouts")
    assert paid == 1000 * 10**9 - folding.state.funds.pools[RUN] <= BUDGET
    assert db.value("SELECT count(*) FROM payouts") > 2
    assert TERMS.audit_share


def test_the_trainers_numbers_make_a_curve_and_stand_with_their_checkpoint() -> None:
    world = World.started()
    world.measure(0, held_out=0.25)
    world.publish()
    world.publish()
    world.measure(2, held_out=0.5, entropy=1.5, loss=-0.125)
    db, _ = fold(world.leaves)
    view = read_run(db, RUN, None, None)
    assert view is not None
    assert [(row.step, row.held_out, row.entropy) for row in view.charted] == [
        (0, 0.25, None),
        (1, None, None),
        (2, 0.5, 1.5),
    ]
    shown = read_checkpoint(db, RUN, 2, None)
    assert shown is not None
    assert shown.metrics == {"entropy": 1.5, "held_out": 0.5, "loss": -0.125}
    assert shown.measured_idx == len(world.leaves) - 1


def test_each_submission_of_a_shared_entry_has_its_row_and_the_entry_in_its_history() -> None:
    workers = [f"worker-{number}" for number in range(6)]
    world = World.started(workers=workers, audit_probation=0, quorum=1, slots_per_step=12)
    for slot, worker in enumerate(workers):
        world.settled(worker, ACCEPT, slot)
    names = [world.submit(world.lease(worker, 6 + slot)) for slot, worker in enumerate(workers)]
    world.note_head()
    spared = tuple(name for name in names if compute_draw(world.state, world.run, name, world.now_ms) == ())
    assert len(spared) > 1
    randomness = world.submission(spared[0]).randomness
    assert randomness is not None
    world.coordinate(e.AcceptedUnaudited(randomness_round=randomness[0], submissions=spared))
    db, index = fold(world.leaves)[0], len(world.leaves) - 1
    for name in spared:
        row = db.row("SELECT * FROM submissions WHERE submission=?", name)
        assert row is not None
        assert (row["progress"], row["units"], row["settled_idx"], row["credited_idx"]) == (
            "accepted",
            20,
            index,
            index,
        )
        assert read_history(db, name)[-1].idx == index
        assert [(each.idx, each.validators) for each in read_rounds(db, name)] == [(index, ())]
    entry = db.row("SELECT * FROM entries WHERE idx=?", index)
    assert entry is not None
    assert (entry["about"], entry["brief"]) == (None, f"{len(spared)} submissions")
    run = one(db, "runs")
    assert (run["undrawn"], run["audited"], run["accepted"]) == (len(spared), 6, 6 + len(spared))
