"""The processes that train together: one, or as many as `torchrun` started.

Every rank holds a shard of each weight (FSDP2) and computes its own packs. Rank 0 does all I/O and broadcasts batches.
"""

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision

T = TypeVar("T")
Tensor = Any

BATCH_WAIT_MAX = timedelta(days=30)
"""How long ranks wait for rank 0 to broadcast a batch: a run may have no workers for a while."""


class RankGroup:
    """The group of ranks, seen from this one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._gloo_group: Any = None

    @classmethod
    def join(cls, device: str) -> "RankGroup":
        """Join the group if `torchrun` started this process; otherwise a group of one."""
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise LocalError("device is cuda, but torch finds no GPU; use cpu, or install torch for your GPU")
        if not dist.is_torchelastic_launched():
            return cls()
        if device.startswith("cuda"):
            torch.cuda.set_device(dist.get_node_local_rank())
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        ranks = cls(dist.get_rank(), dist.get_world_size())
        ranks._gloo_group = dist.new_group(backend="gloo", timeout=BATCH_WAIT_MAX)
        return ranks

    def leave(self) -> None:
        if self._gloo_group is not None:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._gloo_group)
        return box[0]

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def shard(self, model: Any, precision: Precision) -> None:
        """Shard every weight over the ranks; a layer is gathered while it is computed."""
        if self.size == 1:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        is_half = precision is Precision.BFLOAT16
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if is_half else MixedPrecisionPolicy()
        layers = set(getattr(model, "_no_split_modules", None) or ())
        for module in model.modules():
            if type(module).__name__ in layers:
                fully_shard(module, mp_policy=policy)
        fully_shard(model, mp_policy=policy)


def gather_full(tensor: Tensor) -> Tensor:
    """The full tensor of one that is sharded over ranks. A collective operation: all ranks must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def scatter_like(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a full tensor, sharded like `like`."""
    if not hasattr(like, "device_mesh"):
        return whole.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
