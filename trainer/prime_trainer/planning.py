"""The memory of a rank before there are any GPUs: one pass over packs, traced with fake tensors and fake ranks.

The model, the sharding, the head and the offloading are those of training; only no tensor has values. torch's memory
trackers say what is alive when, by kind. Moments are added by their size, because a traced update would be counted with
temporaries that the fused kernel does not have. A deep model is traced with a few layers and continued in a straight
line, if all layers are equal and a third depth lies on that line; else it is traced whole.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker

from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_runtime.known_models import KNOWN_MODELS, find_known_name
from prime_trainer.config import MomentStorage, RanksConfig
from prime_trainer.data.packing import PackLayout, Sample, make_pack
from prime_trainer.model import attention, head
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.loading import (
    allocate_weights,
    build_without_weights,
    count_layers_of_each_kind,
    find_layers,
    get_local,
    read_config,
)
from prime_trainer.model.offload import is_offloadable
from prime_trainer.model.policy import PolicyModel, ScoringHead, disable_dropout, try_model

DEPTHS = (4, 5, 8)
"""Layers of the traces that a straight line is drawn through, and of the one that must lie on it."""
LINE_ERROR_MAX = 0.01
RESERVE_BYTES = 2 * 10**9
"""Of a GPU: the context of its driver, buffers of NCCL, workspaces of cuBLAS."""
FRAGMENTS_SHARE = 0.03
"""Of the planned memory, that the allocator cannot use."""
KEPT_BYTES = {MomentStorage.FLOAT32: 8, MomentStorage.BFLOAT16: 6, MomentStorage.HOST: 8}
"""Of the moments of a weight."""
STAGED_BYTES = 2 + 4
"""Of a weight that is saved: a copy in bfloat16 to publish, and one in float32 for a checkpoint."""
PARTS = {
    "Parameter": "weights",
    "Sharded Param": "weights",
    "Gradient": "gradients",
    "Sharded Grad": "gradients",
    "Unsharded Param": "gathered weights",
    "All Gather": "gathered weights",
    "Unsharded Grad": "gathered gradients",
    "Reduce Scatter": "gathered gradients",
    "Activation": "activations",
}
"""Names of torch's trackers; anything else is temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWishes:
    """What a plan is made for."""

    ranks: int
    tokens: int
    """Of the longest pass: `batch.pack_tokens`, or the longest sample if that is longer."""
    replicas: int = 1
    precision: Precision = Precision.BFLOAT16
    head_precision: Precision | None = None
    gradient_checkpointing: bool = True
    offload_activations: bool = False
    moments: MomentStorage = MomentStorage.FLOAT32
    context: int = 1
    has_reference: bool = False
    """A second model for the KL term."""
    device: str = "cuda"
    """Whose tiles the head is computed in."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank at its peak, by part."""

    parts: dict[str, int]
    host_bytes: int
    """Of the host: copies of what is being saved, and moments and activations that are there instead."""

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


# --- Planning ---------------------------------------------------------------------------------------------------------


def open_config(model: str) -> Any:
    """The configuration of a folder, or of a known model by its name."""
    from transformers import AutoConfig

    path, name = Path(model).expanduser(), find_known_name(model)
    if path.is_dir():
        return read_config(path)
    if name is None:
        raise LocalError(f"{model} is no model folder, and the models known by name are {', '.join(KNOWN_MODELS)}")
    fields = dict(KNOWN_MODELS[name])
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def plan_memory(config: Any, wishes: MemoryWishes) -> MemoryPlan:
    """LocalError if ranks, replicas and context do not go together."""
    if wishes.ranks % (wishes.replicas * wishes.context):
        raise LocalError(
            f"{wishes.ranks} ranks cannot be {wishes.replicas} replicas with {wishes.context} ranks a pack"
        )
    layout, has_plain_head = try_model(config)
    if wishes.context > 1 and layout is not PackLayout.PACKED:
        raise LocalError("this model cannot be packed, so its packs cannot be shared either")

    def trace(depth: int | None) -> MemoryPlan:
        return trace_memory(config, wishes, layout, has_plain_head=has_plain_head, depth=depth)

    layers = len(find_layers(build_without_weights(copy.deepcopy(config))))
    if layers <= max(DEPTHS) or count_layers_of_each_kind(build_without_weights(copy.deepcopy(config))) > 1:
        return trace(None)
    first, second, third = map(trace, DEPTHS)
    on_line = extend(first, second, DEPTHS[2] - DEPTHS[0])
    if abs(on_line.total_bytes - third.total_bytes) > LINE_ERROR_MAX * third.total_bytes:
        return trace(None)
    return extend(first, second, layers - DEPTHS[0])


def extend(first: MemoryPlan, second: MemoryPlan, layers: int) -> MemoryPlan:
    """The plan with so many more layers than `first`, of which `second` has one more."""
    parts = {name: first.parts[name] + layers * (second.parts[name] - first.parts[name]) for name in first.parts}
    return MemoryPlan(parts, first.host_bytes + layers * (second.host_bytes - first.host_bytes))


def get_usable_bytes(memory_bytes: int) -> int:
    """Of a GPU, for what a plan counts."""
    return round((memory_bytes - RESERVE_BYTES) / (1 + FRAGMENTS_SHARE))


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Whether a plan fits, and if not, what would."""

    plan: MemoryPlan
    memory_bytes: int
    switches: tuple[str, ...] = ()
    """Settings that make it fit, the cheapest first; all there are, if it does not fit even then."""
    switched: MemoryPlan | None = None
    """With these settings."""

    @property
    def fits(self) -> bool:
        return self.plan.total_bytes <= get_usable_bytes(self.memory_bytes)

    def render_json(self) -> str:
        usable = get_usable_bytes(self.memory_bytes)
        facts = {"fits": self.fits, "total_bytes": self.plan.total_bytes, "usable_bytes": usable}
        return json.dumps({**asdict(self), **facts})


def judge_memory(config: Any, wishes: MemoryWishes, memory_bytes: int) -> MemoryVerdict:
    """Plan; if it does not fit, try the switches in the order in which they cost speed, each on top of the ones before.

    What turns out not to be needed for it is left out again.
    """
    usable, plan = get_usable_bytes(memory_bytes), plan_memory(config, wishes)
    verdict, chosen = MemoryVerdict(plan, memory_bytes), dict[str, dict[str, Any]]()
    if verdict.fits:
        return verdict
    for name, changes in list_switches(wishes):
        chosen[name] = changes
        switched = plan_memory(config, apply_switches(wishes, chosen))
        if switched.total_bytes <= usable:
            break
    else:
        return replace(verdict, switches=tuple(chosen))
    for name in list(chosen)[:-1]:
        fewer = {other: changes for other, changes in chosen.items() if other != name}
        without = plan_memory(config, apply_switches(wishes, fewer))
        if without.total_bytes <= usable:
            chosen, switched = fewer, without
    return replace(verdict, switches=tuple(chosen), switched=switched)


def apply_switches(wishes: MemoryWishes, switches: Mapping[str, Mapping[str, Any]]) -> MemoryWishes:
    for changes in switches.values():
        wishes = replace(wishes, **changes)
    return wishes


def render_verdict(verdict: MemoryVerdict) -> str:
    """Pure: the lines for a terminal."""
    lines = [f"{name:<20}{size / 1e9:>9.2f} GB" for name, size in verdict.plan.parts.items() if size]
    lines.append(f"{'a rank at its peak':<20}{verdict.plan.total_bytes / 1e9:>9.2f} GB")
    lines.append(f"{'on the host, a rank':<20}{verdict.plan.host_bytes / 1e9:>9.2f} GB")
    usable = get_usable_bytes(verdict.memory_bytes) / 1e9
    given = f"{usable:.2f} GB, which {verdict.memory_bytes / 1e9:.2f} GB leave for it"
    if verdict.fits:
        return "\n".join([*lines, f"it fits into {given}"])
    lines.append(f"it does not fit into {given}")
    names = ", ".join(verdict.switches)
    if verdict.switched is None:
        lines.append(f"not even with {names}: take more GPUs, fewer tokens, or fewer replicas")
    else:
        host = f"{verdict.switched.host_bytes / 1e9:.2f} GB on the host"
        lines.append(f"it would with {names}: {verdict.switched.total_bytes / 1e9:.2f} GB a rank, and {host}")
    return "\n".join(lines)


def list_switches(wishes: MemoryWishes) -> Iterator[tuple[str, dict[str, Any]]]:
    if wishes.precision is not Precision.BFLOAT16:
        yield "precision = bfloat16", {"precision": Precision.BFLOAT16}
    if not wishes.gradient_checkpointing:
        yield "gradient_checkpointing = true", {"gradient_checkpointing": True}
    if not wishes.offload_activations:
        yield "offload_activations = true", {"offload_activations": True}
    if wishes.moments is MomentStorage.FLOAT32:
        yield "optimizer.moments = bfloat16", {"moments": MomentStorage.BFLOAT16}
    if wishes.moments is not MomentStorage.HOST:
        yield "optimizer.moments = host", {"moments": MomentStorage.HOST}
    context = 2 * wishes.context
    while wishes.ranks % (wishes.replicas * context) == 0:
        yield f"ranks.context = {context}", {"context": context}
        context *= 2


# --- Tracing ----------------------------------------------------------------------------------------------------------


def trace_memory(
    config: Any, wishes: MemoryWishes, layout: PackLayout, *, has_plain_head: bool, depth: int | None
) -> MemoryPlan:
    """Two packs, one after the other: the second begins with the gradients of the first."""
    config = copy.deepcopy(config)
    if depth is not None:
        text = config.get_text_config()
        text.num_hidden_layers = depth
        if "layer_types" in vars(text):
            text.layer_types = text.layer_types[:depth]
    with fake_ranks(wishes) as ranks, FakeTensorMode(allow_non_fake_inputs=True), tiles_of(wishes.device):
        policy = build_policy(config, wishes, layout, ranks, has_plain_head=has_plain_head)
        offloaded = count_offloaded(policy) if wishes.offload_activations else [0]
        tracker = FSDPMemTracker(policy.model) if ranks.size > 1 else MemTracker()
        if ranks.size == 1:
            tracker.track_external(policy.model)
        else:
            tracker.track_inputs(())
        tokens = np.zeros(wishes.tokens, np.int32)
        pack = make_pack([Sample(tokens[:1], tokens, np.zeros(len(tokens), np.float32), 1.0, 1.0)])
        with tracker:
            for number in range(2):
                if number:
                    tracker.reset_mod_stats()
                policy.compute_loss_inputs(pack, has_entropy_gradient=False).logp_T.sum().backward()
        (peak,) = [each for device, each in tracker.get_tracker_snapshot("peak").items() if device.type == "cpu"]
        weights = sum(get_local(each)[0].numel() for each in policy.model.parameters())
        largest = max(get_local(each)[0].numel() for each in policy.model.parameters())
    return summarize(peak, wishes, weights=weights, largest=largest, offloaded_bytes=offloaded[0])


def summarize(
    peak: dict[Any, int], wishes: MemoryWishes, *, weights: int, largest: int, offloaded_bytes: int
) -> MemoryPlan:
    parts = dict.fromkeys((*PARTS.values(), "moments", "reference model", "temporary"), 0)
    for kind, size in peak.items():
        if kind != "Total":
            parts[PARTS.get(getattr(kind, "value", str(kind)), "temporary")] += size
    is_on_host = wishes.moments is MomentStorage.HOST
    parts["moments"] = 0 if is_on_host else weights * KEPT_BYTES[wishes.moments]
    parts["reference model"] = parts["weights"] if wishes.has_reference else 0
    # An update has the moments of one tensor in float32 on the device.
    update = 0 if wishes.moments is MomentStorage.FLOAT32 else 8 * largest
    at_rest = parts["weights"] + parts["gradients"] + parts["moments"] + parts["reference model"]
    parts["temporary"] += max(0, at_rest + update - sum(parts.values()))
    # The copies of a checkpoint have the moments too.
    host_bytes = weights * (STAGED_BYTES + (1 + is_on_host) * KEPT_BYTES[wishes.moments])
    return MemoryPlan(parts, host_bytes + offloaded_bytes)


@contextmanager
def fake_ranks(wishes: MemoryWishes) -> Iterator[RankGroup]:
    """The first of so many ranks, whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if wishes.ranks == 1:
        yield RankGroup()
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=wishes.ranks)
    try:
        yield RankGroup.fake(RanksConfig(replicas=wishes.replicas, context=wishes.context))
    finally:
        dist.destroy_process_group()


@contextmanager
def tiles_of(device: str) -> Iterator[None]:
    """Fake tensors are on a CPU, whatever device is planned for."""
    usual = head.TILE_SHAPES["cpu"]
    head.TILE_SHAPES["cpu"] = head.TILE_SHAPES[device]
    try:
        yield
    finally:
        head.TILE_SHAPES["cpu"] = usual


def build_policy(
    config: Any, wishes: MemoryWishes, layout: PackLayout, ranks: RankGroup, *, has_plain_head: bool
) -> PolicyModel:
    """As PolicyModel.build does, from a configuration."""
    model = build_without_weights(config)
    attention.register_attention()
    if layout is PackLayout.PACKED:
        model.set_attn_implementation(attention.ATTENTION_NAME)
    head_precision = wishes.head_precision or wishes.precision
    scoring = ScoringHead(model.get_output_embeddings(), head_precision) if has_plain_head else None
    disable_dropout(model)
    if wishes.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ranks.shard(model, wishes.precision, head_precision)
    if ranks.size > 1:
        allocate_weights(model, "cpu")
    else:
        allocate_fake_weights(model)
    return PolicyModel(
        model.train(), layout=layout, head=scoring, device="cpu", precision=wishes.precision, ranks=ranks
    )


def allocate_fake_weights(model: Any) -> None:
    """As allocate_weights does. A module cannot replace its own weights by fake ones."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = torch.nn.Parameter(torch.empty_like(parameter, device="cpu"))
                module._parameters[name] = made[id(parameter)]


def count_offloaded(policy: PolicyModel) -> list[int]:
    """Let what would go to the host vanish; the result has the most bytes that were there at once."""
    alive, most = [0], [0]

    def pack(stored: Any) -> Any:
        if not is_offloadable(stored):
            return stored
        alive[0] += stored.nbytes
        most[0] = max(most[0], alive[0])
        return tuple(stored.shape), stored.dtype, stored.nbytes

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        shape, dtype, size = packed
        alive[0] -= size
        return torch.empty(shape, dtype=dtype)

    policy.offload = lambda: torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    return most
