"""The other arithmetic: rounding float32 gives bfloat16's own noise, and bfloat16 without rounding is float32."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prime_node.engine.interface import GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, RowMeasurement, measure_row
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.forward import CrossPrecisionModel, open_cross_precision
from prime_protocol.wire.ids import digest_fields
from prime_trainer.model.tiny import make_tiny_checkpoint

SAMPLING = Sampling(temperature=1.0, tokens_max=96, eos=frozenset())
SEED = digest_fields("twin/1")


def open_engine(precision: str, checkpoint: Path) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision=precision)
    engine.load(checkpoint)
    return engine


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("twin"), family=request.param, vocabulary=64)


def read(engine: TorchEngine, claims: list[ClaimedRow]) -> list[RowMeasurement]:
    readings = engine.read([claim.sequence for claim in claims], SAMPLING)
    return [measure_row(claims[reading.number], reading, seed=SEED) for reading in readings]


def write(engine: TorchEngine) -> list[ClaimedRow]:
    dice = np.random.default_rng(3)
    orders = [GenerateRequest(number=n, prompt=dice.integers(0, 64, 9).astype(np.int32), seed=n) for n in range(12)]
    done = sorted(engine.generate(orders, SAMPLING), key=lambda each: each.number)
    return [
        ClaimedRow(
            sequence=TokenSequence(number=order.number, prompt=order.prompt, output=each.tokens, seed=order.seed),
            logprobs=each.logprobs,
            proofs=each.proofs,
        )
        for order, each in zip(orders, done, strict=True)
    ]


def test_both_ways_agree_on_the_noise_and_an_honest_worker_has_as_much(checkpoint: Path) -> None:
    claims = write(open_engine("bfloat16-imitated", checkpoint))
    by_rounding, by_hardware = (
        read(open_engine(name, checkpoint), claims) for name in ("bfloat16", "bfloat16-imitated")
    )
    for rows in (by_rounding, by_hardware):
        spans = [span for row in rows for span in row.spans]
        theirs, own = sum(span.logprob_error_sum for span in spans), sum(span.own_logprob_error_sum for span in spans)
        assert own > 0
        assert theirs / own == pytest.approx(1, abs=0.15)
        mantissas = sum(report.mantissa_error_mean for row in rows for report in row.chunks)
        assert mantissas / sum(span.own_mantissa_error_mean for span in spans) == pytest.approx(1, abs=0.15)


def test_without_rounding_the_twin_is_the_model_itself(checkpoint: Path) -> None:
    exact, rounded = open_engine("float32", checkpoint), open_engine("bfloat16-imitated", checkpoint)
    twin = open_cross_precision(rounded._get_model())
    assert twin is not None
    assert not twin.rounds_to_bf16
    fed = [np.arange(40, dtype=np.int64)]
    with torch.inference_mode():
        assert torch.allclose(twin.read(fed, [7]), exact._get_model().read(fed, [7]), atol=1e-4)


def test_a_run_in_float32_reads_once(checkpoint: Path) -> None:
    engine = open_engine("float32", checkpoint)
    rows = read(engine, write(engine))
    assert not any(span.is_read_twice for row in rows for span in row.spans)
    assert open_cross_precision(object()) is None  # type: ignore[arg-type]
    assert isinstance(open_cross_precision(engine._get_model()), CrossPrecisionModel)
