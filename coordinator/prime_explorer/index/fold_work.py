"""SQL statements for entries about checkpoints, leases, submissions, credit and payouts. Pure."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prime_explorer.index.schema import DirtyRows, FoldedEntry, SqlWrite
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.funds import StakeKey
from prime_protocol.ledger.rewards import compute_step_shares, compute_submission_units
from prime_protocol.ledger.state import LedgerState, RunState
from prime_protocol.wire.ids import Digest, RunId, Step
from prime_protocol.wire.typed_data import compute_receipt_id


def read_before_apply(state: LedgerState, run: RunState, about: FoldedEntry) -> Any:
    match about.entry:
        case e.LeaseEnded(lease=number):
            return run.leases.get(number)
        case e.PaidOut(step=number) if number in run.steps and about.run is not None:
            return compute_step_shares(state, about.run, run.steps[number])
        case e.SubmissionsListed(first=0):
            return tuple(run.lineage.submissions) if run.lineage else ()
        case e.CheckpointPublished(trained_on=names):
            listed = run.lineage.submissions if run.lineage else []
            return [run.submissions[name] for name in (*listed, *names) if name in run.submissions]
    return None


def describe(state: LedgerState, about: FoldedEntry, seen: Any, dirty: DirtyRows) -> Iterator[SqlWrite]:
    match about.entry:
        case e.SubmissionsListed(step=step, submissions=names):
            yield from ((MARK_TRAINED, (None, name)) for name in seen or ())
            yield from ((MARK_TRAINED, (step, name)) for name in names)
        case e.CheckpointPublished():
            yield from _publish(state, about, seen)
        case e.StepMeasured(step=step, metrics=metrics):
            found = {metric.name: metric.value for metric in metrics}
            charted = (found.get(name) for name in CHARTED)
            yield MEASURE_STEP, (*charted, json.dumps(found), about.index, about.run, step)
        case e.RoundRecorded():
            yield from _record_round(state, about, seen)
        case e.LeaseGranted():
            yield from _grant(about, dirty)
        case e.LeaseEnded():
            yield from _end_lease(about, seen, dirty)
        case e.Submitted():
            yield from _submit(state, about, dirty)
        case e.Credited(submission=name):
            yield from _credit(state, about, name, dirty)
        case e.AcceptedUnaudited() | e.Settled():
            for name in about.entry.list_credited():
                yield from _credit(state, about, name, dirty)
        case e.PaidOut():
            yield from _pay(about, seen, dirty)


def _publish(state: LedgerState, about: FoldedEntry, trained: list[Any]) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    terms = state.runs[run].terms
    lags = [entry.step - 1 - each.checkpoint_step for each in trained]
    for name in entry.trained_on:
        yield MARK_TRAINED, (entry.step, name)
    yield ADD_STEP, (
        run, entry.step, about.index, about.at_ms, entry.root, entry.manifest, terms.slots_per_step,
        terms.samples_per_slot, len(trained), sum(each.output_tokens for each in trained), sum(lags),
        max(lags, default=None), run, entry.step,
    )  # fmt: skip


def _record_round(state: LedgerState, about: FoldedEntry, waiting: list[tuple[RunId, Step]]) -> Iterator[SqlWrite]:
    for run, step in waiting:
        beacon = state.runs[run].checkpoints[step].beacon
        yield "UPDATE steps SET beacon=?, beacon_ms=? WHERE run=? AND step=?", (beacon, about.at_ms, run, step)


def _grant(about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    dirty.steps[(run, entry.step)] = None
    yield ADD_LEASE, (
        run, entry.lease, about.index, entry.node, entry.step, entry.first_slot, entry.slots, about.at_ms,
        entry.deadline_ms, entry.speculative,
    )  # fmt: skip
    yield COUNT_LEASE, (about.at_ms, run, entry.step)
    yield "UPDATE nodes SET leases=leases+1 WHERE node=?", (entry.node,)


def _end_lease(about: FoldedEntry, lease: Any, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    dirty.steps[(run, lease.step)] = None
    yield "UPDATE leases SET state='ended', ended_ms=?, reason=? WHERE run=? AND lease=?", (
        about.at_ms, entry.reason, run, entry.lease,
    )  # fmt: skip
    yield "UPDATE steps SET expired=expired+1 WHERE run=? AND step=?", (run, lease.step)
    yield "UPDATE runs SET expired=expired+1 WHERE run=?", (run,)


def _submit(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    name = compute_receipt_id(entry.receipt)
    submission = state.runs[run].submissions[name]
    samples = state.runs[run].steps[submission.step].terms.samples_per_slot
    key = (submission.node, run, submission.step)
    yield ADD_SUBMISSION, (
        name, about.index, run, submission.step, submission.node, submission.owner, submission.lease,
        submission.slots.start, len(submission.slots), samples, submission.leased_at_ms, about.at_ms,
        submission.file_digest, submission.file_bytes, entry.receipt.rollout_root, submission.checkpoint_step,
        entry.receipt.checkpoint_root, submission.output_tokens, submission.context_tokens,
    )  # fmt: skip
    yield (
        "UPDATE leases SET state='submitted', ended_ms=? WHERE run=? AND lease=?",
        (about.at_ms, run, submission.lease),
    )
    yield COUNT_NODE_OF_STEP, (run, submission.step, *key)
    yield COUNT_SUBMISSION, (about.at_ms, about.at_ms, submission.file_bytes, run, submission.step)
    yield f"{ADD_CONTRIBUTION} submissions=submissions+1", (*key, 1, 0, 0, 0)
    yield "UPDATE nodes SET submissions=submissions+1 WHERE node=?", (submission.node,)
    yield "UPDATE runs SET submissions=submissions+1, file_bytes=file_bytes+? WHERE run=?", (submission.file_bytes, run)
    dirty.steps[(run, submission.step)] = None


def _credit(state: LedgerState, about: FoldedEntry, name: Digest, dirty: DirtyRows) -> Iterator[SqlWrite]:
    run = about.run
    assert run is not None
    submission = state.runs[run].submissions[name]
    step = state.runs[run].steps[submission.step]
    units = compute_submission_units(step.terms, submission)
    yield "UPDATE submissions SET units=?, credited_idx=?, is_carried=? WHERE submission=?", (
        units, about.index, step.paid, name,
    )  # fmt: skip
    yield "UPDATE steps SET units=units+?, slots_done=slots_done+? WHERE run=? AND step=?", (
        units, len(submission.slots), run, submission.step,
    )  # fmt: skip
    yield "UPDATE contributions SET units=units+? WHERE node=? AND run=? AND step=?", (
        units, submission.node, run, submission.step,
    )  # fmt: skip
    yield "UPDATE runs SET units=units+? WHERE run=?", (units, run)
    dirty.nodes.setdefault(submission.node, about)
    dirty.steps[(run, submission.step)] = None


def _pay(about: FoldedEntry, shares: Counter[StakeKey], dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    for (owner, node), amount_nano in shares.items():
        yield "INSERT INTO payouts VALUES (?,?,?,?,?,?,?)", (
            node, about.index, owner, run, entry.step, about.at_ms, amount_nano,
        )  # fmt: skip
        yield (
            f"{ADD_CONTRIBUTION} paid_nano=paid_nano+excluded.paid_nano",
            (node, run, entry.step, 0, 0, 0, amount_nano),
        )
        dirty.nodes.setdefault(node, about)
        dirty.accounts[owner] = None
    yield "UPDATE steps SET paid_ms=?, paid_nano=? WHERE run=? AND step=?", (
        about.at_ms, shares.total(), run, entry.step,
    )  # fmt: skip
    yield "UPDATE runs SET paid_nano=paid_nano+? WHERE run=?", (shares.total(), run)
    yield PAY_SUBMISSIONS, (about.index, run, entry.step)
    dirty.steps[(run, entry.step)] = None


# --- Statements -------------------------------------------------------------------------------------------------------

MARK_TRAINED = "UPDATE submissions SET trained_into=? WHERE submission=?"
ADD_STEP = (
    "INSERT INTO steps (run, step, idx, published_ms, root, manifest, slots, samples, trained_on, trained_tokens,"
    " lag_sum, lag_max, ready_ms) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,"
    " (SELECT max(settled_ms) FROM submissions WHERE run=? AND trained_into=?))"
)
CHARTED = ("held_out", "entropy", "mismatch_kl")
"""The trainer's metrics that the page of a run charts."""
MEASURE_STEP = "UPDATE steps SET held_out=?, entropy=?, mismatch_kl=?, metrics=?, measured_idx=? WHERE run=? AND step=?"
ADD_LEASE = "INSERT INTO leases VALUES (?,?,?,?,?,?,?,?,?,?,'open',NULL,NULL)"
COUNT_LEASE = "UPDATE steps SET leases=leases+1, first_lease_ms=ifnull(first_lease_ms,?) WHERE run=? AND step=?"
ADD_SUBMISSION = (
    "INSERT INTO submissions (submission, idx, run, step, node, owner, lease, first_slot, slots, samples, leased_ms,"
    " at_ms, file_digest, file_bytes, rollout_root, checkpoint_step, checkpoint_root, output_tokens, context_tokens,"
    " progress, validators, verdicts) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,'waiting',0,0)"
)
COUNT_NODE_OF_STEP = (
    "UPDATE steps SET nodes=nodes+1 WHERE run=? AND step=?"
    " AND NOT EXISTS (SELECT 1 FROM contributions WHERE node=? AND run=? AND step=? AND submissions > 0)"
)
COUNT_SUBMISSION = (
    "UPDATE steps SET submissions=submissions+1, first_submitted_ms=ifnull(first_submitted_ms,?), last_submitted_ms=?,"
    " file_bytes=file_bytes+? WHERE run=? AND step=?"
)
ADD_CONTRIBUTION = (
    "INSERT INTO contributions (node, run, step, submissions, accepted, units, paid_nano) VALUES (?,?,?,?,?,?,?)"
    " ON CONFLICT (node, run, step) DO UPDATE SET"
)
PAY_SUBMISSIONS = (
    "UPDATE submissions SET paid_idx=? WHERE run=? AND credited_idx IS NOT NULL AND paid_idx IS NULL"
    " AND (step=? OR is_carried=1)"
)
