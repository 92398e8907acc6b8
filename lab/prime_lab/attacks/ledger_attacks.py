"""Attacks on the books and among validators, in the simulator: the coordinator's and the nodes' own decisions.

A world with adversaries of one kind runs to its end. Every checker checks it from outside, and a judge then says what
became of the adversaries.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    CROSS_RUN,
    LEDGER_ATTACKS,
    VALIDATOR_ATTACKS,
)
from prime_lab.simulator.finished_world import FinishedWorld
from prime_lab.simulator.log_history import LoggedSubmission, LogHistory
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.rare_adversaries import find_victim
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import AdversaryAttempt
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.audits import compute_audit_rate_bps
from prime_protocol.ledger.entries import Outcome as Finding
from prime_protocol.ledger.state import RunState
from prime_protocol.wire.ids import NodeId

NODES, STEPS = 24, 2
VALIDATOR_WORLD_NODES = 64
"""Nodes of a world of lying validators: every fourth validates, and three in sixteen of those lie. Where a third of a
handful of validators lies together, a quorum of three cannot be kept clear of them; docs/verification.md says so."""


SEEDS = range(3, 64)
"""Worlds that are tried until one gives the adversaries an occasion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerScenario:
    """Who lies in it, and what must come of that."""

    adversaries: tuple[str, ...]
    judge: Callable[[FinishedWorld], AttackResult | None]
    """None where the adversaries had no occasion."""
    nodes: int = NODES
    steps: int = STEPS
    malicious: float = 0.25
    inspectors: int = 0
    finders: int = 0
    false_finders: int = 0

    def plan(self, seed: int) -> SimulationPlan:
        return SimulationPlan(
            seed=seed,
            nodes=self.nodes,
            steps=self.steps,
            malicious=self.malicious,
            adversaries=self.adversaries,
            inspectors=self.inspectors,
            finders=self.finders,
            false_finders=self.false_finders,
        )


def make_result(verdict: AttackVerdict, is_so: bool, reason: str, *checks: str) -> AttackResult:
    """That verdict with what named it, or that the lie went through."""
    return AttackResult(verdict=verdict if is_so else None, checks=checks if is_so else (), reason=reason)


# --- Workers --------------------------------------------------------------------------------------------------------


def judge_refused(finished: FinishedWorld) -> AttackResult | None:
    """Everything that adversaries sent beyond their own work was refused, by the field that is named."""
    refused, taken = count_tries(finished)
    if not refused and not taken:
        return None
    told = f"{refused.total()} tries refused, {taken} taken"
    return make_result(AttackVerdict.REFUSED, not taken, told, *refused)


def judge_duplicates(finished: FinishedWorld) -> AttackResult | None:
    """Of two answers to one lease the second is refused, whichever that is."""
    refused, taken = count_tries(finished)
    answers = Counter(logged.receipt.lease for logged in finished.history.submissions.values())
    twice = sum(count > 1 for count in answers.values())
    if not refused:
        return None
    told = f"{refused.total()} answers refused, {taken} came first; {twice} leases have two"
    return make_result(AttackVerdict.REFUSED, not twice, told, *refused)


def count_tries(finished: FinishedWorld) -> tuple[Counter[str], int]:
    """What adversaries tried: refusals by the field that was named, and how many were taken."""
    fields = [each.field for each in finished.world.attempts if each.field is not None]
    return Counter(field for field in fields if field), fields.count("")


def count_forged(finished: FinishedWorld) -> tuple[list[LoggedSubmission], int, int]:
    """The forged files, how many of them were drawn, and how many of the drawn are rejected as fraud."""
    forged = [logged for logged in finished.history.submissions.values() if finished.is_forged(logged)]
    drawn = [logged for logged in forged if logged.is_audited]
    return forged, len(drawn), sum(logged.outcome is Finding.FRAUDULENT for logged in drawn)


def judge_forgers(finished: FinishedWorld) -> AttackResult | None:
    """What was drawn and forged is rejected and slashed."""
    forged, drawn, fraudulent = count_forged(finished)
    slashed = sum(bool(logged.executed) for logged in forged)
    if not drawn:
        return None
    told = f"{len(forged)} forged files, {drawn} drawn, {fraudulent} rejected, {slashed} slashed"
    return make_result(AttackVerdict.FRAUDULENT, fraudulent == drawn and bool(slashed), told, "audit")


def judge_grinders(finished: FinishedWorld) -> AttackResult | None:
    """Their files are drawn although the last known randomness would have spared each of them, and then rejected."""
    forged, drawn, fraudulent = count_forged(finished)
    if not drawn:
        return None
    told = f"{len(forged)} forged files that should not be drawn, {drawn} drawn, {fraudulent} rejected"
    return make_result(AttackVerdict.FRAUDULENT, fraudulent == drawn, told, "audit")


def judge_swappers(finished: FinishedWorld) -> AttackResult | None:
    """As forgers, and the honest file that came after the draw changed nothing."""
    refused, taken = count_tries(finished)
    judged = judge_forgers(finished)
    if judged is None or not (refused or taken):
        return None
    return replace(
        judged,
        verdict=None if taken else judged.verdict,
        reason=f"{refused.total()} swaps refused, {taken} taken; {judged.reason}",
    )


def judge_two_keys(finished: FinishedWorld) -> AttackResult | None:
    """Two keys of one owner answered leases of the same slots with one work, and it was paid once."""
    history = finished.history
    answers: dict[tuple[int, range, NodeId], list[LoggedSubmission]] = {}
    for logged in history.submissions.values():
        node = logged.receipt.node
        if logged.lease is not None and node not in finished.honest:
            answers.setdefault((logged.receipt.step, logged.lease.slots, history.owners[node]), []).append(logged)
    pairs = [
        submissions for submissions in answers.values() if len({logged.receipt.node for logged in submissions}) > 1
    ]
    twice = sum(sum(bool(logged.credited) for logged in submissions) > 1 for submissions in pairs)
    if not pairs:
        return None
    told = f"{len(pairs)} times two keys of one owner answered the same slots, {twice} times both were paid"
    return make_result(AttackVerdict.REFUSED, not twice, told, "slots")


# --- Validators -----------------------------------------------------------------------------------------------------


def judge_validators(finished: FinishedWorld) -> AttackResult | None:
    """Their verdicts do not stand, and are held against them."""
    scored = [
        line
        for logged in finished.history.submissions.values()
        for line in logged.scored
        if line.entry.validator not in finished.honest
    ]
    if not scored:
        return None
    told = f"{len(scored)} verdicts of adversaries were overruled and counted against them"
    return make_result(AttackVerdict.OVERRULED, True, told, "score")


def judge_unread(finished: FinishedWorld) -> AttackResult | None:
    """Every inspected file refutes the validators that had not read it, and no honest one; refuted ones lose pay."""
    submissions = finished.history.submissions.values()
    seen = [seen.reader for logged in submissions for line in logged.inspected for seen in line.entry.seen]
    adversaries = sum(reader not in finished.honest for reader in seen)
    if not adversaries:
        return None
    unread = [reader for logged in submissions for reader in logged.unread()]
    found = sum(reader not in finished.honest for reader in unread)
    others = len(unread) - found
    earned = compute_verdict_pay_ratio(finished)
    told = f"{found} of {adversaries} inspected verdicts of adversaries were found unread, and {others} of the others"
    paid = f"their pay for a verdict was {earned:.2f} of what the honest got"
    is_so = found == adversaries and not others and earned < 1
    return make_result(AttackVerdict.OVERRULED, is_so, f"{told}; {paid}", "read_proof")


def judge_copied(finished: FinishedWorld) -> AttackResult | None:
    """Whoever waited to read a verdict of its round could neither commit nor give one, and earned less for it."""
    core = finished.world.host.core
    assert core is not None, "the world has come to rest"
    drawn = {
        node
        for logged in finished.history.submissions.values()
        for line in logged.draws
        for node in line.entry.validators
    }
    refused, taken = count_tries(finished)
    if not drawn - finished.honest or not (refused or taken):
        return None
    earned = {
        is_honest: [core.state.nodes[node].earned_nano for node in drawn if (node in finished.honest) is is_honest]
        for is_honest in (True, False)
    }
    means = {is_honest: sum(amounts) / max(1, len(amounts)) for is_honest, amounts in earned.items()}
    told = f"{refused.total()} copies refused, {taken} taken"
    paid = f"a copier earned {means[False] / max(1, means[True]):.2f} of what an honest validator did"
    is_so = not taken and means[False] < means[True]
    return make_result(AttackVerdict.REFUSED, is_so, f"{told}; {paid}", *refused)


def compute_verdict_pay_ratio(finished: FinishedWorld) -> float:
    """What adversaries among the validators earned for a verdict, as a part of what the honest did."""
    core = finished.world.host.core
    assert core is not None, "the world has come to rest"
    given = Counter(line.author for logged in finished.history.submissions.values() for line in logged.verdicts)
    earned: Counter[bool] = Counter()
    verdicts: Counter[bool] = Counter()
    for node, count in given.items():
        earned[node in finished.honest] += core.state.nodes[node].earned_nano
        verdicts[node in finished.honest] += count
    return earned[False] / verdicts[False] / (earned[True] / verdicts[True])


def judge_leaks(finished: FinishedWorld) -> AttackResult | None:
    """A drawn worker was told in time, tried to swap its file, was refused, and the file that was drawn was judged."""
    history = finished.history
    told = [each for each in finished.world.attempts if each.field is not None and is_open(history, each)]
    if not told:
        return None
    taken = sum(not each.field for each in told)
    submissions = [history.submissions[name] for name in {each.submission for each in told}]
    fraudulent = sum(logged.outcome is Finding.FRAUDULENT for logged in submissions)
    reason = f"{len(told)} swaps after a leak, {taken} taken; {fraudulent} of {len(submissions)} such files rejected"
    fields = {each.field for each in told if each.field}
    return make_result(AttackVerdict.HARMLESS, not taken and fraudulent == len(submissions), reason, *sorted(fields))


def is_open(history: LogHistory, each: AdversaryAttempt) -> bool:
    """Whether the submission that a try was about was drawn and not settled at that time."""
    logged = history.submissions.get(each.submission)
    if logged is None or not logged.draws or not logged.settled:
        return False
    return logged.draws[0].at_ms <= each.at_ms <= logged.settled[0].at_ms


def judge_silent(finished: FinishedWorld) -> AttackResult | None:
    """Silent validators only delay: others were drawn instead, and honest work was accepted."""
    held_up = [
        logged
        for logged in finished.history.submissions.values()
        if any(node not in finished.honest for line in logged.draws for node in line.entry.validators)
    ]
    spoke = sum(line.author not in finished.honest for logged in held_up for line in logged.verdicts)
    accepted = sum(logged.outcome is Finding.ACCEPT for logged in held_up)
    rounds = max((len(logged.draws) for logged in held_up), default=0)
    if not held_up or spoke:
        return None
    told = f"{len(held_up)} files had a silent judge, {accepted} accepted after up to {rounds} rounds"
    return make_result(AttackVerdict.HARMLESS, accepted == len(held_up), told, "rounds")


def judge_persecutors(finished: FinishedWorld) -> AttackResult | None:
    """The victim is paid for all of its work, and who lied about it loses stake."""
    accused = [
        logged
        for logged in list_accused(finished)
        if any(line.author not in finished.honest for line in logged.verdicts)
    ]
    scored = [line for logged in accused for line in logged.scored]
    lost = Counter(line.entry.validator in finished.honest for line in scored if line.entry.penalty_nano)
    paid = sum(bool(logged.credited) for logged in accused)
    lies = sum(line.author not in finished.honest for logged in accused for line in logged.verdicts)
    if not accused:
        return None
    told = f"{lies} false verdicts on {len(accused)} files, {paid} of them credited; {lost[False]} verdicts cost stake"
    is_so = paid == len(accused) and bool(lost[False]) and not lost[True]
    return make_result(AttackVerdict.OVERRULED, is_so, told, "penalty_nano")


def list_accused(finished: FinishedWorld) -> list[LoggedSubmission]:
    """Files of the victim that a dishonest validator was drawn for."""
    victim = find_victim(finished.history)
    return [
        logged
        for logged in finished.history.submissions.values()
        if logged.receipt.node == victim
        and any(node not in finished.honest for line in logged.draws for node in line.entry.validators)
    ]


def judge_deniers(finished: FinishedWorld) -> AttackResult | None:
    """The victim is paid for all of its work, and the verdicts against it are counted against their authors."""
    accused = list_accused(finished)
    lies = [line for logged in accused for line in logged.verdicts if line.author not in finished.honest]
    if not lies:
        return None
    scored = Counter(line.entry.validator in finished.honest for logged in accused for line in logged.scored)
    paid = sum(bool(logged.credited) for logged in accused)
    told = f"{len(lies)} false verdicts on {len(accused)} files, {paid} of them credited; {scored[False]} were scored"
    is_so = paid == len(accused) and scored[False] == len(lies) and not scored[True]
    return make_result(AttackVerdict.OVERRULED, is_so, told, "score")


def judge_withholders(finished: FinishedWorld) -> AttackResult | None:
    """All of the victim's work is accepted; a delay may give the credit to a second lease of the same slots."""
    accused = list_accused(finished)
    withheld = sum(
        line.author not in finished.honest and line.author not in {given.author for given in logged.verdicts}
        for logged in accused
        for line in logged.committed
    )
    if not withheld:
        return None
    accepted = sum(logged.outcome is Finding.ACCEPT for logged in accused)
    told = f"{withheld} verdicts on {len(accused)} files were committed and withheld, {accepted} of the files accepted"
    return make_result(AttackVerdict.HARMLESS, accepted == len(accused), told, "rounds")


LEDGER_SCENARIOS: dict[str, LedgerScenario] = {
    "late": LedgerScenario(adversaries=("latecomer",), judge=judge_refused),
    "backdated": LedgerScenario(adversaries=("backdater",), judge=judge_refused),
    "copycat": LedgerScenario(adversaries=("copycat",), judge=judge_refused),
    "two-keys": LedgerScenario(adversaries=("two-keys",), malicious=1.0, judge=judge_two_keys),
    "duplicate": LedgerScenario(adversaries=("duplicator",), judge=judge_duplicates),
    "swapped-when-drawn": LedgerScenario(adversaries=("swapper",), judge=judge_swappers),
    "runs-with-stake": LedgerScenario(adversaries=("runner",), judge=judge_forgers),
    "sleeper": LedgerScenario(adversaries=("sleeper",), judge=judge_forgers),
    "worker-ground-draw": LedgerScenario(adversaries=("draw-grinder",), judge=judge_grinders, steps=10),
    "lazy": LedgerScenario(
        adversaries=("lazy", "forger"), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, inspectors=1, judge=judge_unread
    ),
    "vindictive": LedgerScenario(
        adversaries=("vindictive",), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_validators
    ),
    "colluding-minority": LedgerScenario(
        adversaries=("colluder", "forger"), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_validators
    ),
    "copies-verdicts": LedgerScenario(
        adversaries=("parrot", "forger"), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, inspectors=1, judge=judge_unread
    ),
    "copied-verdict": LedgerScenario(
        adversaries=("waiter",), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_copied
    ),
    "starved-victim": LedgerScenario(
        adversaries=("persecutor",), nodes=VALIDATOR_WORLD_NODES, malicious=1 / 3, judge=judge_persecutors
    ),
    "denied-victim": LedgerScenario(
        adversaries=("denier",), nodes=VALIDATOR_WORLD_NODES, malicious=1 / 3, judge=judge_deniers
    ),
    "withheld-verdict": LedgerScenario(
        adversaries=("withholder",), nodes=VALIDATOR_WORLD_NODES, malicious=1 / 3, judge=judge_withholders
    ),
    "leaks-draws": LedgerScenario(adversaries=("confidant", "leaker"), malicious=0.5, judge=judge_leaks),
    "silent": LedgerScenario(adversaries=("silent",), nodes=VALIDATOR_WORLD_NODES, malicious=0.2, judge=judge_silent),
}


def attack_networks() -> Iterator[tuple[Attack, AttackResult]]:
    for attack in (*LEDGER_ATTACKS, *VALIDATOR_ATTACKS):
        yield attack, attack_network(LEDGER_SCENARIOS[attack.name])


def attack_reputation() -> Iterator[tuple[Attack, AttackResult]]:
    """The node with the best name of a finished world goes to a run that pays more."""
    for seed in SEEDS:
        _, finished = simulate_world(LEDGER_SCENARIOS["sleeper"].plan(seed))
        core = finished.world.host.core
        assert core is not None, "the world has come to rest"
        cheap = next(iter(core.state.runs.values()))
        dear = RunState(replace(cheap.terms, step_budget_nano=100 * cheap.terms.step_budget_nano))
        node = max(cheap.records, key=lambda each: cheap.records[each].streak)
        rates = [compute_audit_rate_bps(run.get_record(node).streak, run.terms) for run in (cheap, dear)]
        if rates[0] < BASIS_POINTS:
            shares = [f"{rate / BASIS_POINTS:.0%}" for rate in rates]
            told = f"{shares[0]} of its files are audited where it earned its name, {shares[1]} in the other run"
            yield CROSS_RUN, make_result(AttackVerdict.HARMLESS, rates[1] == BASIS_POINTS, told, "audit_rate")
            return
    yield CROSS_RUN, AttackResult(verdict=None, checks=(), reason=f"no node left probation in {len(SEEDS)} worlds")


def attack_network(world: LedgerScenario) -> AttackResult:
    for seed in SEEDS:
        report, finished = simulate_world(world.plan(seed))
        if report.complaints:
            return AttackResult(verdict=None, checks=(), reason=f"seed {seed}: {report.complaints[0]}")
        judged = world.judge(finished)
        if judged is not None:
            return judged
    return AttackResult(verdict=None, checks=(), reason=f"the adversaries had no occasion in {len(SEEDS)} worlds")
