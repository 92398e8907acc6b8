"""Commands about the rules of the log: announce the next ones, show those in force and those announced."""

from typing import Any

from prime_coordinator.cli.admin import report_logged
from prime_coordinator.cli.context import OperatorClient, OperatorContext
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import RulesChanged
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_relative_time, format_time

HOUR_MS = 3_600_000
MARGIN_MS = 60_000
"""Added to the network's notice, for the time that the request takes."""


def announce(context: OperatorContext) -> int:
    args, client = context.args, OperatorClient(context)
    found = client.query("status", {})["rules"]
    rules, notice_ms = found["after"] + 1, found["notice_ms"]
    if rules > PROTOCOL_VERSION:
        raise LocalError(f"the log follows or awaits rules {found['after']}, the newest that this program knows")
    wait_ms = notice_ms + MARGIN_MS if args.in_hours is None else round(args.in_hours * HOUR_MS)
    from_ms = SystemClock().now_ms() + wait_ms
    try:
        entry = RulesChanged(rules=rules, from_ms=from_ms, release=args.release)
    except RemoteError as error:
        raise LocalError(f"--{error.field}: {error.problem}") from None
    what = f"the log follows rules {rules} from {format_time(from_ms)} UTC on"
    return report_logged(context, client.append_entry(entry, None), what)


def show(context: OperatorContext) -> int:
    found = OperatorClient(context).query("status", {})["rules"]
    if context.args.json:
        context.screen.print_json(found)
    else:
        context.screen.print_line(format_rules(found, SystemClock().now_ms()))
    return 0


def format_rules(found: dict[str, Any], now_ms: int) -> str:
    """The rules in force, and the ones that are announced."""
    if found["from_ms"] <= now_ms:
        return f"{found['after']}"
    when = f"{format_time(found['from_ms'])} UTC, {format_relative_time(found['from_ms'], now_ms)}"
    text = f"{found['before']}; {found['after']} from {when} (entry {found['index']:,}, release {found['release']})"
    if found["after"] > PROTOCOL_VERSION:
        text += ", which this program does not know: upgrade before"
    return text
