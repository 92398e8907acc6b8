"""`prime-coordinator check`: what is missing before the network and its runs can work for others."""

from collections.abc import Sequence
from dataclasses import asdict

from prime_coordinator.cli.context import OperatorClient, OperatorContext, find_url
from prime_coordinator.readiness.checklist import build_readiness
from prime_coordinator.readiness.facts import NetworkFacts
from prime_coordinator.readiness.probes import probe_network
from prime_runtime.checklist import CheckGrade, CheckResult, print_checklist

EXIT_MISSING = 3


def check(context: OperatorContext) -> int:
    screen = context.screen
    with context.screen.spinner("checking the network and its runs"):
        facts = run_probes(context)
    lines = build_readiness(facts)
    if context.args.json:
        screen.print_json([asdict(line) for line in lines])
    else:
        print_checklist(screen, lines)
        for line in make_invites(facts, find_local_url(context)):
            screen.print_line(line)
    return EXIT_MISSING if is_something_missing(lines) else 0


def run_probes(context: OperatorContext) -> NetworkFacts:
    return probe_network(context.load_config(), OperatorClient(context), context.args.authority)


def is_something_missing(lines: Sequence[CheckResult]) -> bool:
    return any(line.grade is CheckGrade.MISSING for line in lines)


def make_invites(facts: NetworkFacts, local_url: str) -> list[str]:
    """The command that a contributor types, for each run."""
    url = facts.address.url or local_url
    one_run = len(facts.runs) == 1
    commands = [f"prime-node start --coordinator {url}" + ("" if one_run else f" --run {r.name}") for r in facts.runs]
    return ["", "contributors join with:", *(f"  {command}" for command in commands)] if commands else []


def find_local_url(context: OperatorContext) -> str:
    return str(context.args.url or find_url(context))
