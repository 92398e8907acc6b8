"""A report as lines for a terminal. Pure: what is shown follows from the report alone."""

from typing import Any

from prime_runtime.wording import show_span

BARS = " ▁▂▃▄▅▆▇█"


def draw_curve(values: list[float]) -> str:
    """One character for each value, from the least to the greatest."""
    low, high = min(values), max(values)
    steps = len(BARS) - 1
    return "".join(BARS[round((value - low) / (high - low) * steps) if high > low else steps // 2] for value in values)


def show(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def render(report: dict[str, Any]) -> str:
    """For a terminal. Pure."""
    up = show_span(report["now_ms"] - report["started_ms"])
    lines = [f"run         {report['run']} of {report['network']}, {report['state']}, up {up}"]
    if "step" not in report:
        return "\n".join(lines)
    lines.append(f"step        {report['step']}, published {report['published']}")
    lines.append(f"groups      {report['groups_waiting']} of {report['groups_wanted']} that make a step")
    if report["submissions_refused"]:
        reasons = ", ".join(f"{count} for {field}" for field, count in report["submissions_refused"].items())
        lines.append(f"left out    {reasons}")
    if report["submissions_expired"]:
        lines.append(f"too old     {report['submissions_expired']} submissions")
    if report["problem"]:
        lines.append(f"PROBLEM     {report['problem']}")
    if report["held_out"]:
        curve = [reward for _, reward in report["held_out"]]
        lines.append(
            f"held-out    {draw_curve(curve)}  {curve[0]:.3f} to {curve[-1]:.3f}, step {report['held_out'][-1][0]}"
        )
    last = report["last"]
    if last:
        lines.append(
            f"last step   reward {last['reward_mean']:.3f}, {last['tokens']} tokens of {last['samples']} samples, "
            f"lag {last['lag_mean']:.1f}, entropy {show(last['entropy'])}, mismatch {show(last['mismatch_kl'])}"
        )
        lines.append(f"            waited {last['waited_s']:.1f} s, learnt {last['learnt_s']:.1f} s")
        if last["problem"]:
            lines.append(f"            not applied: {last['problem']}")
        for name, values in report["curves"].items():
            lines.append(
                f"{name:<12}{draw_curve(values)}  {min(values):.3g} to {max(values):.3g}, now {values[-1]:.3g}"
            )
    return "\n".join(lines)
