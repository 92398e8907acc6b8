"""Engines on GPUs in virtual time, and a small network of them with the real coordinator and agents."""

import math
from dataclasses import replace
from random import Random

import pytest

from prime_lab.simulator.gpu_engine import SWAP_S, GpuEngine, GpuModel, measure_full_engine
from prime_lab.simulator.gpu_world import GpuPlan, simulate_gpus
from prime_node.planning.cards import get_card
from prime_node.planning.plan import estimate_step_s
from prime_node.planning.sizes import open_model

SMALL = GpuModel(step_s=0.1, row_s=0.01, context_s=0.001, prefill_s=0.0, kv_tokens=1_000, sequences_max=4)


def test_the_time_of_a_step_is_that_of_a_plan() -> None:
    model, card = open_model("Qwen3-8B"), get_card("H100")
    gpu = GpuModel.of(model, card, sequence_tokens=16_000)
    for batch, context in ((1, 1), (16, 500), (200, 3_000)):
        expected_s, _ = estimate_step_s(model, card, 1, batch=batch, context=context)
        assert gpu.step_s + batch * (gpu.row_s + context * gpu.context_s) == pytest.approx(expected_s)


def run_slowly(gpu: GpuModel, length: int, batches: tuple[int, ...]) -> float:
    """When the last row ends, one step after the other: batches of equally long rows."""
    steps = [gpu.step_s + batch * (gpu.row_s + gpu.context_s * at) for batch in batches for at in range(length)]
    return sum(steps)


def test_a_jump_over_many_steps_takes_the_time_of_all_of_them() -> None:
    engine = GpuEngine(SMALL)
    engine.add(0, "a", [(0, 30)] * 10)
    assert engine.advance(1_000.0) == [0]
    slow = GpuEngine(SMALL)
    slow.add(0, "a", [(0, 30)] * 10)
    while not slow.advance(slow.now_s + 0.01):
        pass
    assert slow.now_s == pytest.approx(SWAP_S + run_slowly(SMALL, 30, (4, 4, 2)))


def test_rows_of_two_jobs_run_together_and_those_of_another_checkpoint_wait() -> None:
    engine = GpuEngine(SMALL)
    engine.add(0, "a", [(0, 50)])
    engine.add(1, "a", [(0, 5)])
    engine.add(2, "b", [(0, 5)])
    engine.add(3, "a", [(0, 5)])
    assert engine.advance(SWAP_S + 2.0) == [1]
    assert (engine.running, engine.is_begun(2), engine.is_begun(3)) == (1, False, False), "none passes the one before"
    before_s = engine.now_s
    assert engine.advance(100.0) == [0, 2, 3]
    assert before_s + 2 * SWAP_S < 100.0


def test_a_full_cache_preempts_the_youngest_and_loses_no_token() -> None:
    engine = GpuEngine(SMALL)
    engine.add(0, "a", [(10, 600), (10, 600)])
    assert engine.advance(10_000.0) == [0]
    assert engine.preempted > 0
    assert engine.tokens == 1_200


def test_tokens_of_a_cancelled_job_do_not_count() -> None:
    engine = GpuEngine(SMALL)
    engine.add(0, "a", [(0, 5), (0, 400)])
    engine.add(1, "a", [(0, 400)])
    engine.advance(10.0)
    engine.cancel(0)
    engine.advance(10_000.0)
    assert engine.tokens == 400
    assert not engine.jobs


def test_a_full_engine_makes_more_than_one_that_drains() -> None:
    rng, gpu = Random(1), replace(SMALL, context_s=1e-5)
    lengths = [(0, max(1, int(rng.lognormvariate(math.log(20), 1)))) for _ in range(500)]
    full = measure_full_engine(gpu, lengths, warm_s=100, until_s=2_000)
    engine = GpuEngine(gpu)
    for number in range(0, 200, 4):
        engine.add(number, "a", lengths[number : number + 4])
        while engine.jobs:
            engine.advance(engine.now_s + 0.5)
    assert engine.tokens == sum(length for _, length in lengths[:200])
    assert full > 1.5 * engine.tokens / engine.now_s


def test_gpus_are_used_through_new_weights_late_comers_and_a_node_that_hoards() -> None:
    """Short completions keep it small. The bench has the figures of long ones."""
    report = simulate_gpus(
        GpuPlan(
            seed=3,
            model="Qwen2.5-1.5B",
            cards=("4090", "4090"),
            mean_tokens=600,
            minutes=10,
            warm_minutes=10,
            slots_per_step=512,
            batch=0.3,
            late_starts=(1,),
            hoarders=1,
            sequences_max=64,
        )
    )
    assert report.steps >= 1
    assert report.lost <= 0.005
    assert report.utilisation >= 0.8, report
    assert report.hoarded < 0.1, "claims do not count"
