"""The settings of every `prime-trainer` command: frozen dataclasses, made once and passed in.

`--help` imports this module, so it imports nothing slow: no torch, no numpy, no network.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from prime_protocol.constants import SHARD_BYTES, SHARD_BYTES_MAX, SHARD_BYTES_MIN
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import NetworkId, RunId, parse_address
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress, ServerLimits
from prime_runtime.logs import LogConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import check_parsed
from prime_runtime.settings.schema import Between, ConfigError, settings_class
from prime_runtime.shardcast.config import VERSIONS_KEPT, UploadConfig, check_urls

if TYPE_CHECKING:
    from prime_protocol.wire.signing import WalletKey
    from prime_runtime.clock import Clock
    from prime_runtime.http.client import HttpClient


@settings_class
class TrainerConfig:
    """The settings that all commands about a run share."""

    store: Path
    """Folder of the published weights; `publish` writes it, `origin` serves it."""
    coordinator: str
    """URL of the coordinator."""
    coordinator_id: str
    """Address of the coordinator's key, as `prime-coordinator init` printed it."""
    run: str
    """Name of the run."""
    network: str = "devnet"
    """Name of the network; every signed message contains it."""
    key: Path = Path("key.json")
    """Keystore file of the run's trainer."""
    password: Secret | None = None
    """Password of the key."""
    password_file: Path | None = None
    """File whose first line is the password of the key."""
    authority: Path | None = None
    """PEM file of the TLS authority to trust with an https coordinator, if this machine does not know it."""
    client: ClientLimits = field(default_factory=ClientLimits)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        check_parsed(self, {"network": NetworkId, "run": RunId, "coordinator_id": parse_address})

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)

    @property
    def run_id(self) -> RunId:
        return RunId(self.run)

    @property
    def server(self) -> ServerAddress:
        return ServerAddress(self.coordinator, parse_address(self.coordinator_id))

    def load_key(self) -> "WalletKey":
        from prime_runtime.keys import load_key_file, resolve_password

        return load_key_file(self.key, resolve_password(self.password, self.password_file))

    def open_client(self, key: "WalletKey", clock: "Clock") -> "AbstractAsyncContextManager[HttpClient]":
        from prime_runtime.http.client import open_client

        return open_client(
            key=key,
            network=self.network_id,
            clock=clock,
            limits=self.client,
            authority=self.authority,
        )


@settings_class
class PublishConfig(TrainerConfig):
    """The settings of `publish`."""

    keyframe_every: Annotated[int, Between(1, 10_000)] = 10
    """Publish a keyframe in addition to the delta every this many steps."""
    keep: Annotated[int, Between(1, 1000)] = VERSIONS_KEPT
    """Versions kept in the store; older ones are removed."""
    shard_bytes: Annotated[int, Between(SHARD_BYTES_MIN, SHARD_BYTES_MAX)] = SHARD_BYTES
    """Size of a shard."""


@settings_class
class OriginUploadConfig(UploadConfig):
    """The section [upload]: limits of serving shards. A server uploads faster than a home connection."""

    slots: Annotated[int, Between(0, 1000)] = 16
    """Concurrent uploads; 0 derives the number from bytes_per_s."""
    address_slots: Annotated[int, Between(1, 1000)] = 4
    """Concurrent uploads to one address."""


@settings_class
class OriginServerConfig(TrainerConfig):
    """The settings of `origin`."""

    announce: tuple[str, ...] = ()
    """URLs at which nodes reach this server, best first: http://host:port. Port 0 means the bound port. Default: the
    listening address."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    upload: OriginUploadConfig = field(default_factory=OriginUploadConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_urls("announce", self.announce)
        if not self.announce and self.listen.host in ("0.0.0.0", "::"):
            raise ConfigError("announce is empty: give the URL at which nodes reach this machine, http://host:port")

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs to announce; port 0 is not resolved yet."""
        host = f"[{self.listen.host}]" if ":" in self.listen.host else self.listen.host
        scheme = "https" if self.listen.tls_key else "http"
        return self.announce or (f"{scheme}://{host}:0",)


TRAINER_LOCK_NAME = "lock"
"""Lock file in the trainer's folder; it says which process runs and how other commands reach it."""


@settings_class
class LossConfig:
    """The section [loss]; docs/learning.md has the formulas."""

    clip_low: Annotated[float, Between(0.0, 1.0)] = 0.2
    """A token whose probability ratio to the start of the step is below 1 minus this is not pushed down further."""
    clip_high: Annotated[float, Between(0.0, 10.0)] = 0.28
    """A token whose probability ratio to the start of the step is above 1 plus this is not pushed up further."""
    delta: Annotated[float, Between(1.0, 1000.0)] = 4.0
    """Largest ratio of a token with a negative advantage whose probability rose."""
    correct: bool = True
    """Correct for staleness: weight each token by its probability at the start of the step over the worker's."""
    ratio_max: Annotated[float, Between(1.0, 100.0)] = 2.0
    """Largest weight of the staleness correction."""
    kl_weight: Annotated[float, Between(0.0, 100.0)] = 0.0
    """Weight of the KL term towards the weights of step 0; 0 disables it and saves the memory of a second model."""
    entropy_weight: Annotated[float, Between(0.0, 10.0)] = 0.0
    """Weight of the entropy bonus."""


@settings_class
class AdvantageConfig:
    """The section [advantage]."""

    scale_max: Annotated[float, Between(1.0, 100.0)] = 1.0
    """Largest factor that scales a group's advantages towards a standard deviation of 1; 1 disables scaling."""
    length_weight: Annotated[float, Between(0.0, 1.0)] = 0.0003
    """Penalty per token of distance from the target length, in runs with target lengths."""


@settings_class
class BatchConfig:
    """The section [batch]: how much data makes a step."""

    groups: Annotated[int, Between(1, 2**20)] = 32
    """Groups with a signal that make a step. A step uses fewer when the run has no more work to lease."""
    tokens: Annotated[int, Between(0, 2**40)] = 0
    """Trained tokens that make a step even with fewer groups; 0 disables this."""
    minibatches: Annotated[int, Between(1, 64)] = 1
    """Optimizer updates per step. More than one costs a second forward pass over the whole batch."""
    pack_tokens: Annotated[int, Between(1, 2**24)] = 4096
    """Input tokens of one forward pass. A longer sample gets its own pass."""


class MomentStorage(StrEnum):
    """Where and how the optimizer's moments are kept between updates, which are always computed in float32."""

    FLOAT32 = "float32"
    """Beside the weights: 8 bytes a parameter."""
    BFLOAT16 = "bfloat16"
    """4 bytes a parameter."""
    HOST = "host"
    """In float32 in the memory of the host; they travel to the GPU and back in each update."""


@settings_class
class OptimizerConfig:
    """The section [optimizer]: AdamW, its schedule, and the gradient guard."""

    learning_rate: Annotated[float, Between(0.0, 1.0)] = 1e-6
    """Learning rate at the end of the warm-up."""
    warmup_steps: Annotated[int, Between(0, 10**9)] = 25
    """Steps over which the learning rate rises from 0."""
    decay_steps: Annotated[int, Between(0, 10**9)] = 0
    """Steps after the warm-up over which it decays; 0: it stays constant."""
    decay_to: Annotated[float, Between(0.0, 1.0)] = 0.1
    """Share of the learning rate that is left after the decay."""
    beta1: Annotated[float, Between(0.0, 0.9999)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.99
    """Decay of the second moment."""
    weight_decay: Annotated[float, Between(0.0, 1.0)] = 0.01
    """Weight decay of matrices; norms and biases do not decay."""
    clip_norm: Annotated[float, Between(1e-6, 1e6)] = 1.0
    """Largest gradient norm; a larger gradient is scaled down."""
    moments: MomentStorage = MomentStorage.FLOAT32
    """How the moments are kept: float32, bfloat16 (the first ones: three quarters of the memory), or on the host."""
    outlier: Annotated[float, Between(1.0, 1e9)] = 20.0
    """A gradient whose norm is this many times the median of the last ones is not applied."""


@settings_class
class RanksConfig:
    """The section [ranks]: how the processes that `torchrun` started share the model."""

    context: Annotated[int, Between(1, 64)] = 1
    """Ranks that compute a pack together, each a part of its tokens (context parallelism): for long samples."""

    replicas: Annotated[int, Between(1, 4096)] = 1
    """Copies of the model, each sharded over consecutive ranks. One per machine keeps all traffic but the gradients
    inside the machines."""
    collective_timeout_s: Annotated[int, Between(1, 86_400)] = 600
    """Seconds after which a rank that waits for the others in the middle of a step gives up."""


@settings_class
class SaveConfig:
    """The section [save]: checkpoints to resume from, written in the background while training goes on."""

    every_steps: Annotated[int, Between(1, 10**6)] = 10
    """Save after this many steps. A start computes the steps since the last checkpoint again."""
    every_minutes: Annotated[int, Between(1, 10**6)] = 30
    """Save after so many minutes, if that is earlier."""
    keep: Annotated[int, Between(2, 1000)] = 2
    """Checkpoints kept. At least two, because the newest may be damaged."""
    unpublished_max: Annotated[int, Between(1, 16)] = 2
    """Steps that training may be ahead of the log; each takes 2 bytes a parameter on disk until it is published."""


@settings_class
class EvaluationConfig:
    """The section [evaluation]: evaluation of checkpoints on held-out problems, beside the training."""

    task_set: str = ""
    """Task set of the held-out problems, such as sort-digits?seed=1; empty disables it. See docs/protocol/tasks.md."""
    every: Annotated[int, Between(1, 10**9)] = 10
    """Steps between evaluations. Step 0 and the last of `steps` are evaluated too."""
    first: Annotated[int, Between(0, 2**40)] = 0
    """Index of the first problem."""
    tasks: Annotated[int, Between(1, 2**20)] = 256
    """Number of tasks."""
    temperature: Annotated[float, Between(0.0, 10.0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest answer, in tokens."""
    batch: Annotated[int, Between(1, 65_536)] = 256
    """Answers per generation batch."""
    device: str = "cpu"
    """Device of the model copy that is evaluated."""

    def __post_init__(self) -> None:
        if self.task_set:
            from prime_protocol.tasks.family import TaskSetSpec

            check_parsed(self, {"task_set": TaskSetSpec.parse})


@settings_class
class TrainConfig(PublishConfig):
    """The settings of `start`."""

    folder: Path
    """Folder for the trainer's checkpoints, metrics and lock."""
    model: Path
    """Model that training starts from: a folder of config.json, tokenizer.json and safetensors, or owner/model on the
    Hugging Face hub."""
    steps: Annotated[int, Between(0, 10**9)] = 0
    """Last step; 0: train until stopped."""
    lag_max: Annotated[int, Between(0, 64)] | None = None
    """Largest age of a rollout's weights, in steps. Default and upper limit: the run's own limit."""
    device: str = "cpu"
    """Device of the model: cpu, or cuda for one GPU per rank."""
    precision: Precision = Precision.FLOAT32
    """Precision of the computation; weights are always float32, and products are summed in float32."""
    head_precision: Precision | None = None
    """Precision of the head's products. Default: that of the model. float32 with a float32 head on the nodes
    (`head_dtype` in the model's config.json) keeps log-probs closer to theirs."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """CPU threads of torch in each rank."""
    gradient_checkpointing: bool | None = None
    """Recompute activations instead of storing them: a third slower, far less memory. Default: on a GPU."""
    offload_activations: bool = False
    """Keep stored activations in the memory of the host until the backward pass needs them."""
    save: SaveConfig = field(default_factory=SaveConfig)
    poll_ms: Annotated[int, Between(10, 600_000)] = 1_000
    """Pause between two polls for accepted submissions."""
    jobs: Annotated[int, Between(1, 256)] = 2
    """Concurrent sandboxed gradings."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port on 127.0.0.1 for status, control and metrics; 0 takes a free one."""
    loss: LossConfig = field(default_factory=LossConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    ranks: RanksConfig = field(default_factory=RanksConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@settings_class
class SftConfig:
    """The settings of `sft`."""

    model: Path
    """Model to start from: a folder, or owner/model on the Hugging Face hub."""
    out: Path
    """Folder for the resulting model, in bf16; it must not exist."""
    task_set: str = ""
    """Task set whose own answers are the examples; see docs/protocol/tasks.md."""
    data: Path | None = None
    """File of examples instead, one JSON object per line: {"prompt": ..., "completion": ...}."""
    steps: Annotated[int, Between(1, 10**9)] = 100
    """Optimizer updates."""
    examples: Annotated[int, Between(1, 2**20)] = 128
    """Examples per update."""
    learning_rate: Annotated[float, Between(0.0, 1.0)] = 3e-3
    """Constant learning rate of AdamW."""
    pack_tokens: Annotated[int, Between(1, 2**24)] = 4096
    """Input tokens of one forward pass."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Seed of the order of the examples."""
    device: str = "cpu"
    """Device of the model: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """CPU threads of torch."""


@settings_class
class EvalConfig:
    """The settings of `eval` and `filter`."""

    model: Path
    """The model: a folder, or owner/model on the Hugging Face hub."""
    task_set: str
    """Task set to evaluate on; see docs/protocol/tasks.md."""
    dataset: Path | None = None
    """Dataset file, for a task set that names one."""
    first: Annotated[int, Between(0, 2**40)] = 0
    """Index of the first task."""
    tasks: Annotated[int, Between(1, 2**20)] = 256
    """Number of tasks."""
    samples: Annotated[int, Between(1, 1024)] = 1
    """Answers per task."""
    temperature: Annotated[float, Between(0.0, 10.0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest answer, in tokens."""
    batch: Annotated[int, Between(1, 65_536)] = 256
    """Answers per generation batch."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Seed of the sampling."""
    device: str = "cpu"
    """Device of the model: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """CPU threads of torch."""
    as_published: bool = False
    """Round the weights to bf16 first, as publishing a checkpoint does."""
