"""Commands that change something: each has the running coordinator append one entry to the log."""

from hashlib import sha256

from prime_coordinator.admin.run_terms import TermsConfig, change_terms, read_terms
from prime_coordinator.cli.context import OperatorClient, OperatorContext
from prime_coordinator.constants import QUORUMS_MIN
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import (
    Deposited,
    NodeStatus,
    NodeStatusSet,
    RunCreated,
    RunFunded,
    RunStatus,
    RunStatusSet,
    RunUpdated,
)
from prime_protocol.ledger.terms import DAY_MS, RunTerms
from prime_protocol.proofs.class_bounds import BOUNDED_NUMBERS
from prime_protocol.wire.ids import Digest, NodeId, RunId, checksum_address, parse_address
from prime_protocol.wire.messages import EntryReply
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_amount, parse_amount
from prime_runtime.settings.flags import read_flags

SHOWN = ("exponent_mismatches_max", "mantissa_error_mean_max", "margin_max", "logprob_error_max")
"""Bounds that are printed for each pair of classes; the explorer has all."""
RUN_ACTIONS = {
    "pause": (RunStatus.PAUSED, "grants no more leases"),
    "resume": (RunStatus.ACTIVE, "grants leases again"),
    "close": (RunStatus.CLOSED, "is closed for good"),
}
NODE_ACTIONS = {
    "drain": (NodeStatus.DRAINED, "finishes its leases and gets no more"),
    "ban": (NodeStatus.BANNED, "must stop"),
    "unban": (NodeStatus.ACTIVE, "may work again"),
}
"""Status and effect of each action of the command line."""


def create_run(context: OperatorContext) -> int:
    args, run = context.args, read_run(context.args.run)
    is_devnet = context.load_config().is_devnet
    terms = read_terms(
        read_flags(args, TermsConfig), context.settings_variables(), args.terms, args.model_config, is_devnet=is_devnet
    )
    client = OperatorClient(context)
    if not is_devnet:
        problem = find_missing_validators(client.count_validators(run, terms).eligible, run, terms)
        if problem and not args.force:
            raise LocalError(problem)
        if problem:
            context.print_error(f"warning: {problem}")
    logged = client.append_entry(RunCreated(terms=terms), run)
    show_bounds(context, terms)
    report_logged(context, logged, f"run {run} is created: {terms.slots_per_step} slots a step, quorum {terms.quorum}")
    context.print_error(
        f"checkpoints come from the key of {checksum_address(terms.trainer)} alone: if prime-trainer has another one,"
        " close the run and create one with its address"
    )
    if terms.step_budget_nano:
        context.print_error(f"its pool is empty, so work is not paid yet: prime-coordinator run fund {run} AMOUNT")
    return 0


def find_missing_validators(owners: int, run: RunId, terms: RunTerms) -> str:
    """What is wrong with this many owners of validators, and what to do; empty where they suffice."""
    wanted = QUORUMS_MIN * terms.quorum
    if owners >= wanted:
        return ""
    return (
        f"run {run} needs validators of {wanted} different owners, three quorums of {terms.quorum}: with fewer, one"
        f" that lies or stays silent can keep a slash from being decided. {owners} have an active validator with"
        f" protocol version {terms.version_min} and a stake of {format_amount(terms.stake_min_nano)}, in any run."
        " Wait for more to join, or lower --quorum or --stake-min-nano. A network's first run starts with none:"
        f" create it with --force, stop it with `prime-coordinator run pause {run}`, let validators join with"
        f" `prime-node start --role validator --run {run}`, and resume it when `prime-coordinator run list` shows"
        " enough of them"
    )


def update_run(context: OperatorContext) -> int:
    args, run = context.args, read_run(context.args.run)
    client = OperatorClient(context)
    present = client.get_terms(run)
    terms = change_terms(present, read_flags(args, TermsConfig), args.terms)
    if terms == present:
        raise LocalError(f"run {run} already has these terms; give the ones to change")
    logged = client.append_entry(RunUpdated(terms=terms), run)
    if (terms.tolerance, terms.class_bounds) != (present.tolerance, present.class_bounds):
        show_bounds(context, terms)
    return report_logged(context, logged, f"run {run} has new terms from its next step on")


def show_bounds(context: OperatorContext, terms: RunTerms) -> None:
    """On what the bounds of audits were measured, how long ago, and for which engine classes."""
    if not terms.calibration:
        return
    say, table = context.screen.print_line, terms.class_bounds
    days = max(0, SystemClock().now_ms() - terms.calibrated_at_ms) // DAY_MS
    say(f"bounds: {terms.calibration}; {days} days old")
    for number, name in enumerate(table.classes, 1):
        say(f"class {number}: {name}")
    if table.pairs:
        rows = [
            (
                f"{pair.generating + 1} > {pair.judging + 1}",
                *(f"{value:g}" for name, value in zip(BOUNDED_NUMBERS, pair.numbers, strict=True) if name in SHOWN),
            )
            for pair in table.pairs
        ]
        default = ("other pairs", *(f"{getattr(terms.tolerance, name):g}" for name in BOUNDED_NUMBERS if name in SHOWN))
        columns = [name for name in BOUNDED_NUMBERS if name in SHOWN]
        context.screen.show(context.screen.table(("generating > judging", *columns), [*rows, default]))
    if table.is_closed:
        say("the run takes work of these classes only")


def set_run_status(context: OperatorContext) -> int:
    args, (status, effect) = context.args, RUN_ACTIONS[context.args.action]
    if status is RunStatus.CLOSED and not args.yes:
        raise LocalError("a closed run cannot be reopened; confirm with --yes, or pause it instead")
    run = read_run(args.run)
    client = OperatorClient(context)
    if status is RunStatus.ACTIVE and not context.load_config().is_devnet:
        terms = client.get_terms(run)
        owners, wanted = client.count_validators(run, terms).registered, QUORUMS_MIN * terms.quorum
        if owners < wanted:
            context.print_error(f"warning: validators of {owners} owners joined run {run}, it should have {wanted}")
    logged = client.append_entry(RunStatusSet(status=status, reason=args.reason), run)
    return report_logged(context, logged, f"run {run} {effect}")


def fund_run(context: OperatorContext) -> int:
    run, amount_nano = read_run(context.args.run), parse_amount(context.args.amount)
    logged = OperatorClient(context).append_entry(RunFunded(amount_nano=amount_nano), run)
    amount = f"{context.args.amount} {context.load_config().ticker}"
    return report_logged(context, logged, f"{amount} moved to the pool of run {run}")


def set_node_status(context: OperatorContext) -> int:
    status, effect = NODE_ACTIONS[context.args.action]
    entry = NodeStatusSet(node=read_address(context.args.node), status=status, reason=context.args.reason)
    return report_logged(context, OperatorClient(context).append_entry(entry, None), f"node {entry.node} {effect}")


def deposit(context: OperatorContext) -> int:
    args = context.args
    client = OperatorClient(context)
    amount_nano = parse_amount(args.amount)
    account = client.coordinator if args.account == "coordinator" else read_address(args.account)
    reference = Digest(sha256(b"prime-swarm deposit\n" + args.reference.encode()).digest())
    entry = Deposited(account=account, amount_nano=amount_nano, reference=reference)
    amount = f"{args.amount} {context.load_config().ticker}"
    return report_logged(context, client.append_entry(entry, None), f"{amount} deposited for {account}")


def read_address(text: str) -> NodeId:
    """In lower case, or with the checksum capitals that wallets show."""
    try:
        return parse_address(text)
    except RemoteError as error:
        raise LocalError(f"{text!r} is not an address: it {error.problem}") from None


def read_run(text: str) -> RunId:
    try:
        return RunId(text)
    except RemoteError as error:
        raise LocalError(f"{text!r} is not the name of a run: it {error.problem}") from None


def report_logged(context: OperatorContext, logged: EntryReply, what: str) -> int:
    context.screen.print_line(f"{what} (entry {logged.index})")
    return 0
