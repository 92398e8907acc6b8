"""The tiny run that benchmarks of learning share: sort-digits, 125,000 parameters, a warm start, and a fast sampler.

It draws rollouts as a worker would, from a published bf16 copy of the weights, and grades them with the task's own
rule; see bench/staleness.py and bench/async.py.
"""

import string
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from prime_protocol.rollouts.rollout import FinishReason, Rollout
from prime_protocol.tasks.family import Grade, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, Sample, Slot
from prime_trainer.config import AdvantageConfig, BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.data.rollout_buffer import RolloutGroup
from prime_trainer.data.submissions import make_rollout_group
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.train import Learner

LETTERS = f"{string.digits}^>$+-*= " + string.ascii_letters[:14]
VOCABULARY = 32
EOS = LETTERS.index("$")
OUTPUT = 6
PROMPTS, SAMPLES = 64, 16
WARM_STEPS, WARM_BATCH, WARM_RATE = 40, 128, 3e-3
TASKS = open_family(TaskSetSpec.parse("sort-digits"))
Weights = dict[str, torch.Tensor]


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def make_model() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=64,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def make_warm_start(folder: Path, seed: int) -> Path:
    """A model that has seen a few right answers: about one in twenty of its own is right."""
    torch.manual_seed(seed)
    model, dice = make_model(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(WARM_STEPS):
        tasks = [TASKS.make(int(index)) for index in dice.integers(0, TASKS.size, WARM_BATCH)]
        rows = torch.tensor([encode(task.prompt + task.key + "$") for task in tasks])
        logits = model(rows[:, :-1]).logits[:, -OUTPUT:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, -OUTPUT:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def make_learner(
    folder: Path, *, correct: bool, steps: int, learning_rate: float = 1e-3, minibatches: int = 2
) -> Learner:
    """With the settings that worked for this task."""
    policy = PolicyModel.load(folder)
    schedule = OptimizerConfig(
        learning_rate=learning_rate,
        warmup_steps=5,
        decay_steps=max(1, steps - 5),
        decay_to=0.1,
        beta2=0.95,
        weight_decay=0.0,
        clip_norm=1.0,
    )
    return Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier),
        ranks=RankGroup(),
        loss=LossConfig(correct=correct, entropy_weight=0.02),
        batch=BatchConfig(minibatches=minibatches),
        schedule=schedule,
    )


class Digits:
    """Draws rollouts of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._model = make_model().eval()

    def name(self, step: int) -> Digest:
        return Digest(sha256(f"{self._seed}/{step}".encode()).digest())

    def copy_weights(self, policy: PolicyModel) -> Weights:
        """As they are published."""
        return {name: value.detach().bfloat16() for name, value in policy.model.state_dict().items()}

    def draw(self, weights: Weights, step: int, rule: AdvantageConfig) -> list[RolloutGroup]:
        """PROMPTS groups of SAMPLES completions, graded."""
        dice = np.random.default_rng([self._seed, step])
        torch.manual_seed(int(dice.integers(2**31)))
        indices = [int(index) for index in dice.integers(0, TASKS.size, PROMPTS)]
        self._model.load_state_dict(weights)
        prompts = np.array([encode(TASKS.make(index).prompt) for index in indices], np.int32)
        tokens, logprobs = sample(self._model, prompts.repeat(SAMPLES, 0), greedy=False)
        groups = []
        for place, index in enumerate(indices):
            rows = range(place * SAMPLES, (place + 1) * SAMPLES)
            rollouts = [
                make_rollout(place, row % SAMPLES, index, prompts[place], tokens[row], logprobs[row]) for row in rows
            ]
            groups.append(
                make_rollout_group(rollouts, [grade(index, rollout.output_tokens) for rollout in rollouts], rule)
            )
        return groups

    def measure(self, weights: Weights, problems: int = 512) -> float:
        """Share of held-out problems whose likeliest answer is right."""
        self._model.load_state_dict(weights)
        indices = [int(index) for index in np.random.default_rng(10**6).integers(0, TASKS.size, problems)]
        prompts = np.array([encode(TASKS.make(index).prompt) for index in indices], np.int32)
        tokens, _ = sample(self._model, prompts, greedy=True)
        return float(np.mean([grade(index, cut(row)) for index, row in zip(indices, tokens, strict=True)]))


def sample(
    model: Qwen2ForCausalLM, prompts_NP: NDArray[np.int32], *, greedy: bool
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """OUTPUT tokens for each prompt, and their log-probs."""
    tokens, logprobs = [], []
    with torch.no_grad():
        cache, fed = DynamicCache(config=model.config), torch.from_numpy(prompts_NP).long()
        for _ in range(OUTPUT):
            log_NV = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, 0].log_softmax(-1)
            noise_NV = 0 if greedy else -torch.empty_like(log_NV).exponential_().log()
            fed = (log_NV + noise_NV).argmax(-1, keepdim=True)
            tokens.append(fed)
            logprobs.append(log_NV.gather(-1, fed))
    return torch.cat(tokens, 1).numpy().astype(np.int32), torch.cat(logprobs, 1).numpy()


def cut(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Up to the end token, that included."""
    ends = np.flatnonzero(tokens == EOS)
    return tokens[: ends[0] + 1] if len(ends) else tokens


def make_rollout(
    slot: int,
    number: int,
    task: int,
    prompt: NDArray[np.int32],
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
) -> Rollout:
    tokens = cut(tokens)
    return Rollout(
        slot=Slot(slot),
        sample=Sample(number),
        task=task,
        temperature=1.0,
        target_length=None,
        finish=FinishReason.EOS if tokens[-1] == EOS else FinishReason.LENGTH,
        prompt_tokens=prompt,
        output_tokens=tokens,
        output_logprobs=np.minimum(logprobs[: len(tokens)], 0),
        proofs=b"",
    )


def grade(index: int, tokens: Sequence[int] | NDArray[np.int32]) -> float:
    found = TASKS.grade(TASKS.make(index), "".join(LETTERS[token] for token in tokens))
    assert isinstance(found, Grade)
    return found.reward
