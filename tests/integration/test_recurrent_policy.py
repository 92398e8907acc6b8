"""Policies outside of the dense family, from rollouts to the next checkpoint: generated, audited, learnt from.

Of one without attention the engine carries the state of the recurrence from token to token, the audit reads whole
texts, the trainer reads them in rows; of a mixture of experts all three must choose the same experts. test_devnet.py
runs the recurrent one as a network, where time allows.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from prime_node.engine.interface import Completion, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import parse_proofs
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.wire.ids import Digest
from prime_trainer.data.packing import PackLayout, Sample
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.tiny import EOS_TOKEN, make_recurrent_checkpoint
from prime_trainer.publish.outgoing import stage_weights, write_weights
from support.expert_models import make_expert_checkpoint
from support.training_samples import make_learner

HIDDEN = 32
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=12)
ORDERS = [
    GenerateRequest(number=number, prompt=np.arange(1, 4 + number % 3, dtype=np.int32), seed=number)
    for number in range(12)
]


def open_engine(folder: Path) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision="float32", batch_max=8)
    engine.load(folder)
    return engine


def generate(engine: TorchEngine) -> list[Completion]:
    return sorted(engine.generate(ORDERS, SAMPLING), key=lambda completion: completion.number)


def count_good(engine: TorchEngine, made: Sequence[Completion]) -> int:
    """Completions that another machine finds no fault with."""
    texts = [
        TokenSequence(number=order.number, prompt=order.prompt, output=each.tokens, seed=order.seed)
        for order, each in zip(ORDERS, made, strict=True)
    ]
    readings = sorted(engine.read(texts, SAMPLING), key=lambda reading: reading.number)
    good = 0
    for each, reading in zip(made, readings, strict=True):
        proofs = parse_proofs(each.proofs, tokens=len(each.tokens), hidden=HIDDEN)
        is_proven = not find_faults(
            verify_proofs(proofs, reading.hidden_bits, seed=Digest(bytes(32))), ToplocThresholds()
        )
        good += is_proven and bool(reading.margins.max() < 1e-3)
    return good


KINDS: dict[str, tuple[Callable[..., Path], PackLayout]] = {
    "recurrent": (make_recurrent_checkpoint, PackLayout.STACKED),
    "experts": (make_expert_checkpoint, PackLayout.PACKED),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_generates_passes_the_audit_is_learnt_from_and_makes_the_next_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    make, layout = KINDS[kind]
    first = make(tmp_path / "first", hidden=HIDDEN, layers=2)
    made = generate(open_engine(first))
    assert len({len(each.tokens) for each in made}) > 2, "some ended before others"
    assert count_good(open_engine(first), made) == len(made)

    learner = make_learner(first)
    assert learner.policy.layout is layout
    samples = [
        Sample(order.prompt, each.tokens, each.logprobs, 1.0 if order.number % 2 else -1.0, 1.0)
        for order, each in zip(ORDERS, made, strict=True)
    ]
    facts = learner.train_step(samples, 1)
    assert facts["is_applied"]
    assert facts["mismatch_kl"] < 1e-6, "the trainer gives each token the log-prob that the worker drew it with"
    alone = RankGroup()
    second = write_weights(tmp_path / "second", first, stage_weights(learner.policy.model, alone), alone)

    again = generate(open_engine(second))
    assert count_good(open_engine(second), again) == len(again)
    assert count_good(open_engine(first), again) < len(again), "work with other weights than the audit's is found"
    if kind == "recurrent":
        model = AutoModelForCausalLM.from_pretrained(second, dtype=torch.float32)
        assert not any("attn" in name for name, _ in model.named_parameters())
