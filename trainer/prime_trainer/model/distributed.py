"""The processes that train together: one, or as many as `torchrun` started, on one machine or several.

Every rank holds a shard of each weight (FSDP2) and computes its own packs. Rank 0 does all network I/O and broadcasts
batches. Two kinds of groups keep a slow network from stopping the GPUs: values of the CPU (batches, statistics,
verdicts) travel on a gloo group with a timeout of days, tensors of the model on groups of the device with a timeout of
minutes. A rank enters a collective of the device only after rank 0 has sent a batch, so none of them ever waits there
for the network.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException

from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_trainer.config import RanksConfig
from prime_trainer.model.loading import find_layers

T = TypeVar("T")
Tensor = Any

BATCH_WAIT_MAX = timedelta(days=30)
"""How long ranks wait for rank 0 to broadcast a batch: a run may have no workers for a while."""


class RankGroup:
    """The group of ranks, seen from this one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._cpu_group: Any = None
        self.background: Any = None
        """A group of the CPU for one thread per rank that saves while the others train."""
        self._mesh: Any = None
        self.context_group: Any = None
        """The ranks that compute a pack together with this one, where there are several."""
        self.context_size = 1

    @property
    def context_rank(self) -> int:
        return self.rank % self.context_size

    @classmethod
    def join(cls, device: str, config: RanksConfig | None = None, *, backend: str | None = None) -> "RankGroup":
        """Join the group if `torchrun` started this process; otherwise a group of one.

        `backend` maps device types to backends as in init_process_group. Nothing here relies on the default group, so a
        CPU may run with a mapping that has no entry for it, as NCCL's has none.
        """
        config = config or RanksConfig()
        is_cuda = device.startswith("cuda")
        if is_cuda and not torch.cuda.is_available():
            raise LocalError("device is cuda, but torch finds no GPU; use cpu, or install torch for your GPU")
        if not dist.is_torchelastic_launched():
            return cls()
        if is_cuda:
            torch.cuda.set_device(dist.get_node_local_rank())
        timeout = timedelta(seconds=config.collective_timeout_s)
        dist.init_process_group(backend or ("nccl" if is_cuda else "gloo"), timeout=timeout)
        ranks = cls(dist.get_rank(), dist.get_world_size())
        ranks._cpu_group = dist.new_group(backend="gloo", timeout=BATCH_WAIT_MAX)
        ranks.background = dist.new_group(backend="gloo", timeout=BATCH_WAIT_MAX)
        ranks._join_device_groups("nccl" if is_cuda else "gloo", "cuda" if is_cuda else "cpu", config)
        return ranks

    @classmethod
    def fake(cls, config: RanksConfig) -> "RankGroup":
        """The first of the ranks of a fake default group, for a plan."""
        ranks = cls(0, dist.get_world_size())
        ranks._join_device_groups("fake", "cpu", config)
        return ranks

    def _join_device_groups(self, backend: str, device_type: str, config: RanksConfig) -> None:
        timeout, size = timedelta(seconds=config.collective_timeout_s), config.context
        if self.size % config.replicas:
            raise LocalError(f"{self.size} ranks cannot hold {config.replicas} replicas of equal size")
        if self.size % size:
            raise LocalError(f"{self.size} ranks cannot be divided into groups of {size} for context parallelism")
        if size > 1:
            blocks = torch.arange(self.size).view(-1, size).tolist()
            self.context_group, self.context_size = join_group(blocks, backend, timeout), size
        self._mesh = make_mesh(self.size, config.replicas, backend, device_type, timeout)

    def leave(self) -> None:
        if self._cpu_group is not None:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._cpu_group)
        return box[0]

    def do_all(self, action: str, work: Callable[[], None]) -> None:
        """Do it on every rank, in the background; LocalError on all of them if one fails."""
        problem = ""
        try:
            work()
        except LocalError as error:
            problem = str(error)
        except (OSError, RuntimeError, CheckpointException) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"cannot {action}: {reason}; check free space and permissions there"
        problems = [problem]
        if self.size > 1:
            problems = [""] * self.size
            dist.all_gather_object(problems, problem, group=self.background)
        for each in filter(None, problems):
            raise LocalError(each)

    def do_first(self, action: str, work: Callable[[], None]) -> None:
        """Do it on the first rank, while the others wait for it in the background."""
        self.do_all(action, work if self.is_first else lambda: None)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum of CPU values over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, group=self._cpu_group)
        return values

    def shard(self, model: Any, precision: Precision, head_precision: Precision) -> None:
        """Shard every weight over the ranks of a replica; a layer is gathered while it is computed.

        Weights travel in the precision that they are used in, gradients in float32.
        """
        if self.size == 1:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half, full = MixedPrecisionPolicy(torch.bfloat16, torch.float32), MixedPrecisionPolicy()
        policy = half if precision is Precision.BFLOAT16 else full
        for module in find_layers(model):
            fully_shard(module, mesh=self._mesh, mp_policy=policy)
        # The head may be the embedding too, which then is one of the root's weights.
        policy = half if head_precision is Precision.BFLOAT16 else full
        for module in (*find_large_ends(model), model):
            fully_shard(module, mesh=self._mesh, mp_policy=policy)


def find_large_ends(model: Any) -> list[Any]:
    """Embedding and head, where they are different weights: gathered one at a time, not both for the whole step."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_split = head is not None and embedding is not None and head.weight is not embedding.weight
    return [embedding, head] if is_split else []


def make_mesh(size: int, replicas: int, backend: str, device_type: str, timeout: timedelta) -> Any:
    """Ranks in a row, or replicas x ranks of a replica (HSDP).

    Consecutive ranks make a replica: with one replica per machine, only gradients travel between machines.
    """
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(size).view(replicas, -1)
    shards = join_group(ranks.tolist(), backend, timeout)
    if replicas == 1:
        return DeviceMesh.from_group(shards, device_type)
    copies = join_group(ranks.T.tolist(), backend, timeout)
    return DeviceMesh.from_group([copies, shards], device_type, ranks, mesh_dim_names=("replica", "shard"))


def join_group(blocks: Sequence[Sequence[int]], backend: str, timeout: timedelta) -> Any:
    """Make a group of each block; return this rank's. All ranks call it with the same blocks."""
    groups = [dist.new_group(list(block), backend=backend, timeout=timeout) for block in blocks]
    return next(group for group, block in zip(groups, blocks, strict=True) if dist.get_rank() in block)


def gather_full(tensor: Tensor) -> Tensor:
    """The full tensor of one that is sharded over ranks. A collective operation: all ranks must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
