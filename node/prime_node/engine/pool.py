"""The node's engines: copies of the model on its GPUs (replicas), each in a child process, lent to callers.

A model that is split over GPUs is one replica. How many there are follows from the checkpoint: see placement.py. A
caller gets the replica that is least busy; one whose process has died gets no callers until its pause is over, while
the others go on, and a job that it had is tried again on another. With one replica this is lifecycle.py's manager.
"""

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prime_node.engine.config import VISIBLE_GPUS, EngineConfig, EngineKind
from prime_node.engine.devices import EngineDevices, has_gpu_driver, list_devices
from prime_node.engine.interface import EngineCapacity, EngineQueue
from prime_node.engine.lifecycle import BuildCommand, EngineManager, EngineSession, FindChangedTensors
from prime_node.engine.placement import ModelSize, Placement, choose_placement
from prime_node.engine.process import OnQueue, build_command, build_environment
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.shardcast.checkpoint_files import map_checkpoint

log = logging.getLogger(__name__)

DEVICES_MS = 120_000
"""Time for the engine's interpreter to list its GPUs: importing torch from a cold disk takes a minute."""

ListDevices = Callable[[], Awaitable[EngineDevices]]

IDLE = EngineQueue()


@dataclass(slots=True, eq=False)
class Replica:
    """One copy of the model."""

    manager: EngineManager
    gpus: tuple[str, ...]
    callers: int = 0
    """Those who use it, or wait for it."""
    queue: EngineQueue = IDLE


class EnginePool:
    """Owns the engine processes of the node."""

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        clock: Clock,
        *,
        changes: FindChangedTensors = lambda old, new: None,
        command: BuildCommand = build_command,
        devices: ListDevices | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._clock = clock
        self._find_changed_tensors = changes
        self._command = command
        self._list_devices = devices or self._ask_interpreter
        self._devices: EngineDevices | None = None
        self._placement: Placement | None = None
        self._replicas = self._build(Placement(tensor_parallel=1, replicas=1, kv_tokens=0, gpus=0), ())
        """One from the start, so that there is a status before the first checkpoint."""
        self.on_queue: OnQueue = lambda queue: None
        """Hears about the completions in progress, of all replicas together."""
        self._changed = asyncio.Condition()
        self._rebuilders = 0
        """Callers that wait until the replicas are idle, to place another model."""

    # --- Placement --------------------------------------------------------------------------------------------------

    async def _ask_interpreter(self) -> EngineDevices:
        config = self._config
        environment = build_environment(config, self._folder, config.gpus)
        python = str(config.python or sys.executable)
        return await list_devices(python, environment, self._folder, timeout_ms=DEVICES_MS)

    async def _choose_placement(self, checkpoint: Path, precision: Precision, sequence_tokens: int) -> Placement:
        config = self._config
        if config.device not in ("auto", "cuda") or not (config.gpus or has_gpu_driver()):
            parts, copies = config.tensor_parallel or 1, config.replicas or 1
            return Placement(tensor_parallel=parts, replicas=copies, kv_tokens=0, gpus=0)
        if self._devices is None:
            self._devices = await self._list_devices()
        if not self._devices.gpus:
            raise LocalError("engine.gpus names GPUs, but torch sees none: run prime-node doctor")
        return await asyncio.to_thread(
            place_on_gpus, checkpoint, precision, config, self._devices, sequence_tokens=sequence_tokens
        )

    def _build(self, placement: Placement, gpus: tuple[str, ...]) -> list[Replica]:
        config = replace(self._config, tensor_parallel=placement.tensor_parallel)
        shares = placement.split(gpus) if gpus else [()] * placement.replicas
        return [self._build_replica(config, number, share) for number, share in enumerate(shares)]

    def _build_replica(self, config: EngineConfig, number: int, gpus: tuple[str, ...]) -> Replica:
        manager = EngineManager(
            config,
            self._folder if number == 0 else self._folder / f"replica-{number}",
            self._clock,
            changes=self._find_changed_tensors,
            command=self._command,
            gpus=gpus,
        )
        replica = Replica(manager, gpus)
        manager.on_queue = partial(self._note_queue, replica)
        return replica

    def _note_queue(self, replica: Replica, queue: EngineQueue) -> None:
        replica.queue = queue
        each = [other.queue for other in self._replicas]
        running, waiting = sum(other.running for other in each), sum(other.waiting for other in each)
        self.on_queue(EngineQueue(running=running, waiting=waiting))

    async def _place(self, placement: Placement, sequence_tokens: int) -> None:
        """Build the replicas of this placement, once the present ones are idle. The caller holds `_changed`."""
        if self._placement is not None and placement.layout == self._placement.layout:
            return
        self._rebuilders += 1
        try:
            await self._changed.wait_for(lambda: not any(replica.callers for replica in self._replicas))
            if self._placement is None or placement.layout != self._placement.layout:
                gpus = list_visible_gpus(self._config, placement.gpus)
                await self._stop_replicas()
                self._replicas, self._placement = self._build(placement, gpus), placement
                if gpus:
                    describe_placement(placement, sequence_tokens)
        finally:
            self._rebuilders -= 1
            self._changed.notify_all()

    # --- Use --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def acquire(
        self, root: Digest, checkpoint: Path, precision: Precision, run: str = "", *, sequence_tokens: int = 0
    ) -> AsyncIterator[EngineSession]:
        """Use of a replica with this checkpoint, as EngineManager.acquire. `sequence_tokens` is the run's longest."""
        replica = await self._join_replica(root, checkpoint, precision, run, sequence_tokens)
        try:
            async with replica.manager.acquire(root, checkpoint, precision, run) as session:
                yield session
        finally:
            replica.callers -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _join_replica(
        self, root: Digest, checkpoint: Path, precision: Precision, run: str, sequence_tokens: int
    ) -> Replica:
        placement = await self._choose_placement(checkpoint, precision, sequence_tokens)
        async with self._changed:
            # Callers of the present placement let one pass that waits for another, or it might wait for ever.
            await self._changed.wait_for(lambda: not self._rebuilders)
            await self._place(placement, sequence_tokens)
            found = min(self._replicas, key=lambda replica: rank_replica(replica, root, run))
            found.callers += 1
            return found

    # --- All replicas -----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> EngineCapacity:
        """Of all replicas together, each like the best of those that have a checkpoint."""
        each = [replica.manager.capacity for replica in self._replicas]
        best = max(each, key=lambda capacity: (capacity.sequences_max, capacity.kv_tokens))
        count = len(each)
        return EngineCapacity(sequences_max=count * best.sequences_max, kv_tokens=count * best.kv_tokens)

    def is_broken(self, run: str = "") -> bool:
        """Whether no replica takes jobs of this run."""
        return all(replica.manager.is_broken(run) for replica in self._replicas)

    def get_retry_wait_ms(self, run: str = "") -> int:
        return min(replica.manager.get_retry_wait_ms(run) for replica in self._replicas)

    def get_error(self, run: str) -> str:
        return next((error for replica in self._replicas if (error := replica.manager.get_error(run))), "")

    async def invalidate_weights(self) -> None:
        await asyncio.gather(*(replica.manager.invalidate_weights() for replica in self._replicas))

    async def stop_process(self) -> None:
        """Stop all processes, and look for GPUs again: this machine's devices have changed."""
        self._devices = None
        await self._stop_replicas()

    async def _stop_replicas(self) -> None:
        await asyncio.gather(*(replica.manager.stop_process() for replica in self._replicas))

    async def close(self) -> None:
        await asyncio.gather(*(replica.manager.close() for replica in self._replicas))

    def get_status(self) -> dict[str, Any]:
        """That of the first replica, with the devices and the restarts of all, and a list of them where it matters."""
        each = [replica.manager.get_status() for replica in self._replicas]
        gpus = [gpu for replica in self._replicas for gpu in replica.gpus]
        best = next((status for status in each if status["state"] == "ready"), each[0])
        return {
            **best,
            "device": f"cuda:{','.join(gpus)}" if gpus else best["device"],
            "restarts": sum(status["restarts"] for status in each),
            "last_error": next((status["last_error"] for status in each if status["last_error"]), ""),
            "retry_ms": min(status["retry_ms"] for status in each),
            "tensor_parallel": self._placement.tensor_parallel if self._placement else 1,
            "replicas": [
                {"state": status["state"], "gpus": list(replica.gpus), "pid": status["pid"]}
                for replica, status in zip(self._replicas, each, strict=True)
            ],
        }


def rank_replica(replica: Replica, root: Digest, run: str) -> tuple[bool, int, bool]:
    """The lowest is taken: one that may run now, then the least busy, then one that has the weights."""
    manager = replica.manager
    return manager.get_retry_wait_ms(run) > 0, replica.callers, manager.loaded != root


def place_on_gpus(
    checkpoint: Path, precision: Precision, config: EngineConfig, devices: EngineDevices, *, sequence_tokens: int
) -> Placement:
    """LocalError, in one sentence, where the model does not fit. It reads the headers of the files: use a thread."""
    gpus = len(devices.gpus)
    if config.engine is EngineKind.TORCH or (config.engine is EngineKind.AUTO and not devices.has_vllm):
        # The torch engine finds out at load whether a model fits, and cannot split it.
        if config.tensor_parallel > 1:
            raise LocalError("the torch engine does not split a model over GPUs: use --engine vllm")
        return Placement(tensor_parallel=1, replicas=limit_replicas(config, gpus), kv_tokens=0, gpus=gpus)
    found = choose_placement(
        read_model_size(checkpoint, precision, config),
        gpus=gpus,
        memory_bytes=int(min(gpu.memory_bytes for gpu in devices.gpus) * config.memory_share),
        sequence_tokens=sequence_tokens,
        tensor_parallel=config.tensor_parallel,
    )
    return replace(found, replicas=limit_replicas(config, found.replicas))


def limit_replicas(config: EngineConfig, possible: int) -> int:
    if config.replicas > possible:
        raise LocalError(f"engine.replicas is {config.replicas}, but only {possible} fit on the GPUs")
    return config.replicas or possible


def read_model_size(checkpoint: Path, precision: Precision, config: EngineConfig) -> ModelSize:
    files = ModelFiles.open(checkpoint)
    value_bytes = 4 if precision is Precision.FLOAT32 else 2
    parameters = sum(math.prod(span.shape) for span, _ in map_checkpoint(checkpoint).tensors())
    return ModelSize.parse(
        files.config,
        weight_bytes=parameters * value_bytes,
        kv_value_bytes=1 if config.kv_dtype == "fp8" else value_bytes,
        context_max=files.context_max,
    )


def list_visible_gpus(config: EngineConfig, count: int) -> tuple[str, ...]:
    """Names that VISIBLE_GPUS take: those of the settings, else of the node's environment, else numbers."""
    variables = dict(variable.split("=", 1) for variable in config.variables)
    listed = next((variables[name] for name in VISIBLE_GPUS if name in variables), "")
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    return (config.gpus or names or tuple(map(str, range(count))))[:count]


def describe_placement(placement: Placement, sequence_tokens: int) -> None:
    log.info(
        "%d replicas over %d GPUs each; %d GPUs unused; room for %d sequences of full length at once",
        placement.replicas,
        placement.tensor_parallel,
        placement.unused,
        placement.get_sequences(sequence_tokens),
    )
