"""What the doctor found out about a machine: plain values, between the probes that look and judge.py that judges."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The processor, as far as this process may use it."""

    model: str
    cores: int
    features: tuple[str, ...]
    """Of avx2, avx512f, avx512_bf16 and amx_bf16, those it has."""

    @property
    def has_bf16(self) -> bool:
        return any(name.endswith("bf16") for name in self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    total_bytes: int
    free_bytes: int
    """What programs could take without others being swapped out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    folder: str
    free_bytes: int
    write_bytes_per_s: int | None
    """None where nothing could be written."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU, as its driver lists it."""

    number: int
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    problem: str = ""
    """Why nothing more is known of it: it may be lost."""


@dataclass(frozen=True, slots=True)
class GpuListing:
    """What the driver says."""

    gpus: tuple[GpuFacts, ...]
    driver: str
    problem: str
    """Why there is no list; empty where there is one, even of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device on which a real multiplication was done, or was not."""

    device: str
    """As the engine names it: cpu, cuda:0."""
    name: str
    is_good: bool
    took_ms: int
    problem: str
    memory_bytes: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineInstallFacts:
    """What the interpreter of the engine has installed, and how its devices fared."""

    python: str
    torch: str
    """Version; empty where there is none."""
    vllm: str
    devices: tuple[DeviceFacts, ...]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFacts:
    """The coordinator, asked."""

    url: str
    problem: str = ""
    network: str = ""
    run: str = ""
    """The one this node would work for; empty where that is not clear."""
    run_problem: str = ""
    model: str = ""
    version_min: int | None = None
    round_trip_ms: int = 0
    skew_ms: int | None = None
    """By how much this machine's clock is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Those who serve the run's weights, tried."""

    servers: int
    reached: int
    model_bytes: int | None
    """Of the newest keyframe; None where nothing was published."""
    received_bytes: int = 0
    took_ms: int = 0
    problem: str = ""

    @property
    def bytes_per_s(self) -> int | None:
        return self.received_bytes * 1000 // max(1, self.took_ms) if self.received_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """Where others could reach this node."""

    announce: tuple[str, ...]
    listen: str
    problem: str
    """Why the port cannot be bound; empty where it can, or where our own node has it."""
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """Everything; None where it was not asked for."""

    cpu: CpuFacts
    memory: MemoryFacts
    disk: DiskFacts
    gpu_listing: GpuListing
    engine: EngineInstallFacts | None
    coordinator: CoordinatorFacts | None
    sources: SourceFacts | None
    port: PortFacts
