"""The settings of `prime-trainer start`: frozen dataclasses, made once and passed in. No torch: `--help` reads it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from prime_protocol.tasks.spec import TaskSetSpec
from prime_protocol.tolerance import Precision
from prime_runtime.settings import Between, check_parsed
from prime_trainer.config import PublishConfig

LOCK_NAME = "lock"
"""In the trainer's folder: who runs there, and how other commands reach it."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The section [loss]; docs/learning.md has the formulas."""

    clip_low: Annotated[float, Between(0.0, 1.0)] = 0.2
    """A token that got less likely than 1 less this, against the start of the step, is not pushed down further."""
    clip_high: Annotated[float, Between(0.0, 10.0)] = 0.28
    """A token that got more likely than 1 plus this, against the start of the step, is not pushed up further."""
    delta: Annotated[float, Between(1.0, 1000.0)] = 4.0
    """Most weight of a token that got more likely although it is to be pushed down."""
    correct: bool = True
    """Weigh each token by how much likelier it is at the start of the step than it was for the worker."""
    ratio_max: Annotated[float, Between(1.0, 100.0)] = 2.0
    """Most weight that this correction gives to a token."""
    kl_weight: Annotated[float, Between(0.0, 100.0)] = 0.0
    """Pull towards the weights of step 0; 0 is none, and saves a second model in memory."""
    entropy_weight: Annotated[float, Between(0.0, 10.0)] = 0.0
    """Reward for being undecided."""


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """The section [advantage]."""

    scale_max: Annotated[float, Between(1.0, 100.0)] = 1.0
    """Most by which a group's advantages are multiplied to bring their spread to 1; 1 leaves them as they are."""
    length_weight: Annotated[float, Between(0.0, 1.0)] = 0.0003
    """What each token off the target length costs, where a run has target lengths."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """The section [batch]: what makes a step."""

    groups: Annotated[int, Between(1, 2**20)] = 32
    """Groups with a signal that make a step. Fewer are taken when the run has no more work to give out."""
    tokens: Annotated[int, Between(0, 2**40)] = 0
    """Trained tokens that make a step even with fewer groups; 0: only groups count."""
    minibatches: Annotated[int, Between(1, 64)] = 1
    """Updates of the weights in one step. More than one takes a second forward pass over the whole batch."""
    pack_tokens: Annotated[int, Between(1, 2**24)] = 4096
    """Input tokens of one forward pass. A longer sample gets a pass of its own."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The section [optimizer]: AdamW, its schedule, and when a gradient is not believed."""

    learning_rate: Annotated[float, Between(0.0, 1.0)] = 1e-6
    """At the end of the warm-up."""
    warmup_steps: Annotated[int, Between(0, 10**9)] = 25
    """Steps over which the learning rate rises from 0."""
    decay_steps: Annotated[int, Between(0, 10**9)] = 0
    """Steps after the warm-up over which it falls; 0: it stays."""
    decay_to: Annotated[float, Between(0.0, 1.0)] = 0.1
    """Share of the learning rate that is left when it has fallen."""
    beta1: Annotated[float, Between(0.0, 0.9999)] = 0.9
    """Of the mean of gradients."""
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.99
    """Of the mean of squares."""
    weight_decay: Annotated[float, Between(0.0, 1.0)] = 0.01
    """Of matrices; norms and biases do not decay."""
    clip_norm: Annotated[float, Between(1e-6, 1e6)] = 1.0
    """Longest gradient; a longer one is scaled down."""
    outlier: Annotated[float, Between(1.0, 1e9)] = 20.0
    """A gradient this many times longer than the median of the last ones is not applied."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The section [evaluation]: how checkpoints do on problems that the run does not train on, beside the training."""

    task_set: str = ""
    """The held-out problems, such as sort-digits?seed=1; empty: none are tried. See docs/protocol/tasks.md."""
    every: Annotated[int, Between(1, 10**9)] = 10
    """Steps from one checkpoint that is tried to the next. The first one is tried, and the last of `steps`."""
    first: Annotated[int, Between(0, 2**40)] = 0
    """First problem."""
    tasks: Annotated[int, Between(1, 2**20)] = 256
    """How many."""
    temperature: Annotated[float, Between(0.0, 10.0)] = 1.0
    """Of the sampling; 0 is greedy."""
    tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest answer."""
    batch: Annotated[int, Between(1, 65_536)] = 256
    """Answers generated at once."""
    device: str = "cpu"
    """Where the copy of the model is that is tried."""

    def __post_init__(self) -> None:
        if self.task_set:
            check_parsed(self, {"task_set": TaskSetSpec.parse})


@dataclass(frozen=True, kw_only=True)
class TrainConfig(PublishConfig):
    """Everything `start` can be told."""

    folder: Path
    """Where the trainer keeps its checkpoints, its numbers and its lock."""
    model: Path
    """Model that training begins with: a folder of config.json, tokenizer.json and safetensors, or owner/model on the
    Hugging Face hub."""
    steps: Annotated[int, Between(0, 10**9)] = 0
    """Step to end with; 0: go on until stopped."""
    lag_max: Annotated[int, Between(0, 64)] | None = None
    """Most steps a rollout may be behind. Nothing: as many as the run allows; more never."""
    device: str = "cpu"
    """Where the model is: cpu, or cuda for one GPU per rank."""
    precision: Precision = Precision.FLOAT32
    """What the model computes in; weights and optimizer are float32 always."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """Threads of torch in each rank, on a CPU."""
    gradient_checkpointing: bool = False
    """Compute activations again instead of keeping them: a third slower, far less memory."""
    checkpoints_kept: Annotated[int, Between(2, 1000)] = 2
    """Checkpoints to resume from that are kept; the newest one may still be on its way out."""
    poll_ms: Annotated[int, Between(10, 600_000)] = 1_000
    """Between two looks at what was accepted."""
    jobs: Annotated[int, Between(1, 256)] = 2
    """Sandboxed gradings at once."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port on 127.0.0.1 for status, orders and metrics; 0 takes a free one."""
    loss: LossConfig = field(default_factory=LossConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
