"""The status of a running trainer: one report for the terminal, for JSON and for tests.

`prime-trainer status` imports this module, so it must not import torch.
"""

from typing import TYPE_CHECKING, Any

from prime_runtime.formatting import format_duration

if TYPE_CHECKING:
    from prime_runtime.supervisor import SupervisedTask
    from prime_trainer.config import TrainConfig
    from prime_trainer.data.collector import RolloutCollector
    from prime_trainer.evaluate import MetricsReporter
    from prime_trainer.metrics import MetricsLog
    from prime_trainer.publish.publisher import CheckpointPublisher

SPARKLINE_BARS = " ▁▂▃▄▅▆▇█"


def draw_sparkline(values: list[float]) -> str:
    """One character per value, scaled from the smallest to the largest."""
    low, high = min(values), max(values)
    steps = len(SPARKLINE_BARS) - 1
    return "".join(
        SPARKLINE_BARS[round((value - low) / (high - low) * steps) if high > low else steps // 2] for value in values
    )


def format_number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def render_status(report: dict[str, Any]) -> str:
    """Pure: the lines of the report for a terminal."""
    up = format_duration(report["now_ms"] - report["started_ms"])
    lines = [f"run         {report['run']} of {report['network']}, {report['state']}, up {up}"]
    if "step" not in report:
        return "\n".join(lines)
    lines.append(f"step        {report['step']}, published {report['published']}")
    lines.append(f"groups      {report['groups_waiting']} of {report['groups_wanted']} needed for a step")
    if report["submissions_refused"]:
        reasons = ", ".join(f"{count} for {field}" for field, count in report["submissions_refused"].items())
        lines.append(f"refused     {reasons}")
    if report["submissions_expired"]:
        lines.append(f"expired     {report['submissions_expired']} submissions")
    if report["problem"]:
        lines.append(f"PROBLEM     {report['problem']}")
    if report["held_out"]:
        curve = [reward for _, reward in report["held_out"]]
        lines.append(
            f"held-out    {draw_sparkline(curve)}  {curve[0]:.3f} to {curve[-1]:.3f}, step {report['held_out'][-1][0]}"
        )
    last = report["last"]
    if last:
        lines.append(
            f"last step   reward {last['reward_mean']:.3f}, {last['tokens']} tokens of {last['samples']} samples, "
            f"lag {last['lag_mean']:.1f}, entropy {format_number(last['entropy'])},"
            f" mismatch {format_number(last['mismatch_kl'])}"
        )
        lines.append(f"            waited {last['waited_s']:.1f} s, trained {last['learnt_s']:.1f} s")
        if last["problem"]:
            lines.append(f"            not applied: {last['problem']}")
        for name, values in report["curves"].items():
            lines.append(
                f"{name:<12}{draw_sparkline(values)}  {min(values):.3g} to {max(values):.3g}, now {values[-1]:.3g}"
            )
    return "\n".join(lines)


class TrainerStatus:
    """Builds the report from the parts of a running trainer; before they exist, a short one."""

    def __init__(self, config: "TrainConfig", started_ms: int) -> None:
        self._config = config
        self._started_ms = started_ms
        self._attached: tuple[RolloutCollector, CheckpointPublisher, MetricsReporter, MetricsLog] | None = None
        self.parts: tuple[SupervisedTask, ...] = ()

    def attach(
        self,
        collector: "RolloutCollector",
        publisher: "CheckpointPublisher",
        reporter: "MetricsReporter",
        metrics: "MetricsLog",
    ) -> None:
        self._attached = (collector, publisher, reporter, metrics)

    def build(self, now_ms: int) -> dict[str, Any]:
        config = self._config
        report: dict[str, Any] = {
            "state": "starting",
            "run": config.run,
            "network": config.network,
            "coordinator": config.coordinator,
            "started_ms": self._started_ms,
            "now_ms": now_ms,
        }
        if self._attached is None:
            return report
        collector, publisher, reporter, metrics = self._attached
        problems = [part.last_error for part in self.parts if part.last_error and not part.is_running]
        return report | {
            "state": collector.state,
            "step": collector.step,
            "published": publisher.published,
            "groups_waiting": collector.buffer.groups,
            "groups_wanted": config.batch.groups,
            "submissions_refused": dict(collector.refused),
            "submissions_expired": collector.buffer.expired,
            "problem": "; ".join(filter(None, [collector.problem, publisher.problem, reporter.problem, *problems])),
            "held_out": [list(pair) for pair in metrics.held_out],
            "last": metrics.last,
            "curves": {name: list(curve) for name, curve in metrics.curves.items()},
        }
