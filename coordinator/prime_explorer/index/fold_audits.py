"""SQL statements for entries about draws, verdicts, outcomes, slashes and appeals. Pure."""

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

from prime_explorer.index.schema import DirtyRows, FoldedEntry, SqlWrite
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, FindingUpheld, Outcome
from prime_protocol.ledger.rewards import compute_submission_units
from prime_protocol.ledger.state import LedgerState, SubmissionState
from prime_protocol.proofs.read_proofs import compute_read_proof_error, is_read_proof_refuted
from prime_protocol.wire.ids import Digest, NodeId, RunId

REWARD_METRIC = "reward_mean"
"""The metric of a verdict that holds the mean task reward of the rollouts."""
PROGRESS = {Outcome.ACCEPT: "accepted", Outcome.INVALID: "invalid", Outcome.FRAUDULENT: "fraudulent"}


def describe(state: LedgerState, about: FoldedEntry, seen: Any, dirty: DirtyRows) -> Iterator[SqlWrite]:
    match about.entry:
        case e.AuditDrawn():
            yield from _add_round(state, about)
        case e.VerdictGiven():
            yield from _add_verdict(state, about)
        case e.AcceptedUnaudited():
            yield from _accept_unaudited(state, about, dirty)
        case e.Settled(settled=settled):
            for each in settled:
                yield from _settle(state, about, each.submission, each.outcome, dirty)
        case e.ValidatorScored(validator=node):
            dirty.nodes.setdefault(node, about)
        case e.Inspected():
            yield from _inspect(state, about, dirty)
        case FindingFiled(submission=name, evidence=evidence):
            yield "UPDATE submissions SET finding='filed', finding_evidence=? WHERE submission=?", (evidence, name)
            dirty.accounts[about.author] = None
        case FindingUpheld():
            yield from _uphold_finding(state, about, dirty)
        case FindingDismissed():
            yield from _dismiss_finding(state, about, seen)
        case e.SlashProposed():
            yield from _propose(state, about, dirty)
        case e.Appealed():
            yield from _appeal(state, about, dirty)
        case e.SlashExecuted(submission=name):
            yield from _end_slash(state, about, dirty, "executed", Outcome.FRAUDULENT)
            yield "UPDATE runs SET executed=executed+1 WHERE run=?", (about.run,)
        case e.SlashOverturned(submission=name):
            assert about.run is not None
            outcome = state.runs[about.run].submissions[name].outcome
            assert outcome is not None
            yield from _end_slash(state, about, dirty, "overturned", outcome)
            yield "UPDATE runs SET overturned=overturned+1 WHERE run=?", (about.run,)
            yield from _move_outcome(state, about.run, name, outcome)


def _add_round(state: LedgerState, about: FoldedEntry) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    submission = state.runs[run].submissions[entry.submission]
    drawn = json.dumps([str(node) for node in entry.validators])
    yield "INSERT INTO rounds VALUES (?,?,?,?,?,?)", (
        entry.submission, entry.round, about.index, about.at_ms, entry.randomness_round, drawn,
    )  # fmt: skip
    yield DRAW, (about.at_ms, len(entry.validators), entry.submission)
    if entry.round == 0:
        yield "UPDATE runs SET audited=audited+1 WHERE run=?", (run,)
    yield COUNT_DRAW, (about.at_ms, entry.round == 0, run, submission.step)


def _accept_unaudited(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    for name in entry.submissions:
        submission = state.runs[run].submissions[name]
        yield "INSERT INTO rounds VALUES (?,?,?,?,?,?)", (
            name, 0, about.index, about.at_ms, entry.randomness_round, json.dumps([]),
        )  # fmt: skip
        yield DRAW, (about.at_ms, 0, name)
        yield COUNT_DRAW, (about.at_ms, False, run, submission.step)
        yield from _settle(state, about, name, Outcome.ACCEPT, dirty)
    yield "UPDATE runs SET undrawn=undrawn+? WHERE run=?", (len(entry.submissions), run)


def _add_verdict(state: LedgerState, about: FoldedEntry) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    name = entry.receipt.submission
    rounds = state.runs[run].submissions[name].rounds
    number = next(place for place, each in enumerate(rounds) if about.author in each.validators)
    metrics = {metric.name: metric.value for metric in entry.metrics}
    yield ADD_VERDICT, (
        about.index, about.at_ms, run, name, about.author, number, str(entry.outcome), entry.reason,
        entry.receipt.evidence, json.dumps(metrics), metrics.get(REWARD_METRIC),
    )  # fmt: skip
    yield "UPDATE submissions SET verdicts=verdicts+1 WHERE submission=?", (name,)
    yield "UPDATE nodes SET verdicts=verdicts+1 WHERE node=?", (about.author,)
    yield "UPDATE runs SET verdicts=verdicts+1 WHERE run=?", (run,)


def _inspect(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    """Compare read proofs as the ledger does, and store their distance. A refuted verdict stays refuted."""
    name, run = about.entry.submission, about.run
    assert run is not None
    said = {node: proof for each in state.runs[run].submissions[name].rounds for node, proof in each.read_proof.items()}
    for seen in about.entry.seen:
        error = compute_read_proof_error(said[seen.reader], seen.read_proof)
        distance = error if isfinite(error) else None
        yield INSPECT, (is_read_proof_refuted(said[seen.reader], seen.read_proof), distance, name, seen.reader)
        dirty.nodes.setdefault(seen.reader, about)


def _settle(
    state: LedgerState, about: FoldedEntry, name: Digest, outcome: Outcome, dirty: DirtyRows
) -> Iterator[SqlWrite]:
    run = about.run
    assert run is not None
    submission = state.runs[run].submissions[name]
    yield SETTLE, (
        PROGRESS[outcome], about.index, about.at_ms, name, name, str(outcome), explain(submission), name,
    )  # fmt: skip
    yield "UPDATE steps SET last_settled_ms=? WHERE run=? AND step=?", (about.at_ms, run, submission.step)
    yield from _count_outcome(state, submission, run, outcome, 1)
    if outcome is Outcome.ACCEPT:
        yield COUNT_REWARD, (name, name, run, submission.step)
    dirty.nodes.setdefault(submission.node, about)
    dirty.steps[(run, submission.step)] = None
    if outcome is not Outcome.FRAUDULENT:
        yield from _uphold(submission, name)


def explain(submission: SubmissionState) -> str:
    """Why a submission was settled, if no verdict says it."""
    if submission.outcome is Outcome.INVALID and submission.judged is None:
        return "the validators did not reach a majority, and no inspector decided in time"
    return ""


def _count_outcome(
    state: LedgerState, submission: SubmissionState, run: RunId, outcome: Outcome, sign: int
) -> Iterator[SqlWrite]:
    """Accepted rollouts and tokens count as verified, whether or not validators were drawn."""
    column = PROGRESS[outcome]
    is_verified = sign if outcome is Outcome.ACCEPT else 0
    samples = state.runs[run].steps[submission.step].terms.samples_per_slot
    rollouts, tokens = is_verified * len(submission.slots) * samples, is_verified * submission.output_tokens
    for table, where, key in (
        ("steps", "run=? AND step=?", (run, submission.step)),
        ("contributions", "node=? AND run=? AND step=?", (submission.node, run, submission.step)),
        ("runs", "run=?", (run,)),
    ):
        yield f"UPDATE {table} SET {column}={column}+?, rollouts=rollouts+?, tokens=tokens+? WHERE {where}", (
            sign, rollouts, tokens, *key,
        )  # fmt: skip
    yield "UPDATE nodes SET rollouts=rollouts+?, tokens=tokens+? WHERE node=?", (rollouts, tokens, submission.node)


def _uphold(submission: SubmissionState, name: Digest) -> Iterator[SqlWrite]:
    """Mark the upheld verdicts once the outcome is final. Without a majority, none is marked."""
    if submission.judged is None:
        return
    yield UNCOUNT_UPHELD, (name,)
    yield "UPDATE verdicts SET upheld=(outcome=?) WHERE submission=?", (str(submission.judged), name)
    for each in submission.rounds:
        for node, found in each.verdicts.items():
            if found is submission.judged:
                yield "UPDATE nodes SET upheld=upheld+1 WHERE node=?", (node,)


def _move_outcome(state: LedgerState, run: RunId, name: Digest, outcome: Outcome) -> Iterator[SqlWrite]:
    """The slash was overturned: the fraudulent outcome no longer stands."""
    submission = state.runs[run].submissions[name]
    yield from _count_outcome(state, submission, run, Outcome.FRAUDULENT, -1)
    yield from _count_outcome(state, submission, run, outcome, 1)
    yield "UPDATE submissions SET progress=? WHERE submission=?", (PROGRESS[outcome], name)


def _uphold_finding(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    """The accepted outcome and the credit no longer stand; the slash that follows is told like any other."""
    name, run = about.entry.submission, about.run
    assert run is not None
    submission = state.runs[run].submissions[name]
    units = compute_submission_units(state.runs[run].get_terms(submission), submission)
    yield from _count_outcome(state, submission, run, Outcome.ACCEPT, -1)
    yield from _count_outcome(state, submission, run, Outcome.FRAUDULENT, 1)
    yield UNCREDIT, (name,)
    yield "UPDATE steps SET units=units-?, slots_done=slots_done-? WHERE run=? AND step=?", (
        units, len(submission.slots), run, submission.step,
    )  # fmt: skip
    yield "UPDATE contributions SET units=units-? WHERE node=? AND run=? AND step=?", (
        units, submission.node, run, submission.step,
    )  # fmt: skip
    yield "UPDATE runs SET units=units-? WHERE run=?", (units, run)
    dirty.nodes.setdefault(submission.node, about)
    dirty.steps[(run, submission.step)] = None


def _dismiss_finding(state: LedgerState, about: FoldedEntry, finder: NodeId) -> Iterator[SqlWrite]:
    name, run = about.entry.submission, about.run
    assert run is not None
    submission = state.runs[run].submissions[name]
    # The ledger keeps the finders that judges did not agree with. Each can be among them once.
    is_decided = finder in state.runs[run].dismissed.get(name, ())
    yield "UPDATE submissions SET finding=? WHERE submission=?", ("dismissed" if is_decided else "undecided", name)
    if submission.judged is Outcome.ACCEPT:
        yield from _uphold(submission, name)


# --- Slashes ----------------------------------------------------------------------------------------------------------


def _propose(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    slash = state.runs[run].slashes[entry.submission]
    yield ADD_SLASH, (
        entry.submission, about.index, about.at_ms, run, slash.node, slash.owner, entry.amount_nano, entry.evidence,
        slash.appeal_until_ms, str(slash.slash_to), slash.rounds_before, slash.bond_nano,
    )  # fmt: skip
    yield "UPDATE submissions SET slash='proposed' WHERE submission=?", (entry.submission,)
    yield "UPDATE runs SET slashes=slashes+1 WHERE run=?", (run,)
    dirty.nodes.setdefault(slash.node, about)


def _appeal(state: LedgerState, about: FoldedEntry, dirty: DirtyRows) -> Iterator[SqlWrite]:
    entry, run = about.entry, about.run
    assert run is not None
    yield APPEAL, (about.index, about.at_ms, about.author, entry.reason, entry.submission)
    yield "UPDATE submissions SET slash='appealed' WHERE submission=?", (entry.submission,)
    dirty.accounts[state.runs[run].slashes[entry.submission].owner] = None


def _end_slash(
    state: LedgerState, about: FoldedEntry, dirty: DirtyRows, end: str, outcome: Outcome
) -> Iterator[SqlWrite]:
    name, run = about.entry.submission, about.run
    assert run is not None
    submission = state.runs[run].submissions[name]
    yield "UPDATE slashes SET progress=?, ended_idx=?, ended_ms=?, outcome=? WHERE submission=?", (
        end, about.index, about.at_ms, str(outcome), name,
    )  # fmt: skip
    yield "UPDATE submissions SET slash=? WHERE submission=?", (end, name)
    yield from _uphold(submission, name)
    dirty.nodes.setdefault(submission.node, about)
    dirty.accounts[submission.owner] = None


# --- Statements -------------------------------------------------------------------------------------------------------

DRAW = (
    "UPDATE submissions SET drawn_ms=ifnull(drawn_ms,?), validators=validators+?,"
    " progress=CASE WHEN progress='waiting' THEN 'auditing' ELSE progress END WHERE submission=?"
)
COUNT_DRAW = "UPDATE steps SET first_drawn_ms=ifnull(first_drawn_ms,?), audited=audited+? WHERE run=? AND step=?"
ADD_VERDICT = "INSERT INTO verdicts VALUES (?,?,?,?,?,?,?,?,?,?,?,NULL,NULL,NULL)"
INSPECT = "UPDATE verdicts SET refuted=?, read_proof_error=? WHERE submission=? AND validator=? AND refuted IS NOT 1"
SETTLE = (
    "UPDATE submissions SET progress=?, settled_idx=?, settled_ms=?,"
    " reward=(SELECT avg(reward) FROM verdicts WHERE submission=?),"
    " reason=coalesce((SELECT reason FROM verdicts WHERE submission=? AND outcome=? AND reason!=''"
    " ORDER BY idx LIMIT 1), ?) WHERE submission=?"
)
UNCOUNT_UPHELD = (
    "UPDATE nodes SET upheld=upheld-1 WHERE node IN (SELECT validator FROM verdicts WHERE submission=? AND upheld=1)"
)
UNCREDIT = (
    "UPDATE submissions SET progress='fraudulent', finding='upheld', units=NULL, credited_idx=NULL, paid_idx=NULL"
    " WHERE submission=?"
)
COUNT_REWARD = (
    "UPDATE steps SET reward_sum=reward_sum+ifnull((SELECT reward FROM submissions WHERE submission=?),0),"
    " rewards=rewards+(SELECT reward IS NOT NULL FROM submissions WHERE submission=?) WHERE run=? AND step=?"
)
ADD_SLASH = (
    "INSERT INTO slashes (submission, idx, at_ms, run, node, owner, amount_nano, evidence, appeal_until_ms, slash_to,"
    " rounds_before, bond_nano, progress) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,'proposed')"
)
APPEAL = (
    "UPDATE slashes SET progress='appealed', appealed_idx=?, appealed_ms=?, appealed_by=?, appeal_reason=?"
    " WHERE submission=?"
)
