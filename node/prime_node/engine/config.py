"""The settings section [engine]: which engine runs the model, on which device, and within which limits."""

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from prime_node.engine.placement import GPU_MEMORY_SHARE, GPUS_MAX
from prime_runtime.settings.schema import Between, ConfigError, settings_class

GPU_NAME = re.compile(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
DEVICE = re.compile(r"[a-z]+(:[0-9]+)?")

VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""What CUDA and ROCm read. Each ignores the other's, and vLLM wants both equal where both are set."""
GPU_VARIABLES = (
    *VISIBLE_GPUS,
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
    "CUDA_DEVICE_ORDER",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_HOME",
    "ROCM_PATH",
)
"""Where the drivers' libraries are, and which GPUs the node may use: containers and schedulers set them."""


class EngineKind(StrEnum):
    """Engines that can run the model."""

    AUTO = "auto"
    TORCH = "torch"
    VLLM = "vllm"


class KvDtype(StrEnum):
    """Types in which vLLM can keep keys and values."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


@settings_class
class EngineConfig:
    """How the engine's process is started and watched."""

    engine: EngineKind = EngineKind.AUTO
    """What runs the model; auto takes vllm where it is installed beside a GPU, else torch."""
    python: Path | None = None
    """Python interpreter of the engine's process, for an engine that lives in an environment of its own. Nothing: the
    one that runs the node."""
    device: str = "auto"
    """Where the model runs: cpu, cuda, cuda:1. auto takes the first GPU there is, else the CPU."""
    gpus: tuple[str, ...] = ()
    """GPUs of the node, by number as the driver lists them, or by UUID. Nothing: all that this process may see."""
    tensor_parallel: Annotated[int, Between(0, GPUS_MAX)] = 0
    """GPUs that one copy of the model is split over, with vLLM; 0 chooses what fits, and on a CPU is 1."""
    replicas: Annotated[int, Between(0, GPUS_MAX)] = 0
    """Copies of the model at once, each in a process of its own; 0 takes as many as the GPUs hold, and on a CPU 1."""
    memory_share: Annotated[float, Between(0.1, 0.98)] = GPU_MEMORY_SHARE
    """Share of a GPU's memory that vLLM takes for weights, activations and its cache."""
    kv_dtype: KvDtype = KvDtype.AUTO
    """Type of cached keys and values in vLLM; auto is that of the model. Audits find fp8, so use it for tests only."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """CPU threads of the engine. More than one rarely helps where other programs share the machine."""
    batch_max: Annotated[int, Between(0, 65_536)] = 0
    """Most completions generated at once; 0 lets the engine choose by memory."""
    memory_mb_max: Annotated[int, Between(0, 10**8)] = 0
    """Most address space of the engine's process, in MiB; 0 is no cap. Not for GPUs, whose drivers reserve far more."""
    start_ms: Annotated[int, Between(1_000, 3_600_000)] = 300_000
    """Time for the engine to start, and to load a checkpoint."""
    stall_ms: Annotated[int, Between(100, 3_600_000)] = 120_000
    """An engine at work that shows no progress for so long is ended and started again."""
    audits_at_once: Annotated[int, Between(1, 64)] = 2
    """Audits in hand at once: while one is read by the engine, the files of the next are fetched."""
    variables: tuple[str, ...] = ()
    """Environment of the engine's process, as NAME=value. Of the node's it inherits only what names GPUs and
    drivers."""

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"device is {self.device!r}; write auto, cpu, cuda or cuda:1")
        for gpu in self.gpus:
            if not GPU_NAME.fullmatch(gpu):
                raise ConfigError(f"gpus has {gpu!r}; write a number, or a UUID as the driver lists it")
        if self.gpus and self.device not in ("auto", "cuda"):
            raise ConfigError(f"gpus names GPUs and device is {self.device}; leave one of the two away")
        if len(set(self.gpus)) < len(self.gpus):
            raise ConfigError("gpus names a GPU twice")
        for variable in self.variables:
            if not VARIABLE.fullmatch(variable):
                raise ConfigError(f"variables has {variable!r}; write NAME=value")


def inherit_gpu_variables(config: EngineConfig, environment: Mapping[str, str]) -> EngineConfig:
    """The settings with those GPU_VARIABLES that the node's environment has and the settings do not."""
    given = {variable.partition("=")[0] for variable in config.variables}
    found = [name for name in GPU_VARIABLES if environment.get(name) and name not in given]
    return replace(config, variables=(*(f"{name}={environment[name]}" for name in found), *config.variables))
