"""The settings section [engine]: which engine runs the model, on which device, and within which limits."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from prime_runtime.settings.schema import Between, ConfigError, settings_class

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
DEVICE = re.compile(r"[a-z]+(:[0-9]+)?")


class EngineKind(StrEnum):
    """Engines that can run the model."""

    AUTO = "auto"
    TORCH = "torch"
    VLLM = "vllm"


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
    """Environment of the engine's process, as NAME=value. It inherits nothing of the node's."""

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"device is {self.device!r}; write auto, cpu, cuda or cuda:1")
        for variable in self.variables:
            if not VARIABLE.fullmatch(variable):
                raise ConfigError(f"variables has {variable!r}; write NAME=value")
