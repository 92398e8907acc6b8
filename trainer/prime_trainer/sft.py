"""A warm start: learn completions by heart until some answers are right. GRPO learns nothing where none ever is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import torch

from prime_protocol.errors import LocalError
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec
from prime_runtime.model_files import ModelFiles
from prime_trainer.checkpoints import MODEL, WEIGHTS, copy_files, plan_weights
from prime_trainer.examples import Example, draw_examples, read_examples, to_sample
from prime_trainer.hub import find_model
from prime_trainer.model_config import SftConfig
from prime_trainer.packing import Sample, arrange
from prime_trainer.policy import Policy
from prime_trainer.publication import make_copy
from prime_trainer.tensor_files import write_tensors


def warm_up(config: SftConfig, tell: Callable[[int, float], None]) -> None:
    """The whole of it; `tell` hears of each step and its loss."""
    if config.out.exists():
        raise LocalError(f"{config.out} exists; name another folder")
    torch.set_num_threads(config.threads)
    config = replace(config, model=find_model(config.model))
    files, policy = ModelFiles.open(config.model), Policy.load(config.model, device=config.device)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    examples = list_examples(config)
    for step in range(1, config.steps + 1):
        samples = [to_sample(next(examples), files) for _ in range(config.examples)]
        loss = learn(policy, samples, config.pack_tokens)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tell(step, loss)
    write_model(policy, config)


def list_examples(config: SftConfig) -> Iterator[Example]:
    """In an order that the seed decides, for ever."""
    dice = Random(config.seed)
    if (config.data is None) == (not config.task_set):
        raise LocalError("say what to learn from: --task-set or --data, one of them")
    if config.data is None:
        yield from draw_examples(open_family(TaskSetSpec.parse(config.task_set)), dice)
        return
    known = read_examples(config.data)
    while True:
        yield from dice.sample(known, len(known))


def learn(policy: Policy, samples: list[Sample], pack_tokens: int) -> float:
    """Gradients of the mean log-prob over all tokens; the loss."""
    tokens, total = sum(len(sample.output_tokens) for sample in samples), 0.0
    for pack in arrange(samples, policy.layout, tokens_max=pack_tokens):
        logp_T, _ = policy.score(pack)
        loss = -logp_T.sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def write_model(policy: Policy, config: SftConfig) -> None:
    draft = config.out.with_name(config.out.name + ".draft") / MODEL
    draft.mkdir(parents=True, exist_ok=True)
    copy_files(config.model, draft)
    write_tensors(draft / WEIGHTS, plan_weights(policy.model))
    make_copy(draft, config.out)
    for path in draft.iterdir():
        path.unlink()
    draft.rmdir()
    draft.parent.rmdir()
