"""How the rows of each listing become the cells of a table: columns, and the words for times and amounts. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from prime_runtime.wording import show_amount, show_distance, show_moment

Cell = Callable[[Any, int], str]
"""A value of a row and the present time to what is shown."""


def plain(value: Any, now_ms: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(plain(each, now_ms) for each in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(each, now_ms)}" for name, each in value.items()) or "-"
    return str(value)


def amount(value: Any, now_ms: int) -> str:
    return show_amount(int(value))


def moment(value: Any, now_ms: int) -> str:
    return show_moment(value)


def distance(value: Any, now_ms: int) -> str:
    return show_distance(value, now_ms)


COLUMNS: dict[str, dict[str, tuple[str, Cell]]] = {
    "runs": {
        "run": ("run", plain),
        "status": ("status", plain),
        "step": ("latest_step", plain),
        "done": ("slots_done", plain),
        "held": ("slots_held", plain),
        "slots": ("slots_per_step", plain),
        "leases": ("leases_open", plain),
        "open": ("submissions_open", plain),
        "slashes": ("slashes_open", plain),
        "validators": ("validators", plain),
        "pool": ("pool_nano", amount),
        "model": ("model", plain),
    },
    "nodes": {
        "node": ("node", plain),
        "status": ("status", plain),
        "phase": ("phase", plain),
        "doing": ("activity", plain),
        "roles": ("roles", plain),
        "beat": ("last_beat_ms", distance),
        "step": ("checkpoint_step", plain),
        "stake": ("stake_nano", amount),
        "accepted": ("accepted", plain),
        "soft": ("soft", plain),
        "hard": ("hard", plain),
        "faults": ("faults", plain),
    },
    "leases": {
        "run": ("run", plain),
        "lease": ("lease", plain),
        "node": ("node", plain),
        "step": ("step", plain),
        "first slot": ("first_slot", plain),
        "slots": ("slots", plain),
        "deadline": ("deadline_ms", distance),
        "twin": ("speculative", plain),
    },
    "submissions": {
        "submission": ("submission", plain),
        "run": ("run", plain),
        "step": ("step", plain),
        "node": ("node", plain),
        "when": ("at_ms", distance),
        "progress": ("progress", plain),
        "verdicts": ("verdicts", plain),
        "of": ("validators", plain),
        "credited": ("credited", plain),
    },
    "verdicts": {
        "entry": ("index", plain),
        "when": ("at_ms", distance),
        "submission": ("submission", plain),
        "validator": ("validator", plain),
        "outcome": ("outcome", plain),
        "reason": ("reason", plain),
    },
    "slashes": {
        "entry": ("index", plain),
        "when": ("at_ms", distance),
        "submission": ("submission", plain),
        "node": ("node", plain),
        "amount": ("amount_nano", amount),
        "progress": ("progress", plain),
        "appeal until": ("appeal_until_ms", distance),
    },
    "appeals": {
        "entry": ("index", plain),
        "when": ("at_ms", distance),
        "submission": ("submission", plain),
        "by": ("author", plain),
        "progress": ("progress", plain),
        "reason": ("reason", plain),
    },
    "checkpoints": {
        "entry": ("index", plain),
        "when": ("at_ms", distance),
        "run": ("run", plain),
        "step": ("step", plain),
        "trained on": ("trained_on", plain),
        "root": ("root", plain),
        "beacon": ("beacon", plain),
    },
    "refused": {
        "when": ("at_ms", distance),
        "run": ("run", plain),
        "node": ("node", plain),
        "lease": ("lease", plain),
        "field": ("field", plain),
        "problem": ("problem", plain),
        "file": ("digest", plain),
    },
    "entries": {
        "entry": ("index", plain),
        "when": ("at_ms", moment),
        "kind": ("kind", plain),
        "author": ("author", plain),
        "run": ("run", plain),
        "says": ("body", plain),
    },
}
"""For each listing: header, field of the row, and how its value is shown."""


def cells(question: str, row: Mapping[str, Any], now_ms: int) -> list[str]:
    return [show(row[field], now_ms) for field, show in COLUMNS[question].values()]


def facts(row: Mapping[str, Any], now_ms: int, prefix: str = "") -> list[tuple[str, str]]:
    """Every field of a row in words, those inside its `summary` and other parts too."""
    found: list[tuple[str, str]] = []
    for name, value in row.items():
        if isinstance(value, dict) and name in ("summary", "terms"):
            found += facts(value, now_ms, "" if name == "summary" else f"{name}.")
        elif name.endswith("_nano"):
            found.append((prefix + name.removesuffix("_nano"), amount(value, now_ms)))
        elif name.endswith(("at_ms", "_until_ms", "_beat_ms", "deadline_ms", "_by_ms")) and value:
            found.append((prefix + name.removesuffix("_ms"), f"{moment(value, now_ms)} ({distance(value, now_ms)})"))
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            found.append((prefix + name, plain(value, now_ms)))
    return found


def parts(row: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The lists of rows inside a row: each is a table of its own."""
    return {
        name: value for name, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }
