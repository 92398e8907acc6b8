"""What the owner is shown: a title, a state, alerts and sections of facts, derived from the report alone. Pure.

The terminal, the full screen and the page all render this model, so they cannot disagree. Text from other parties is
made printable here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prime_node.status.alerts import explain_run_problem, list_alerts
from prime_runtime.formatting import format_amount, format_bytes, format_duration, format_relative_time
from prime_runtime.redaction import escape, truncate

TEXT_CHARS_MAX = 400
ID_CHARS = 14
"""Of a digest in a table: enough to tell two apart, and accepted by `prime-node rollouts`."""


class Tone(StrEnum):
    """How a fact is meant."""

    PLAIN = "plain"
    GOOD = "good"
    BUSY = "busy"
    BAD = "bad"
    DIM = "dim"


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Bar:
    """Something in progress."""

    name: str
    share: float
    """0 to 1."""
    text: str
    cells: str = ""
    """Progress of each part, where it is known: # complete, + in progress, . nothing yet."""


@dataclass(frozen=True, slots=True)
class Grid:
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tones: tuple[Tone, ...]
    """Of each row."""


StatusItem = Fact | Bar | Grid


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class StatusModel:
    title: str
    state: str
    """What the node is doing, in a few words."""
    tone: Tone
    alerts: tuple[str, ...]
    sections: tuple[Section, ...]


STATE_TONES = {
    "paid": Tone.GOOD,
    "credited": Tone.GOOD,
    "accepted": Tone.GOOD,
    "checked": Tone.BUSY,
    "received": Tone.BUSY,
    "produced": Tone.BUSY,
    "returned": Tone.DIM,
    "refused": Tone.BAD,
    "rejected": Tone.BAD,
    "slashed": Tone.BAD,
}


def make_status_model(report: dict[str, Any]) -> StatusModel:
    """Leaves out empty sections."""
    alerts = tuple(printable(text) for text in list_alerts(report))
    if report["state"] != "running":
        up = format_duration(report["now_ms"] - report["started_ms"])
        return StatusModel(_title(report), f"joining for {up}", Tone.BAD if alerts else Tone.BUSY, alerts, ())
    state, tone = _state(report)
    makers = {
        "node": _node,
        "runs": _runs,
        "work": _work,
        "rollouts": _records,
        "audits": _audits,
        "weights": _weights,
        "network": _network,
    }
    sections = [Section(title, tuple(make(report))) for title, make in makers.items()]
    return StatusModel(
        _title(report),
        state,
        Tone.BAD if alerts else tone,
        alerts,
        tuple(section for section in sections if section.parts),
    )


def printable(text: Any, chars_max: int = TEXT_CHARS_MAX) -> str:
    return truncate(escape(str(text)), chars_max)


def short(digest: Any) -> str:
    return printable(digest)[:ID_CHARS] if digest else "-"


def _title(report: dict[str, Any]) -> str:
    return f"{report['name']}  {report['node']}" if "node" in report else "prime-node"


def _state(report: dict[str, Any]) -> tuple[str, Tone]:
    owner, work = report["owner"], report["work"]
    if owner["stop"]:
        return f"finishing, then stopping: {printable(owner['stop'])}", Tone.BUSY
    if owner["hold"]:
        return f"holding: {printable(owner['hold'])}", Tone.BUSY
    if work and work["current"]:
        return f"working on lease {work['current']['lease']}", Tone.GOOD
    if report["audits"] and report["audits"]["open"]:
        return "auditing submissions", Tone.GOOD
    if report["role"] == "relay":
        return "serving weights" if report["serving"]["urls"] else "keeping weights", Tone.GOOD
    if not report["coordinator"]["is_reachable"]:
        return "waiting for the coordinator", Tone.BUSY
    why = f": {printable(work['idle_reason'])}" if work and work["idle_reason"] else ""
    return f"{report['coordinator']['activity']}, waiting for work{why}", Tone.PLAIN


# --- Sections -------------------------------------------------------------------------------------------------------


def _node(report: dict[str, Any]) -> Iterator[StatusItem]:
    up = format_duration(report["now_ms"] - report["started_ms"])
    yield Fact("role", f"{report['role']}, up {up}")
    name = "run" if len(report["runs"]) < 2 else "runs"
    served = f", {report['serving']['nodes_in_run']} nodes serve it" if name == "run" else ""
    yield Fact(name, f"{report['run']} of {report['network']}{served}")
    coordinator = report["coordinator"]
    if coordinator["is_reachable"]:
        yield Fact("coordinator", f"{coordinator['url']}  reached", Tone.GOOD)
    else:
        since = (
            format_duration(coordinator["answered_ms_ago"])
            if coordinator["answered_ms_ago"] is not None
            else "no reply yet"
        )
        yield Fact("coordinator", f"{coordinator['url']}  NOT REACHED: {since}", Tone.BAD)
    for held in coordinator["held"]:
        due = format_relative_time(held["due_ms"], report["now_ms"])
        yield Fact("held back", f"{held['entry']}, sent again {due}: the network limits how often", Tone.BUSY)
    yield from _account(report)
    yield from _engine(report)
    yield Fact("log", _head_text(report["heads"]), Tone.BAD if report["heads"]["forks"] else Tone.PLAIN)
    if report["replay"]:
        yield Fact("rules", printable(_replay_text(report["replay"])), _replay_tone(report["replay"]))
    yield Fact("folder", f"{printable(report['folder'])}", Tone.DIM)
    if report["page"]:
        yield Fact("page", report["page"], Tone.DIM)


def _runs(report: dict[str, Any]) -> Iterator[Grid]:
    """Only where there are several."""
    runs = report["runs"]
    if len(runs) < 2:
        return
    problems = [explain_run_problem(row) for row in runs]
    rows = tuple(
        (
            printable(row["run"]),
            row["status"],
            str(row["weights_step"]) if row["weights_step"] >= 0 else "-",
            str(row["verdicts"]),
            str(row["audits_open"]),
            printable(problem),
        )
        for row, problem in zip(runs, problems, strict=True)
    )
    tones = tuple(Tone.BAD if problem else Tone.GOOD for problem in problems)
    yield Grid(("run", "status", "weights", "verdicts", "open", "problem"), rows, tones)


def _account(report: dict[str, Any]) -> Iterator[Fact]:
    account = report["account"]
    if account is None:
        return
    is_fine = account["is_eligible"] or report["role"] not in ("worker", "both") or bool(report["owner"]["hold"])
    eligibility = account["eligibility"] if is_fine else f"{account['eligibility']}: {account['remedy']}"
    yield Fact("eligibility", printable(eligibility), Tone.GOOD if is_fine else Tone.BAD)
    amounts = {name: format_amount(account[f"{name}_nano"]) for name in ("stake", "balance", "earned")}
    yield Fact("account", f"earned {amounts['earned']}, balance {amounts['balance']}, staked {amounts['stake']}")
    credited = report["jobs"]["counts"].get("credited", 0) if report["jobs"] else 0
    if credited:
        # A new owner looks for the pay of accepted work. It is paid when its step ends, which may take an hour.
        yield Fact("to be paid", f"{credited} files when their steps end")


def _engine(report: dict[str, Any]) -> Iterator[Fact]:
    engine = report["engine"]
    if engine is None:
        return
    what = (
        f"{engine['engine']} on {engine['device']} in {engine['precision']}" if engine["precision"] else "no model yet"
    )
    copies = engine["replicas"]
    if len(copies) > 1:
        ready = sum(copy["state"] in ("ready", "loading") for copy in copies)
        what += f", {ready} of {len(copies)} replicas"
    restarts = f", restarted {engine['restarts']} times" if engine["restarts"] else ""
    tone = Tone.BAD if engine["state"] == "broken" else Tone.GOOD if engine["state"] == "ready" else Tone.BUSY
    yield Fact("engine", printable(f"{engine['state']}: {what}{restarts}"), tone)
    for gpu in report["gpus"]:
        paused = ", paused" if gpu["is_paused"] else ""
        tone = Tone.BAD if gpu["problem"] else Tone.DIM if gpu["is_paused"] else Tone.PLAIN
        yield Fact(f"GPU {gpu['number']}", printable((gpu["problem"] or gpu["name"]) + paused), tone)


def _head_text(heads: dict[str, Any]) -> str:
    unproven = f", unproven: {heads['unproven']}" if heads["unproven"] else ""
    return f"tree head of {heads['size']} entries, agrees with {heads['compared']} heads of other nodes{unproven}"


def _replay_text(replay: dict[str, Any]) -> str:
    kept = "rules kept"
    if replay["broken"]:
        kept = f"ENTRY {replay['broken_index']} BREAKS A RULE: {replay['broken']}"
    lying = f"; wrong bytes from {', '.join(replay['wrong_bytes'])}" if replay["wrong_bytes"] else ""
    return f"replayed up to entry {replay['size']} of {replay['head_size']}, {kept}{lying}"


def _replay_tone(replay: dict[str, Any]) -> Tone:
    if replay["broken"]:
        return Tone.BAD
    return Tone.GOOD if replay["size"] >= replay["head_size"] else Tone.BUSY


def _work(report: dict[str, Any]) -> Iterator[StatusItem]:
    work = report["work"]
    if not work:
        return
    current = work["current"]
    if current:
        left = format_relative_time(current["deadline_ms"], report["now_ms"])
        text = f"{current['rows_done']}/{current['rows'] or '?'} rollouts of {current['slots']} slots, due {left}"
        share = current["rows_done"] / current["rows"] if current["rows"] else 0.0
        yield Bar(f"lease {current['lease']}", share, f"step {current['step']}: {text}")
    if work["others"]:
        yield Fact("beside it", f"{work['others']} more leases, due later")
    if work["tokens_per_s"]:
        yield Fact("throughput", f"{work['tokens_per_s']:.0f} tokens/s")


def _records(report: dict[str, Any]) -> Iterator[StatusItem]:
    jobs = report["jobs"]
    if not jobs or not jobs["last"]:
        return
    counts = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in jobs["counts"].items())
    yield Fact("total", counts)
    yield make_grid(jobs["last"], report["now_ms"])


def make_grid(jobs: list[dict[str, Any]], now_ms: int) -> Grid:
    """Jobs as a table; also for `prime-node rollouts`."""
    rows = tuple(
        (
            str(job["lease"]),
            str(job["step"]),
            str(job["rows"] or "-"),
            job["state"].replace("_", " "),
            format_relative_time(job["started_ms"], now_ms),
            short(job["submission"]),
            printable(job["reason"]),
        )
        for job in jobs
    )
    tones = tuple(STATE_TONES.get(job["state"], Tone.PLAIN) for job in jobs)
    return Grid(("lease", "step", "rollouts", "state", "begun", "submission", "reason"), rows, tones)


def _audits(report: dict[str, Any]) -> Iterator[StatusItem]:
    audits = report["audits"]
    if not audits or not any(audits.values()):
        return
    inspected = f", {audits['inspected']} files inspected" if audits["inspected"] else ""
    inspected += f", {audits['ruled']} disputes decided" if audits["ruled"] else ""
    committed = f", {audits['committed']} committed" if audits["committed"] else ""
    yield Fact("verdicts", f"{audits['done']} given{committed}, {len(audits['open'])} open{inspected}")
    for each in audits["open"]:
        due = format_relative_time(each["deadline_ms"], report["now_ms"])
        of = f" of {each['run']}" if len(report["runs"]) > 1 else ""
        yield Fact(short(each["submission"]), f"step {each['step']}{of}, {each['slots']} slots, due {due}", Tone.BUSY)


def _weights(report: dict[str, Any]) -> Iterator[StatusItem]:
    weights = report["weights"]
    for row in weights["transfers"]:
        done = f"{format_bytes(row['held_bytes'])} of {format_bytes(row['total_bytes'])}"
        left = format_duration(row["finish_ms"])
        rate = f"{format_bytes(row['bytes_per_s'])}/s from {row['sources']} nodes, done in {left}"
        wrong = f", {row['corrupt']} corrupt shards" if row["corrupt"] else ""
        share = row["held_bytes"] / max(1, row["total_bytes"])
        yield Bar(f"step {row['step']}", share, f"{row['kind']}, {done}, {rate}{wrong}", printable(row["bar"]))
    held = [row for row in weights["held"] if row["is_complete"]]
    for row in held:
        yield Fact(f"step {row['step']}", f"{row['kind']}, {format_bytes(row['total_bytes'])}, {row['root']}")
    if not held and not weights["transfers"]:
        yield Fact("weights", "none yet", Tone.DIM)


def _network(report: dict[str, Any]) -> Iterator[StatusItem]:
    serving, upload = report["serving"], report["upload"]
    yield Fact("gossip", printable(report["p2p"]["text"]))
    for address in report["p2p"]["addresses"]:
        yield Fact("dialled at", printable(address), Tone.DIM)
    yield Fact("serving", printable(serving["text"]))
    cap = f" of {format_bytes(upload['bytes_per_day_max'])}" if upload["bytes_per_day_max"] else ""
    rate = f", at most {format_bytes(upload['bytes_per_s_max'])}/s" if upload["bytes_per_s_max"] else ""
    today = f"{format_bytes(upload['bytes_today'])} today{cap}{rate}"
    yield Fact("upload", f"{upload['slots_free']} of {upload['slots']} slots free, {today}")
    for part in report["parts"]:
        if part["restarts"]:
            text = f"restarted {part['restarts']} times; last error: {part['last_error']}"
            yield Fact(part["name"], printable(text), Tone.BAD)
