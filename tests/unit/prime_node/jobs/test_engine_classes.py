"""A file is judged by the bounds of two engine classes: the one it names, and the validator's own."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_node.agent.events import AuditDone, Generated, GenerationFailed
from prime_node.engine.interface import EngineFacts
from prime_node.engine.machine_class import get_engine_class
from prime_node.jobs.evidence_bundle import (
    STEP_REPLY_2,
    EvidenceBundle,
    EvidenceBundle3,
    ModelLoaded3,
    decode_evidence,
)
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.class_bounds import ClassBounds, EngineClass, parse_class_bounds
from prime_protocol.rollouts.file import write_rollouts
from prime_protocol.rollouts.rollout import Rollout
from prime_protocol.wire.codec import encode
from support.audit_bench import Bench, make_bench
from support.job_setup import SETUP_TERMS, JobSetup, wanted

OWN = EngineClass("cpu/numpy-1.26/none/float32/tp1")
NOISY, QUIET = EngineClass("gpu/noisy"), EngineClass("gpu/quiet")
TIGHT = (
    "logprob_error_max=0.001 logprob_error_usual=0.001 logprob_error_mean_max=0.0005 logprob_error_mean_usual=0.0005"
)
LINES = (f"{QUIET} > {OWN}: {TIGHT}", f"{NOISY} > {OWN}: logprob_error_max=0.04", f"{OWN} > {OWN}: {TIGHT}")
H100 = EngineFacts(
    engine="vllm",
    device="cuda:0",
    precision="bfloat16",
    hidden=64,
    vocabulary=64,
    context_max=2048,
    version="0.33.0+cu128",
    attention="FLASH_ATTN",
    tensor_parallel=2,
    device_model="NVIDIA H100 80GB HBM3",
)


def use_table(setup: JobSetup, lines: Sequence[str] = LINES, *, is_closed: bool = False) -> ClassBounds:
    table = parse_class_bounds(lines, SETUP_TERMS.tolerance, is_closed=is_closed)
    setup.context = replace(setup.context, terms=replace(setup.context.terms, class_bounds=table, version_min=3))
    return table


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path)
    yield made
    await made.setup.engine.close()


def shift(row: Rollout) -> Rollout:
    """Log-probs off by more than a quiet engine's noise, and less than the run's default."""
    return replace(row, output_logprobs=np.minimum(row.output_logprobs - np.float32(0.02), 0))


def name_class(bench: Bench, name: EngineClass | None) -> bytes:
    """The honest file with shifted log-probs, as an engine of this class would have sent it."""
    limits = replace(
        bench.setup.context.get_limits(bench.lease.first_slot, bench.lease.slots), names_class=False, classes=()
    )
    rows = [shift(row) for row in bench.read_with(limits).rows]
    return write_rollouts(bench.read_with(limits).header, rows, name, names_class=True)


def test_a_class_says_what_noise_depends_on() -> None:
    assert get_engine_class(H100) == "nvidia-h100-80gb-hbm3/vllm-0.33/flash-attn/bfloat16/tp2"
    for changes in ({"version": ""}, {"version": "nightly"}, {"attention": ""}, {"device_model": "?"}):
        assert get_engine_class(replace(H100, **changes)) is None
    assert get_engine_class(replace(H100, attention="x" * 200)) is None


async def test_the_pair_of_classes_decides_what_is_noise(bench: Bench) -> None:
    use_table(bench.setup)
    outcomes = {}
    for name in (QUIET, OWN, NOISY, EngineClass("gpu/unknown"), None):
        event = await bench.audit(name_class(bench, name))
        assert isinstance(event, AuditDone), bench.auditor.problem
        outcomes[name] = event.finding.outcome
        metrics = {metric.name: metric.value for metric in event.finding.metrics}
        assert metrics["judging_class"] == 1
        assert metrics["generating_class"] == {OWN: 1, NOISY: 2, QUIET: 3}.get(name or OWN, 0) * (name is not None)
    assert outcomes[QUIET] is outcomes[OWN] is Outcome.FRAUDULENT
    assert outcomes[NOISY] is outcomes[EngineClass("gpu/unknown")] is outcomes[None] is Outcome.ACCEPT


async def test_a_worker_names_its_class_and_passes_its_own_bounds(bench: Bench) -> None:
    use_table(bench.setup)
    event = await bench.setup.generator.generate(wanted(1), lambda progress: None)
    assert isinstance(event, Generated)
    data = bench.setup.spool.get(event.file.file_digest)
    assert data is not None
    limits = bench.setup.context.get_limits(bench.lease.first_slot, bench.lease.slots)
    assert bench.read_with(limits, data).engine_class == OWN


async def test_a_closed_run_gets_no_work_of_other_classes(bench: Bench) -> None:
    use_table(bench.setup, [QUIET], is_closed=True)
    event = await bench.setup.generator.generate(wanted(1), lambda progress: None)
    assert isinstance(event, GenerationFailed)
    assert f"takes work of calibrated engines only, and {OWN} is none of its 1 classes" in event.reason
    found = await bench.audit(name_class(bench, NOISY))
    assert isinstance(found, AuditDone)
    assert (found.finding.outcome, found.finding.metrics) == (Outcome.INVALID, ())
    assert "header.engine" in found.finding.reason


async def test_evidence_of_the_release_before_is_still_read(bench: Bench) -> None:
    event = await bench.audit(bench.forge(lambda row: replace(row, output_logprobs=row.output_logprobs - 1)))
    assert isinstance(event, AuditDone)
    new = decode_evidence(bench.setup.spool.get(event.finding.evidence) or b"")
    assert new.engine is not None
    engine = ModelLoaded3(**{name: getattr(new.engine, name) for name in ModelLoaded3.__slots__})
    values = {name: getattr(new, name) for name in EvidenceBundle.__slots__}
    values |= {"version": 3, "facts": STEP_REPLY_2.downgrade(new.facts), "engine": engine}
    read = decode_evidence(encode(EvidenceBundle3(**values)))
    assert read.engine is not None
    assert (read.facts, read.numbers, read.engine.version) == (new.facts, new.numbers, "")
    assert replace(read, engine=new.engine) == new
    without = decode_evidence(encode(EvidenceBundle3(**{**values, "engine": None})))
    assert without.engine is None
