"""Requests to real engines, and what they wrote as claims that other engines verify."""

from pathlib import Path

import numpy as np

from prime_node.engine.interface import GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow
from prime_node.engine.process import EngineProcess
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import EOS_TOKEN

VLLM = Path(__file__).parents[2] / ".vllm"
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=70)
AUDIT = Digest(bytes(range(32)))
FLOAT32 = Tolerance(
    precision=Precision.FLOAT32,
    exponent_mismatches_max=8,
    sign_mismatches_max=4,
    mantissa_error_mean_max=2.0,
    mantissa_error_median_max=2,
    margin_max=1e-3,
    margin_mean_max=1e-5,
    logprob_error_max=1e-3,
    logprob_error_mean_max=1e-5,
)
"""Far tighter than the defaults, which are for bfloat16 on any machine."""
CHANGED = frozenset({"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"})
"""The embedding is the output layer too, and vLLM keeps the other tensor together with its neighbour."""


def make_orders(count: int) -> list[GenerateRequest]:
    dice = np.random.default_rng(11)
    return [
        GenerateRequest(
            number=n, prompt=dice.integers(0, 32, int(dice.integers(1, 50))).astype(np.int32), seed=2**63 + n
        )
        for n in range(count)
    ]


async def write(process: EngineProcess, orders: list[GenerateRequest]) -> list[ClaimedRow]:
    done = await process.generate(orders, SAMPLING)
    return [
        ClaimedRow(
            sequence=TokenSequence(number=order.number, prompt=order.prompt, output=completion.tokens, seed=order.seed),
            logprobs=completion.logprobs,
            proofs=completion.proofs,
        )
        for order, completion in zip(orders, done, strict=True)
    ]
