"""Turns the facts about a network into a checklist: what is missing before it can work for others. Pure.

Each line names the cause and the command that removes it. A devnet on one machine is allowed what a public network is
not: there the same finding is a note.
"""

from collections.abc import Iterator

from prime_coordinator.constants import (
    CALIBRATION_OLD_MS,
    DISK_FREE_BYTES_MIN,
    DISK_FREE_BYTES_NOTED,
    FUNDED_MS_NOTED,
    QUORUMS_MIN,
    ROUND_LATE_S,
    TRAINER_SILENT_MS,
)
from prime_coordinator.readiness.facts import NetworkFacts, RunFacts
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_runtime.checklist import CheckGrade, CheckResult, make_result
from prime_runtime.formatting import format_amount, format_bytes, format_duration, format_relative_time

DAY_MS = 24 * 3_600_000


def build_readiness(facts: NetworkFacts) -> list[CheckResult]:
    """All lines, the network's first, then each run's."""
    lines = [
        *check_address(facts),
        check_value(facts),
        *check_randomness(facts),
        check_disk(facts),
        check_nodes(facts),
    ]
    if not facts.runs:
        advice = "create one: docs/operating/first-run.md"
        missing = CheckGrade.MISSING
        return [*lines, CheckResult(what="runs", found="none", needed="one", advice=advice, grade=missing)]
    for run in facts.runs:
        lines += check_run(facts, run)
    return lines


def _grade(facts: NetworkFacts) -> CheckGrade:
    """The grade of what only a public network cannot do without."""
    return CheckGrade.NOTE if facts.is_devnet else CheckGrade.MISSING


# --- The network ----------------------------------------------------------------------------------------------------


def check_address(facts: NetworkFacts) -> Iterator[CheckResult]:
    address = facts.address
    what = "address"
    if address.is_loopback and not address.url:
        yield CheckResult(
            what=what,
            found="the coordinator listens on this machine only",
            needed="an address that others reach",
            advice="start it with --listen-host 0.0.0.0, or behind a proxy, and name the address with --public-url",
            grade=_grade(facts),
        )
        return
    if not address.url:
        yield CheckResult(
            what=what,
            found="no setting says how others reach it",
            needed="its URL",
            advice="start it with --public-url https://NAME[:PORT]; invite lines and this check need it",
            grade=CheckGrade.NOTE,
        )
        return
    yield make_result(
        what=what,
        found=address.problem or f"{address.url} answers",
        needed="an answer of this coordinator",
        is_good=not address.problem,
        advice="check DNS, port forwarding, the proxy and --public-url. Some routers do not let a machine reach its own"
        " public address: then try it from outside",
    )
    yield make_result(
        what="TLS",
        found=f"{address.url} is {'encrypted' if address.has_tls else 'plain HTTP'}",
        needed="https",
        is_good=address.has_tls,
        advice="messages are signed, but anyone on the way can read them and drop them: give a certificate"
        " (--listen-tls-certificate, --listen-tls-key), or let a proxy do TLS",
        worst=CheckGrade.NOTE,
    )


def check_value(facts: NetworkFacts) -> CheckResult:
    """Where nodes get their stake from."""
    what, needed = "stake for nodes", "a way for nodes to get stake"
    if facts.is_evm:
        return CheckResult(what=what, found="nodes stake tokens of the chain", needed=needed)
    if facts.faucet_nano:
        amount = f"{format_amount(facts.faucet_nano)} {facts.ticker}"
        stakes = [run.terms.stake_min_nano for run in facts.runs]
        return make_result(
            what=what,
            found=f"the faucet gives each new node {amount}",
            needed="the largest stake of a run",
            is_good=all(facts.faucet_nano >= stake for stake in stakes),
            advice="raise faucet.amount_nano, or lower --stake-min-nano with run update",
        )
    return make_result(
        what=what,
        found="no faucet; deposits are recorded" if facts.deposited_nano else "no faucet, and no deposit yet",
        needed=needed,
        is_good=facts.deposited_nano > 0,
        advice="a node cannot stake before you record its owner's payment: prime-coordinator deposit ADDRESS AMOUNT"
        " --reference TEXT. A test network can give play money: --faucet-amount-nano",
    )


def check_randomness(facts: NetworkFacts) -> Iterator[CheckResult]:
    yield make_result(
        what="randomness",
        found=facts.randomness,
        needed="a chain that nobody here can predict" if not facts.is_devnet else "",
        is_good=facts.is_devnet or not facts.randomness_is_own,
        advice="its operator can predict every draw. It cannot be changed: make a new network with"
        " --randomness drand:quicknet",
        worst=CheckGrade.NOTE,
    )
    yield make_result(
        what="rounds",
        found=f"the oldest round that work waits for is {format_duration(facts.randomness_late_s * 1000)} late"
        if facts.randomness_late_s
        else "in time",
        needed=f"at most {ROUND_LATE_S} s late",
        is_good=facts.randomness_late_s <= ROUND_LATE_S,
        advice="steps and audits wait: check this machine's connection, or name other servers with --randomness-urls",
    )


def check_disk(facts: NetworkFacts) -> CheckResult:
    free = facts.disk_free_bytes
    return make_result(
        what="disk",
        found=f"{format_bytes(free)} free",
        needed=format_bytes(DISK_FREE_BYTES_NOTED),
        is_good=free >= DISK_FREE_BYTES_NOTED,
        advice="prime-coordinator disk shows what uses it, and what will be free when",
        worst=CheckGrade.NOTE if free >= DISK_FREE_BYTES_MIN else CheckGrade.MISSING,
    )


def check_nodes(facts: NetworkFacts) -> CheckResult:
    return make_result(
        what="nodes",
        found=f"{facts.nodes_online:,} online",
        needed="one",
        is_good=facts.nodes_online > 0,
        advice="invite contributors with the line below",
        worst=CheckGrade.NOTE,
    )


# --- A run ----------------------------------------------------------------------------------------------------------


def check_run(facts: NetworkFacts, run: RunFacts) -> Iterator[CheckResult]:
    yield make_result(
        what=f"run {run.name}",
        found=f"{run.status}, {run.terms.model}, {run.terms.task_set}",
        needed="active",
        is_good=run.status == "active",
        advice=f"prime-coordinator run resume {run.name}",
    )
    yield _check_trainer(facts, run)
    if run.latest_step >= 0:
        yield _check_weights(run)
    yield _check_pool(facts, run)
    yield _check_validators(facts, run)
    yield _check_inspector(facts, run)
    yield _check_calibration(facts, run)
    yield make_result(
        what=f"{run.name}: model files",
        found="any" if run.terms.model_files == ANY_MODEL_FILES else f"bound to {run.terms.model_files}",
        needed="bound to the model's folder",
        is_good=run.terms.model_files != ANY_MODEL_FILES,
        advice="the trainer could give nodes another tokenizer with every checkpoint; create runs with"
        " --model-config FOLDER",
        worst=_grade(facts),
    )


def _check_trainer(facts: NetworkFacts, run: RunFacts) -> CheckResult:
    what, trainer = f"{run.name}: trainer", run.terms.trainer
    if run.latest_step < 0:
        return CheckResult(
            what=what,
            found=f"no checkpoint yet from {trainer}",
            needed="a checkpoint",
            advice=f"start the trainer with that key: prime-trainer start --run {run.name}. If you have no such key,"
            " close the run and create one with the address that `prime-trainer keys` prints",
            grade=CheckGrade.MISSING,
        )
    assert run.published_ms is not None, "a run with a step has its time"
    age_ms = facts.now_ms - run.published_ms
    return make_result(
        what=what,
        found=f"step {run.latest_step}, published {format_relative_time(run.published_ms, facts.now_ms)}",
        needed=f"within {format_duration(TRAINER_SILENT_MS)}",
        is_good=age_ms <= TRAINER_SILENT_MS,
        advice="is the trainer running, and does it get rollouts? prime-coordinator run show " + run.name,
        worst=CheckGrade.NOTE,
    )


def _check_weights(run: RunFacts) -> CheckResult:
    return make_result(
        what=f"{run.name}: weights",
        found=f"{run.serving} nodes serve them",
        needed="one",
        is_good=run.serving > 0,
        advice="no node can start: run prime-trainer origin, or give the coordinator [origin] (publish-weights.md)",
    )


def _check_pool(facts: NetworkFacts, run: RunFacts) -> CheckResult:
    budget, ticker = run.terms.step_budget_nano, facts.ticker
    what = f"{run.name}: pool"
    fund = "chain fund" if facts.is_evm else "run fund"
    if not budget:
        return CheckResult(what=what, found="the terms pay nothing (step_budget_nano is 0)", grade=CheckGrade.NOTE)
    steps = run.pool_nano // budget
    lasts_ms = steps * run.step_ms if run.step_ms else None
    lasts = f", {format_duration(lasts_ms)} at this pace" if lasts_ms else ""
    source = f" (the coordinator's account has {format_amount(facts.balance_nano)})" if not facts.is_evm else ""
    is_short = lasts_ms is not None and lasts_ms < FUNDED_MS_NOTED
    return make_result(
        what=what,
        found=f"{format_amount(run.pool_nano)} {ticker}: {steps:,} steps of {format_amount(budget)}{lasts}"
        if steps
        else f"{format_amount(run.pool_nano)} {ticker}: a step costs {format_amount(budget)}, so work is not paid",
        needed=f"steps of {format_duration(FUNDED_MS_NOTED)}",
        is_good=steps > 0 and not is_short,
        advice=f"prime-coordinator {fund} {run.name} AMOUNT{source}",
        worst=CheckGrade.MISSING if not steps else CheckGrade.NOTE,
    )


def _check_validators(facts: NetworkFacts, run: RunFacts) -> CheckResult:
    wanted = run.terms.quorum if facts.is_devnet else QUORUMS_MIN * run.terms.quorum
    return make_result(
        what=f"{run.name}: validators",
        found=f"of {run.owners_registered} owners",
        needed=f"{wanted} owners" + ("" if facts.is_devnet else f", {QUORUMS_MIN} quorums of {run.terms.quorum}"),
        is_good=run.owners_registered >= wanted,
        advice="without them nothing that is drawn is decided: ask their owners to run"
        f" prime-node start --role validator --run {run.name}, or lower --quorum",
    )


def _check_inspector(facts: NetworkFacts, run: RunFacts) -> CheckResult:
    count = len(run.terms.inspectors)
    return make_result(
        what=f"{run.name}: inspector",
        found=f"{count} named" if count else "none",
        needed="one of your own validators",
        is_good=count > 0,
        advice="without one, validators that guess earn more than those that read: prime-coordinator run update"
        f" {run.name} --inspectors ADDRESS",
        worst=_grade(facts),
    )


def _check_calibration(facts: NetworkFacts, run: RunFacts) -> CheckResult:
    terms = run.terms
    age_ms = facts.now_ms - terms.calibrated_at_ms
    if not terms.calibration:
        return CheckResult(
            what=f"{run.name}: calibration",
            found="none: the default bounds let small deviations pass",
            needed="bounds measured on this kind of machine",
            advice=f"prime-node calibrate, then prime-coordinator run update {run.name} --terms FILE",
            grade=_grade(facts),
        )
    return make_result(
        what=f"{run.name}: calibration",
        found=f"{terms.calibration}, {age_ms // DAY_MS} days old"
        + (f", {len(terms.class_bounds.classes)} engine classes" if terms.class_bounds.classes else ""),
        needed=f"at most {CALIBRATION_OLD_MS // DAY_MS} days old",
        is_good=age_ms <= CALIBRATION_OLD_MS,
        advice="drivers and engines change: measure again with prime-node calibrate",
        worst=CheckGrade.NOTE,
    )
