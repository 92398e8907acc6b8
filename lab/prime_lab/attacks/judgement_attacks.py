"""Findings, true and false, and validators that leave an owner or join late to judge certain files, in the simulator.

What a finding does to pay is not in any entry. The judges replay the log and look at the state around each finding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    JUDGEMENT_ATTACKS,
)
from prime_lab.attacks.coordinator.grinding import read_entry
from prime_lab.attacks.ledger_attacks import VALIDATOR_WORLD_NODES, LedgerScenario, attack_network, make_result
from prime_lab.simulator.finders import FINDER_BALANCE
from prime_lab.simulator.finding_invariants import compute_bounty_nano
from prime_lab.simulator.finished_world import FinishedWorld
from prime_lab.simulator.log_history import LoggedSubmission
from prime_lab.simulator.world import COIN_NANO, NETWORK, RUN
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.state import LedgerState, RunState
from prime_protocol.wire.ids import DEFAULT_TICKER, Digest, NodeId

Replayed = Iterator[tuple[Any, LedgerState, Callable[[], None]]]


def replay_log(finished: FinishedWorld) -> Replayed:
    """Each entry and the state before it, and a function that applies the entry at once."""
    ledger = Ledger(NETWORK)
    for leaf in finished.world.host.disk:
        size = ledger.state.size
        yield read_entry(leaf), ledger.state, lambda leaf=leaf: ledger.restore(leaf)  # type: ignore[misc]
        if ledger.state.size == size:
            ledger.restore(leaf)


# --- Findings -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PendingPay:
    """Units of a submission's node that are not paid yet, before and after what a finding led to."""

    filed: tuple[int, int] = (0, 0)
    dismissed: tuple[int, int] = (0, 0)
    executed: tuple[int, int] = (0, 0)

    @property
    def held_units(self) -> int:
        return self.filed[0] - self.filed[1]


def trace_pending_pay(finished: FinishedWorld) -> dict[Digest, PendingPay]:
    traced: dict[Digest, PendingPay] = {}
    for entry, state, apply in replay_log(finished):
        if not isinstance(entry, e.FindingFiled | e.FindingDismissed | e.SlashExecuted):
            continue
        run, name = state.runs[RUN], entry.submission
        before = count_pending_units(run, name)
        apply()
        counted, pay = (before, count_pending_units(run, name)), traced.setdefault(name, PendingPay())
        match entry:
            case e.FindingFiled():
                pay.filed = counted
            case e.FindingDismissed():
                pay.dismissed = counted
            case e.SlashExecuted():
                pay.executed = counted
    return traced


def count_pending_units(run: RunState, name: Digest) -> int:
    """Of the node that made a submission, in all steps that are not paid; without what open findings hold back."""
    submission = run.submissions[name]
    pair = (submission.owner, submission.node)
    unpaid = sum(step.units[pair] for step in run.steps.values() if not step.paid)
    held = run.get_record(submission.node).held_units
    return unpaid + run.carried_units[pair] + sum(held[key] for key in held if key[0] == submission.owner)


def get_balance(finished: FinishedWorld, account: NodeId) -> int:
    core = finished.world.host.core
    assert core is not None, "the world has come to rest"
    return core.state.funds.balances[account]


def judge_found(finished: FinishedWorld) -> AttackResult | None:
    """What was forged, not drawn and found is slashed; the node loses its pending pay, the finder gets the bounty."""
    submissions = finished.history.submissions.items()
    found = {
        name: logged
        for name, logged in submissions
        if logged.findings and logged.credited and logged.spared and finished.is_forged(logged)
    }
    if not found:
        return None
    pays = trace_pending_pay(finished)
    slashed = sum(bool(logged.upheld and logged.executed) for logged in found.values())
    # A node that was slashed before has no pending pay left that a further finding could hold back.
    lost = sum((pays[name].held_units > 0 or not pays[name].filed[0]) and not pays[name].executed[1] for name in found)
    is_held = any(pays[name].held_units > 0 for name in found)
    finders = {line.author for logged in found.values() for line in logged.findings}
    gained_nano = sum(get_balance(finished, finder) - FINDER_BALANCE for finder in finders)
    bounty_nano = sum(compute_bounty_nano(logged, finished.history) for logged in found.values())
    told = f"{len(found)} forged files were not drawn and found, {slashed} slashed, {lost} lost their pending pay"
    is_so = is_held and slashed == lost == len(found) and gained_nano >= bounty_nano > 0
    return make_result(
        AttackVerdict.FRAUDULENT,
        is_so,
        f"{told}; the finders gained {gained_nano / COIN_NANO:g} {DEFAULT_TICKER}",
        "finding",
    )


def judge_false_findings(finished: FinishedWorld) -> AttackResult | None:
    """Every finding about an honest file is dismissed and costs its bond; the worker has the same units as before."""
    accused = {
        name: logged
        for name, logged in finished.history.submissions.items()
        if logged.findings and not finished.is_forged(logged)
    }
    if not accused:
        return None
    pays = trace_pending_pay(finished)
    filed = [line.author for logged in accused.values() for line in logged.findings]
    kept = sum(is_kept(pays[name], logged) for name, logged in accused.items())
    lost_nano = sum(FINDER_BALANCE - get_balance(finished, author) for author in set(filed))
    bonds_nano = len(filed) * finished.history.terms.finding_bond_nano
    told = f"{len(filed)} findings about {len(accused)} honest files, {kept} of these keep their pay"
    is_so = kept == len(accused) and lost_nano == bonds_nano
    return make_result(
        AttackVerdict.OVERRULED,
        is_so,
        f"{told}; the finders lost {lost_nano / COIN_NANO:g} {DEFAULT_TICKER}",
        "finding",
    )


def is_kept(pay: PendingPay, logged: LoggedSubmission) -> bool:
    """Whether the units that the last finding held back were given back, and nothing was slashed."""
    returned = pay.dismissed[1] - pay.dismissed[0]
    is_slashed = bool(logged.upheld or logged.proposed)
    return not is_slashed and len(logged.dismissed) == len(logged.findings) and returned == pay.held_units > 0


# --- Owners ---------------------------------------------------------------------------------------------------------


def judge_left_owners(finished: FinishedWorld) -> AttackResult | None:
    """Present owners alone would have let a validator judge the owner that it has left; the draws did not."""
    wrong, spared = 0, 0
    for entry, state, _ in replay_log(finished):
        if not isinstance(entry, e.AuditDrawn):
            continue
        left = list_who_left(state, entry.submission)
        wrong += not left.isdisjoint(entry.validators)
        spared += not left.isdisjoint(draw_by_present_owners(state, entry.submission, left))
    if not wrong and not spared:
        return None
    told = f"{spared} draws would have named a validator that has left the worker's owner, {wrong} did"
    return make_result(AttackVerdict.HARMLESS, not wrong, told, "owner")


def list_who_left(state: LedgerState, name: Digest) -> set[NodeId]:
    """Validators that belonged to the owner of a submission, as it was when the lease was granted."""
    run = state.runs[RUN]
    owner = run.submissions[name].owner
    return {node for node in run.validators if owner in state.nodes[node].past_owners}


def draw_by_present_owners(state: LedgerState, name: Digest, left: set[NodeId]) -> Sequence[NodeId]:
    """The draw that would come next if the ledger forgot whom these validators have left."""
    past = {node: state.nodes[node].past_owners for node in left}
    for node in left:
        state.nodes[node].past_owners = {}
    drawn = compute_draw(state, state.runs[RUN], name, state.at_ms)
    for node, owners in past.items():
        state.nodes[node].past_owners = owners
    return drawn or ()


def judge_disowned_workers(finished: FinishedWorld) -> AttackResult | None:
    """Draws that exclude the worker's present owner alone would have named a validator of the owner that had the lease;
    the draws did not."""
    wrong, spared = 0, 0
    for entry, state, _ in replay_log(finished):
        if not isinstance(entry, e.AuditDrawn):
            continue
        submission = state.runs[RUN].submissions[entry.submission]
        lease = finished.history.submissions[entry.submission].lease
        assert lease is not None, "intake takes answers to leases only"
        leased, present = lease.owner, state.owners[submission.node]
        own = {node for node in state.runs[RUN].validators if leased in state.list_owners(node, state.at_ms)}
        if present == leased or not own:
            continue
        wrong += not own.isdisjoint(entry.validators)
        frozen, submission.owner = submission.owner, present
        spared += not own.isdisjoint(compute_draw(state, state.runs[RUN], entry.submission, state.at_ms) or ())
        submission.owner = frozen
    if not wrong and not spared:
        return None
    told = f"{spared} draws would have named a validator of the owner that a worker has left, {wrong} did"
    return make_result(AttackVerdict.HARMLESS, not wrong, told, "owner")


# --- Candidates -----------------------------------------------------------------------------------------------------


def judge_late_candidates(finished: FinishedWorld) -> AttackResult | None:
    """A draw among all present validators would have named one that joined after the head; the draws did not."""
    wrong, spared = 0, 0
    for entry, state, _ in replay_log(finished):
        if not isinstance(entry, e.AuditDrawn):
            continue
        run = state.runs[RUN]
        before = run.submissions[entry.submission].candidates_before
        late = {node for node, since in run.validators.items() if since >= before}
        wrong += not late.isdisjoint(entry.validators)
        run.submissions[entry.submission].candidates_before = state.size
        spared += not late.isdisjoint(compute_draw(state, run, entry.submission, state.at_ms) or ())
        run.submissions[entry.submission].candidates_before = before
    if not wrong and not spared:
        return None
    told = f"{spared} draws among all would have named a validator that joined after the head, {wrong} did"
    return make_result(AttackVerdict.HARMLESS, not wrong, told, "candidates")


def judge_suspended_candidates(finished: FinishedWorld) -> AttackResult | None:
    """A draw among the validators of the moment would have missed one that was suspended after the head; the draws did
    not. Who was a candidate at a head is read from the log here, not from what the ledger remembers of it.
    """
    wrong, spared = 0, 0
    heads: dict[int, dict[NodeId, int]] = {}
    for entry, state, _ in replay_log(finished):
        if isinstance(entry, e.HeadNoted) and RUN in state.runs:
            heads[state.size] = dict(state.runs[RUN].validators)
        if not isinstance(entry, e.AuditDrawn) or not entry.validators:
            continue
        run = state.runs[RUN]
        present, at_head = run.validators, heads[run.submissions[entry.submission].candidates_before]
        suspended = {
            node: since
            for node, since in at_head.items()
            if present.get(node) != since and state.is_registered_fit(RUN, node)
        }
        by_moment = draw_among(state, entry.submission, present)
        by_head = draw_among(state, entry.submission, {**present, **suspended})
        spared += by_moment != by_head
        wrong += entry.validators != by_head
    if not wrong and not spared:
        return None
    told = f"{spared} draws among all would have missed a validator that was suspended after the head, {wrong} did"
    return make_result(AttackVerdict.HARMLESS, not wrong, told, "candidates")


def draw_among(state: LedgerState, name: Digest, candidates: dict[NodeId, int]) -> Sequence[NodeId]:
    """The next draw if these were the candidates and no suspension was remembered."""
    run = state.runs[RUN]
    present, former = run.validators, run.former
    run.validators, run.former = candidates, {}
    drawn = compute_draw(state, run, name, state.at_ms)
    run.validators, run.former = present, former
    return drawn or ()


JUDGEMENT_SCENARIOS: dict[str, LedgerScenario] = {
    "found-after-the-draw": LedgerScenario(
        adversaries=("draw-grinder",), nodes=VALIDATOR_WORLD_NODES, steps=10, finders=2, judge=judge_found
    ),
    "false-finding": LedgerScenario(
        adversaries=("forger",), nodes=VALIDATOR_WORLD_NODES, malicious=0.0, false_finders=2, judge=judge_false_findings
    ),
    "revoked-owner-draw": LedgerScenario(adversaries=("leaver",), malicious=1.0, judge=judge_left_owners),
    "disowned-worker": LedgerScenario(adversaries=("disowned",), malicious=1.0, judge=judge_disowned_workers),
    "late-candidate": LedgerScenario(
        adversaries=("joiner",), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_late_candidates
    ),
    "suspended-candidate": LedgerScenario(
        adversaries=("suspender",), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_suspended_candidates
    ),
}


def attack_judgement() -> Iterator[tuple[Attack, AttackResult]]:
    for attack in JUDGEMENT_ATTACKS:
        yield attack, attack_network(JUDGEMENT_SCENARIOS[attack.name])
