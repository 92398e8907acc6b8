"""Facts about a machine: plain values between the probes that collect them and checklist.py, which evaluates them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The processor, as far as this process may use it."""

    model: str
    cores: int
    features: tuple[str, ...]
    """The supported ones of avx2, avx512f, avx512_bf16 and amx_bf16."""

    @property
    def has_bf16(self) -> bool:
        return any(name.endswith("bf16") for name in self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    total_bytes: int
    free_bytes: int
    """Memory available without swapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    folder: str
    free_bytes: int
    write_bytes_per_s: int | None
    """None if nothing could be written."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU as its driver lists it."""

    number: int
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    problem: str = ""
    """Why the driver cannot describe it: it may have failed."""


@dataclass(frozen=True, slots=True)
class GpuListing:
    """The GPUs that the driver lists."""

    gpus: tuple[GpuFacts, ...]
    driver: str
    problem: str
    """Why there is no list; empty if there is one, even an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device, and whether a test multiplication succeeded on it."""

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
    """What the engine's interpreter has installed, and the test results of its devices."""

    python: str
    torch: str
    """Version; empty if not installed."""
    vllm: str
    devices: tuple[DeviceFacts, ...]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFacts:
    """What the coordinator answered."""

    url: str
    problem: str = ""
    network: str = ""
    run: str = ""
    """The run this node would work for; empty if that is not clear."""
    run_problem: str = ""
    model: str = ""
    is_unpaid: bool = False
    version_min: int | None = None
    calibration: str = ""
    """On what the run's bounds were measured; empty where they were not."""
    calibrated_ms_ago: int | None = None
    engine_classes: tuple[str, ...] = ()
    """Those that the run has bounds for; empty where it does not tell them apart."""
    is_closed: bool = False
    """Whether the run takes work of these classes only."""
    round_trip_ms: int = 0
    skew_ms: int | None = None
    """By how much this machine's clock is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Results of test downloads from the servers of the run's weights."""

    servers: int
    reached: int
    model_bytes: int | None
    """Size of the newest keyframe; None if none was published."""
    received_bytes: int = 0
    took_ms: int = 0
    problem: str = ""

    @property
    def bytes_per_s(self) -> int | None:
        return self.received_bytes * 1000 // max(1, self.took_ms) if self.received_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """The addresses and port at which others could reach this node."""

    announce: tuple[str, ...]
    listen: str
    problem: str
    """Why the port cannot be bound; empty if it can, or if our own node holds it."""
    is_ours: bool
    is_reached: bool | None = None
    """Whether the coordinator could connect; None if it was not asked."""
    outside_problem: str = ""
    """Why it could not, by its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """All facts; None where a probe did not apply."""

    cpu: CpuFacts
    memory: MemoryFacts
    disk: DiskFacts
    gpu_listing: GpuListing
    engine: EngineInstallFacts | None
    coordinator: CoordinatorFacts | None
    sources: SourceFacts | None
    port: PortFacts
