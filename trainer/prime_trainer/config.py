"""The settings of `prime-trainer publish` and `prime-trainer origin`: frozen dataclasses, made once and passed in.

The settings of `prime-trainer start`: frozen dataclasses, made once and passed in. No torch: `--help` reads it.

The settings of `prime-trainer sft`, `eval` and `filter`. No torch: `--help` reads it.
"""

from dataclasses import field
from pathlib import Path
from typing import Annotated

from prime_protocol.constants import SHARD_BYTES, SHARD_BYTES_MAX, SHARD_BYTES_MIN
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.client import ServerAddress
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerLimits
from prime_runtime.keys import load_key_file, resolve_password
from prime_runtime.logs import LogConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import check_parsed
from prime_runtime.settings.schema import Between, ConfigError, settings_class
from prime_runtime.shardcast.store import VERSIONS_KEPT
from prime_runtime.shardcast.upload_slots import UploadConfig, check_urls


@settings_class
class TrainerConfig:
    """Whose weights, in which run, under whose books."""

    store: Path
    """Folder of the published weights; `publish` writes it, `origin` serves it."""
    coordinator: str
    """URL of the coordinator."""
    coordinator_id: str
    """Address of the coordinator's key, as `prime-coordinator init` printed it."""
    run: str
    """Name of the run."""
    network: str = "devnet"
    """Name of the network; it stands in every signed message."""
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
        check_parsed(self, {"network": NetworkId, "run": RunId, "coordinator_id": NodeId.parse})

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)

    @property
    def run_id(self) -> RunId:
        return RunId(self.run)

    @property
    def server(self) -> ServerAddress:
        return ServerAddress(self.coordinator, NodeId.parse(self.coordinator_id))

    def load_key(self) -> WalletKey:
        return load_key_file(self.key, resolve_password(self.password, self.password_file))


@settings_class
class PublishConfig(TrainerConfig):
    """Everything `publish` can be told beside what is published."""

    keyframe_every: Annotated[int, Between(1, 10_000)] = 10
    """Publish a keyframe too, not only a delta, with every so many steps."""
    keep: Annotated[int, Between(1, 1000)] = VERSIONS_KEPT
    """Versions kept in the store; older ones are removed."""
    shard_bytes: Annotated[int, Between(SHARD_BYTES_MIN, SHARD_BYTES_MAX)] = SHARD_BYTES
    """Size of a shard."""


@settings_class
class OriginUploadConfig(UploadConfig):
    """The section [upload]: what is given to those who fetch. A server's line carries more than a home's."""

    slots: Annotated[int, Between(0, 1000)] = 16
    """Uploads at once; 0 chooses by bytes_per_s."""
    address_slots: Annotated[int, Between(1, 1000)] = 4
    """Uploads at once to one address."""


@settings_class
class OriginServerConfig(TrainerConfig):
    """Everything `origin` can be told."""

    announce: tuple[str, ...] = ()
    """Where nodes reach this server, best first: http://host:port. Port 0 stands for the one that is bound. Nothing:
    the address that is listened on."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    upload: OriginUploadConfig = field(default_factory=OriginUploadConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_urls("announce", self.announce)
        if not self.announce and self.listen.host in ("0.0.0.0", "::"):
            raise ConfigError("announce is empty: say under which URL nodes reach this machine, http://host:port")

    @property
    def urls(self) -> tuple[str, ...]:
        """To be announced; the port may still be open."""
        host = f"[{self.listen.host}]" if ":" in self.listen.host else self.listen.host
        scheme = "https" if self.listen.tls_key else "http"
        return self.announce or (f"{scheme}://{host}:0",)


TRAINER_LOCK_NAME = "lock"
"""In the trainer's folder: who runs there, and how other commands reach it."""


@settings_class
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


@settings_class
class AdvantageConfig:
    """The section [advantage]."""

    scale_max: Annotated[float, Between(1.0, 100.0)] = 1.0
    """Most by which a group's advantages are multiplied to bring their spread to 1; 1 leaves them as they are."""
    length_weight: Annotated[float, Between(0.0, 1.0)] = 0.0003
    """What each token off the target length costs, where a run has target lengths."""


@settings_class
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


@settings_class
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


@settings_class
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


@settings_class
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


@settings_class
class SftConfig:
    """Everything `sft` can be told."""

    model: Path
    """Model to begin with: a folder, or owner/model on the Hugging Face hub."""
    out: Path
    """Folder for the model that comes out, in bf16; it must not exist."""
    task_set: str = ""
    """Task set whose own answers are learnt; see docs/protocol/tasks.md."""
    data: Path | None = None
    """File of examples instead, a line of JSON each: {"prompt": ..., "completion": ...}."""
    steps: Annotated[int, Between(1, 10**9)] = 100
    """Updates of the weights."""
    examples: Annotated[int, Between(1, 2**20)] = 128
    """Examples of one update."""
    learning_rate: Annotated[float, Between(0.0, 1.0)] = 3e-3
    """Of AdamW; it does not change."""
    pack_tokens: Annotated[int, Between(1, 2**24)] = 4096
    """Input tokens of one forward pass."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Decides the order of the examples."""
    device: str = "cpu"
    """Where the model is: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """Threads of torch, on a CPU."""


@settings_class
class EvalConfig:
    """Everything `eval` can be told."""

    model: Path
    """The model: a folder, or owner/model on the Hugging Face hub."""
    task_set: str
    """Task set to try it on; see docs/protocol/tasks.md."""
    dataset: Path | None = None
    """Problem file, for a task set that names one."""
    first: Annotated[int, Between(0, 2**40)] = 0
    """First task."""
    tasks: Annotated[int, Between(1, 2**20)] = 256
    """How many."""
    samples: Annotated[int, Between(1, 1024)] = 1
    """Answers to each."""
    temperature: Annotated[float, Between(0.0, 10.0)] = 1.0
    """Of the sampling; 0 is greedy."""
    tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest answer."""
    batch: Annotated[int, Between(1, 65_536)] = 256
    """Answers generated at once."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    """Of the sampling."""
    device: str = "cpu"
    """Where the model is: cpu or cuda."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """Threads of torch, on a CPU."""
    as_published: bool = False
    """Round the weights to bf16 first, as they are when a checkpoint of a trainer is published."""
