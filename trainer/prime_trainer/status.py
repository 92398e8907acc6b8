"""What a trainer tells its owner: one report, the same for the terminal, for JSON and for tests."""

from typing import Any

from prime_runtime.supervision import Part
from prime_trainer.collecting import Collector
from prime_trainer.measuring import Measurer
from prime_trainer.notes import Notes
from prime_trainer.publication import Publisher
from prime_trainer.train_config import TrainConfig


class Report:
    """Made from the parts of a running trainer, as far as it has come."""

    def __init__(self, config: TrainConfig, started_ms: int) -> None:
        self._config = config
        self._started_ms = started_ms
        self._followed: tuple[Collector, Publisher, Measurer, Notes] | None = None
        self.parts: tuple[Part, ...] = ()

    def follow(self, collector: Collector, publisher: Publisher, measurer: Measurer, notes: Notes) -> None:
        self._followed = (collector, publisher, measurer, notes)

    def make(self, now_ms: int) -> dict[str, Any]:
        config = self._config
        report: dict[str, Any] = {
            "state": "starting",
            "run": config.run,
            "network": config.network,
            "coordinator": config.coordinator,
            "started_ms": self._started_ms,
            "now_ms": now_ms,
        }
        if self._followed is None:
            return report
        collector, publisher, measurer, notes = self._followed
        problems = [part.last_error for part in self.parts if part.last_error and not part.is_running]
        return report | {
            "state": collector.state,
            "step": collector.step,
            "published": publisher.published,
            "groups_waiting": collector.harvest.groups,
            "groups_wanted": config.batch.groups,
            "submissions_refused": dict(collector.refused),
            "submissions_expired": collector.harvest.expired,
            "problem": "; ".join(filter(None, [collector.problem, publisher.problem, measurer.problem, *problems])),
            "held_out": [list(pair) for pair in notes.held_out],
            "last": notes.last,
            "curves": {name: list(curve) for name, curve in notes.curves.items()},
        }
