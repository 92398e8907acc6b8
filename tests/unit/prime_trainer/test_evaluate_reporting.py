"""Which checkpoints are tried, and which numbers go into the log."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.wire.ids import Step
from prime_runtime.settings.schema import ConfigError
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import EvaluationConfig, TrainConfig
from prime_trainer.evaluate import MetricsReporter, is_evaluation_due, make_metrics
from prime_trainer.metrics import select_numbers
from support.gossip_examples import NETWORK, RUN


def test_the_first_every_so_many_and_the_last_checkpoint_are_tried() -> None:
    rule = EvaluationConfig(task_set="sort-digits?seed=1", every=4)
    assert [step for step in range(12) if is_evaluation_due(rule, Step(step), 10)] == [0, 4, 8, 10]
    assert [step for step in range(12) if is_evaluation_due(rule, Step(step), 0)] == [0, 4, 8]
    assert not is_evaluation_due(EvaluationConfig(), Step(0), 0), "none where no problems are named"


@pytest.mark.parametrize("step", [3, 4])
async def test_folder_of_a_step_is_kept_only_for_its_evaluation(step: int, tmp_path: Path) -> None:
    config = TrainConfig(
        store=tmp_path,
        coordinator="http://c:8440",
        coordinator_id="0x" + "11" * 20,
        run=RUN,
        network=NETWORK,
        folder=tmp_path,
        model=tmp_path,
        evaluation=EvaluationConfig(task_set="sort-digits?seed=1", every=4),
    )
    nothing: Any = None
    reporter = MetricsReporter(config, nothing, nothing, nothing, nothing)
    folder = tmp_path / "outgoing"
    folder.mkdir()
    reporter.add(folder, TrainState(step=Step(step)))
    await asyncio.get_running_loop().shutdown_default_executor()
    assert folder.exists() == (step == 4), "while another one is evaluated, hundreds may come"


def test_held_out_problems_that_cannot_be_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="task_set"):
        EvaluationConfig(task_set="no-such-family?")


def test_only_finite_numbers_are_told_in_the_order_of_their_names() -> None:
    facts = {"step": 3, "loss": -0.5, "tokens": 10, "kl": None, "tail": math.nan, "problem": "none", "at_ms": 1}
    numbers = select_numbers(facts)
    assert numbers == {"loss": -0.5, "tokens": 10.0}
    assert [each.name for each in make_metrics({**numbers, "held_out": 0.5})] == ["held_out", "loss", "tokens"]
