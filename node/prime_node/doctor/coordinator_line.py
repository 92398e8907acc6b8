"""Asks the coordinator what anybody may ask: is it there, how far is its clock off ours, what does the run need."""

from typing import Any

from prime_node.config import NodeConfig
from prime_node.doctor.facts import LineFacts
from prime_node.joining import Greeting, RunSeen, choose_run, read_greeting
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.clock import Clock
from prime_runtime.json_client import open_json_client


async def examine_line(config: NodeConfig, clock: Clock) -> LineFacts:
    try:
        async with open_json_client(config.coordinator, config.authority) as client:
            await client.get("/status")  # opens the connection, so that the next answer's time is the line's alone
            sent_ms, began_ms = clock.now_ms(), clock.monotonic_ms()
            answer = await client.get("/status")
            round_trip_ms = clock.monotonic_ms() - began_ms
            greeting = read_greeting(answer)
            run, problem = _find_run(config, greeting)
            terms = (await client.get(f"/runs/{run.name}"))["terms"] if run else {}
            return LineFacts(
                url=config.coordinator,
                network=greeting.network,
                run=run.name if run else "",
                run_problem=problem,
                model=run.model if run else "",
                version_min=_number(terms.get("version_min")),
                round_trip_ms=round_trip_ms,
                skew_ms=_skew_ms(answer.get("now_ms"), sent_ms + round_trip_ms // 2),
            )
    except (LocalError, RemoteError, KeyError, TypeError, AttributeError) as error:
        return LineFacts(url=config.coordinator, problem=str(error))


def _find_run(config: NodeConfig, greeting: Greeting) -> tuple[RunSeen | None, str]:
    try:
        if not config.run:
            return choose_run(greeting), ""
    except LocalError as error:
        return None, str(error)
    named = next((run for run in greeting.runs if run.name == config.run), None)
    return named, "" if named else f"there is no run {config.run} on {greeting.network}"


def _skew_ms(theirs: Any, ours_ms: int) -> int | None:
    number = _number(theirs)
    return None if number is None else ours_ms - number


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
