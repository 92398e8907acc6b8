"""A report as lines for a terminal. Pure: what is shown follows from the report alone."""

from collections.abc import Iterator
from typing import Any

UNITS = ("B", "kB", "MB", "GB", "TB")


def show_bytes(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"


def show_time(duration_ms: int | None) -> str:
    if duration_ms is None:
        return "unknown"
    seconds = duration_ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    return (
        f"{seconds // 60} min {seconds % 60} s" if seconds < 3600 else f"{seconds // 3600} h {seconds % 3600 // 60} min"
    )


def render(report: dict[str, Any]) -> str:
    """All of it; empty parts are left out."""
    up = show_time(report["now_ms"] - report["started_ms"])
    if report["state"] != "running":
        return f"joining for {up}: {report['problem'] or 'asking the coordinator'}\n"
    lines = [*_render_forks(report), *_render_facts(report, up), *_render_weights(report), *_render_parts(report)]
    return "\n".join(lines) + "\n"


def _render_forks(report: dict[str, Any]) -> Iterator[str]:
    forks = report["heads"]["forks"]
    if forks:
        yield "!!! THE LOG TELLS TWO HISTORIES. The evidence is in the folder heads: " + ", ".join(forks)
        yield ""


def _render_facts(report: dict[str, Any], up: str) -> Iterator[str]:
    coordinator, upload, serving, heads = (report[name] for name in ("coordinator", "upload", "serving", "heads"))
    reach = "reached" if coordinator["is_reachable"] else f"NOT REACHED: {coordinator['problem']}"
    cap = upload["bytes_per_day_max"]
    today = f"{show_bytes(upload['bytes_today'])} today" + (f" of {show_bytes(cap)}" if cap else "")
    rate = f", at most {show_bytes(upload['bytes_per_s_max'])}/s" if upload["bytes_per_s_max"] else ""
    facts = {
        "node": f"{report['node']}  ({report['role']}, up {up})",
        "peer id": report["peer_id"],
        "run": f"{report['run']} of {report['network']}, {serving['nodes_in_run']} nodes serve it",
        "coordinator": f"{coordinator['url']}  {reach}",
        "p2p": report["p2p"]["text"],
        "serving": ", ".join(serving["urls"]) or serving["text"],
        "upload": f"{upload['slots_free']} of {upload['slots']} slots free, {today}{rate}",
        "log": f"head over {heads['size']} entries, heads of others that agree: {heads['compared']}"
        + (f", unproven: {heads['unproven']}" if heads["unproven"] else ""),
    }
    for name, text in facts.items():
        yield f"{name:12} {text}"
    for address in report["p2p"]["addresses"]:
        yield f"{'':12} {address}"


def _render_weights(report: dict[str, Any]) -> Iterator[str]:
    weights = report["weights"]
    yield ""
    if weights["problem"]:
        yield f"weights      {weights['problem']}"
    for row in weights["transfers"]:
        done = f"{row['shards_held']}/{row['shards']} shards, {show_bytes(row['held_bytes'])}"
        yield f"step {row['step']:<7} {row['kind']:9} [{row['bar']}] {done} of {show_bytes(row['total_bytes'])}"
        pace = f"{show_bytes(row['bytes_per_s'])}/s from {row['sources']} nodes, done in {show_time(row['finish_ms'])}"
        yield f"{'':12} {pace}" + (f", {row['corrupt']} shards came wrong" if row["corrupt"] else "")
    held = [row for row in weights["held"] if row["is_complete"]]
    for row in held:
        yield f"step {row['step']:<7} {row['kind']:9} held, {show_bytes(row['total_bytes'])}, root {row['root']}"
    if not held and not weights["transfers"]:
        yield "weights      none yet"


def _render_parts(report: dict[str, Any]) -> Iterator[str]:
    for part in report["parts"]:
        if part["restarts"]:
            yield f"{part['name']:12} began again {part['restarts']} times; last: {part['last_error']}"
