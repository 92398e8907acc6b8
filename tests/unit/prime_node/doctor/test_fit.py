"""The doctor's lines about the run's model on this machine's GPUs."""

from dataclasses import replace

from prime_node.doctor.facts import EngineInstallFacts, MemoryFacts
from prime_node.doctor.fit import plan_gpus
from prime_runtime.checklist import CheckGrade
from unit.prime_node.doctor.test_checklist import GB, GOOD, GPU, lines_of

assert GOOD.coordinator is not None
assert GOOD.engine is not None
CPU = GOOD.engine.devices[0]


def engine(*free_gb: int) -> EngineInstallFacts:
    gpus = (
        replace(GPU, device=f"cuda:{number}", name="NVIDIA H100 80GB HBM3", free_bytes=gb * GB)
        for number, gb in enumerate(free_gb)
    )
    return EngineInstallFacts("/py", "2.13", "", (CPU, *gpus), "")


LARGE = replace(GOOD.coordinator, model="Qwen/QwQ-32B")


def test_a_known_model_is_planned_by_its_shape() -> None:
    line = lines_of(engine=engine(80, 80), coordinator=LARGE)["model on GPUs"]
    assert line.grade is CheckGrade.GOOD
    assert line.found == "1 copy of QwQ-32B, each on 2 of 2 GPUs"


def test_a_model_that_fits_neither_gpus_nor_memory_is_refused_in_one_sentence() -> None:
    line = lines_of(engine=engine(24), coordinator=LARGE)["model on GPUs"]
    assert line.grade is CheckGrade.MISSING
    assert line.found.startswith("QwQ-32B does not run on 1 × NVIDIA H100 80GB HBM3: a sequence of")
    roomy = MemoryFacts(total_bytes=200 * GB, free_bytes=190 * GB)
    assert lines_of(engine=engine(24), coordinator=LARGE, memory=roomy)["model on GPUs"].grade is CheckGrade.NOTE


def test_a_small_card_beside_large_ones_is_left_out_where_that_holds_more() -> None:
    plan = plan_gpus(replace(GOOD, engine=engine(80, 8, 80), coordinator=LARGE))
    assert plan is not None
    assert plan.placement is not None
    assert (plan.placement.tensor_parallel, plan.placement.gpus) == (2, 2)


def test_an_unknown_model_is_planned_by_the_bytes_of_its_weights() -> None:
    found = lines_of(engine=engine(24, 24))["model on GPUs"]
    assert found.found == "2 copies of tiny, each on 1 of 2 GPUs"
    assert plan_gpus(replace(GOOD, engine=engine(24), sources=None)) is None
    assert "model on GPUs" not in lines_of(role="relay", engine=engine(24))
