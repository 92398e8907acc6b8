"""Claims about the samples of a slot: their prompt is computed once, and each is what it would be alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.torch.dense import DenseDecoder, ForwardBatch
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.generic_model import GenericModel
from prime_trainer.model.tiny import EOS_TOKEN, make_recurrent_checkpoint, make_tiny_checkpoint

SLOTS, SAMPLES, BATCH = 6, 8, 12
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40)


def make_slots() -> list[GenerateRequest]:
    """Prompts of 1 to 60 tokens, each with SAMPLES seeds."""
    dice = np.random.default_rng(3)
    prompts = [dice.integers(0, 32, length).astype(np.int32) for length in (1, 2, 33, 60, 17, 33)]
    assert len(prompts) == SLOTS
    return [
        GenerateRequest(number=number, prompt=prompts[number // SAMPLES], seed=2**60 + number)
        for number in range(SLOTS * SAMPLES)
    ]


def open_engine(folder: Path, batch_max: int = BATCH) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision="float32", batch_max=batch_max)
    engine.load(folder)
    return engine


def generate(engine: TorchEngine, requests: list[GenerateRequest]) -> dict[int, tuple[list[int], bytes]]:
    done = engine.generate(requests, SAMPLING)
    return {completion.number: (completion.tokens.tolist(), completion.proofs) for completion in done}


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of the texts in each forward pass, without the rows that decode."""
    seen: list[int] = []
    forward, compute = DenseDecoder.forward, GenericModel.compute

    def counted(decoder: DenseDecoder, batch: ForwardBatch, wanted: Any = None) -> Any:
        seen.append(len(batch.tokens) - (batch.decoding.rows if batch.decoding else 0))
        return forward(decoder, batch, wanted)

    def counted_generic(model: GenericModel, tokens: torch.Tensor, cache: Any) -> Any:
        seen.append(tokens.numel() if cache is None else 0)
        return compute(model, tokens, cache)

    monkeypatch.setattr(DenseDecoder, "forward", counted)
    monkeypatch.setattr(GenericModel, "compute", counted_generic)
    return seen


@pytest.mark.parametrize("is_striped", [False, True], ids=["own attention", "torch's attention"])
def test_the_samples_of_a_slot_share_one_prefill(
    is_striped: bool, prefilled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_striped:
        monkeypatch.setattr("prime_node.engine.torch.attention.get_decode_kernel", lambda: None)
    engine, requests = open_engine(make_tiny_checkpoint(tmp_path)), make_slots()
    alone = {}
    for request in requests:
        alone |= generate(engine, [request])
    prefilled.clear()
    together = generate(engine, requests)
    assert sum(prefilled) == sum(len(request.prompt) for request in requests[::SAMPLES])
    assert {number: tokens for number, (tokens, _) in together.items()} == {
        number: tokens for number, (tokens, _) in alone.items()
    }
    texts = [tokens for tokens, _ in together.values()]
    assert len({tuple(tokens) for tokens in texts}) > SLOTS, "the samples differ"


def test_a_prompt_whose_samples_have_all_ended_is_computed_again(prefilled: list[int], tmp_path: Path) -> None:
    engine, requests = open_engine(make_tiny_checkpoint(tmp_path), batch_max=1), make_slots()[:16]
    generate(engine, requests)
    assert sum(prefilled) == sum(len(request.prompt) for request in requests)


def test_sequences_that_memory_drove_out_go_on_where_they_were(tmp_path: Path) -> None:
    folder, requests = make_tiny_checkpoint(tmp_path), make_slots()
    wanted = generate(open_engine(folder), requests)
    engine = open_engine(folder)
    engine.add(requests, SAMPLING)
    done = []
    for _ in range(10):
        done += engine.step()
    scheduler = engine._scheduler
    assert scheduler is not None
    scheduler.requeue()
    engine._batch, engine._batch_limit = None, BATCH // 2
    while engine.queue.running or engine.queue.waiting:
        done += engine.step()
    assert {each.number: each.tokens.tolist() for each in done} == {
        number: tokens for number, (tokens, _) in wanted.items()
    }


def test_models_of_transformers_share_it_too(prefilled: list[int], tmp_path: Path) -> None:
    engine, requests = open_engine(make_recurrent_checkpoint(tmp_path)), make_slots()
    alone = {}
    for request in requests[16:24]:
        alone |= generate(engine, [request])
    prefilled.clear()
    together = generate(engine, requests[16:24])
    assert sum(prefilled) == len(requests[16].prompt)
    assert {number: text[0] for number, text in together.items()} == {number: text[0] for number, text in alone.items()}
