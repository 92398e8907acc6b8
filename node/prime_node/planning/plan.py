"""The plan of a model on a machine: does it fit, over how many GPUs, how many sequences at once, how fast. Pure.

The speed is a range between two rooflines, for decoding at the concurrency that the memory allows. A step reads the
weights and the keys and values of all sequences once, multiplies, and exchanges activations if the model is split. The
upper end reaches most of what the data sheet says, as good kernels at large batches do; the lower end less than half,
and waits in every layer. Reading prompts is left out: it costs little beside long completions.
"""

import math
from dataclasses import dataclass, replace

from prime_node.engine.placement import GPU_MEMORY_SHARE, Placement, choose_placement
from prime_node.planning.cards import GpuCard
from prime_node.planning.sizes import VALUE_BYTES, ModelSizes
from prime_protocol.errors import LocalError

COPIES_ON_DISK = 3
"""The shards, the checkpoint built from them, and the next one during its build."""
SEQUENCE_TOKENS = 8_192
"""Longest sequence that a plan assumes if it is told none."""
MEAN_SHARE = 3
"""The mean length is a third of the longest: lengths of completions have a heavy tail."""
BATCH_MAX = 256
"""Sequences at once in one copy of the model, as the engine takes by itself on a GPU."""
BANDWIDTH_BYTES_PER_S = 12_500_000
"""100 Mbit/s, for the first download, if no other bandwidth is given."""
MEMORY_BEST, MEMORY_WORST = 0.85, 0.45
"""Share of the memory's bandwidth that decoding reaches. One sequence of an 8B model reaches 0.77 on an A100."""
FLOP_BEST, FLOP_WORST = 0.6, 0.25
"""Share of the arithmetic."""
LINK_BEST, LINK_WORST = 0.7, 0.25
LAYER_S_WORST = 20e-6
"""Time that a layer waits in the worst case, for launches and for the slowest of the GPUs."""
HOURS_PER_MILLION_S = 1e6 / 3600
WATTS_PER_KW = 1000
FLOAT32_BYTES = 4
SLOW_NOTE = "no speed is known for this device; prime-node selftest measures it"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """What a plan is made for."""

    name: str
    gpus: int
    """Equal ones; 0: the engine runs on the processor, and `memory_bytes` is the machine's."""
    memory_bytes: int
    """Of each GPU."""
    card: GpuCard | None = None
    """None where its speed is not known."""
    is_wide: bool = False
    """It computes in float32, as a processor without bfloat16 does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWishes:
    """What the plan is asked for."""

    sequence_tokens: int = SEQUENCE_TOKENS
    bandwidth_bytes_per_s: int = BANDWIDTH_BYTES_PER_S
    price_per_kwh: float = 0.0
    """In any currency; 0 leaves the costs out."""
    tensor_parallel: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """What comes out. `problem` is one sentence if the model does not fit; all else is then about the download."""

    model: str
    machine: str
    weight_bytes: int
    disk_bytes: int
    download_s: float
    problem: str = ""
    placement: Placement | None = None
    sequences: int = 0
    """Of the mean length, at once, in all copies."""
    tokens_per_s: tuple[int, int] | None = None
    """The range, for all copies together; None where the device's speed is not known."""
    watts: int = 0
    cost_per_hour: float = 0.0
    cost_per_million: tuple[float, float] | None = None
    """For a million tokens, lowest first."""


def make_plan(model: ModelSizes, machine: PlannedMachine, wishes: PlanWishes) -> MachinePlan:
    if machine.is_wide:
        model = model.with_value_bytes(FLOAT32_BYTES)
    plan = MachinePlan(
        model=model.name,
        machine=machine.name,
        weight_bytes=model.size.weight_bytes,
        disk_bytes=COPIES_ON_DISK * model.download_bytes,
        download_s=model.download_bytes / wishes.bandwidth_bytes_per_s,
    )
    try:
        placement = choose_placement(
            model.size,
            gpus=max(1, machine.gpus),
            memory_bytes=int(machine.memory_bytes * GPU_MEMORY_SHARE),
            sequence_tokens=wishes.sequence_tokens,
            tensor_parallel=wishes.tensor_parallel,
        )
    except LocalError as error:
        return replace(plan, problem=f"{model.name} does not run on {machine.name}: {error}")
    mean = max(1, min(wishes.sequence_tokens, model.size.context_max) // MEAN_SHARE)
    batch = min(BATCH_MAX, placement.kv_tokens // mean)
    plan = replace(plan, placement=placement, sequences=batch * placement.replicas)
    if machine.card is None:
        return plan
    speed = estimate_speed(model, machine.card, placement, batch=batch, context=mean)
    watts = machine.card.watts * placement.replicas * placement.tensor_parallel
    return add_costs(replace(plan, tokens_per_s=speed, watts=watts), wishes.price_per_kwh)


def add_costs(plan: MachinePlan, price_per_kwh: float) -> MachinePlan:
    """At the most that the boards draw, so an upper limit; the rest of the machine is not in it."""
    if not price_per_kwh or plan.tokens_per_s is None:
        return plan
    hour = plan.watts / WATTS_PER_KW * price_per_kwh
    slow, fast = (hour * HOURS_PER_MILLION_S / speed for speed in plan.tokens_per_s)
    return replace(plan, cost_per_hour=hour, cost_per_million=(fast, slow))


def estimate_speed(
    model: ModelSizes, card: GpuCard, placement: Placement, *, batch: int, context: int
) -> tuple[int, int]:
    """Tokens a second of all copies, at the lower and the upper end, with that many sequences in each."""
    steps = estimate_step_s(model, card, placement.tensor_parallel, batch=batch, context=context)
    low, high = (round_figure(placement.replicas * batch / step_s) for step_s in steps)
    return low, high


def estimate_step_s(model: ModelSizes, card: GpuCard, parts: int, *, batch: int, context: float) -> tuple[float, float]:
    """Seconds in which one copy over `parts` GPUs generates a token of each sequence: the worst and the best case.

    `context` is the mean of the sequences. For a dense model the worst case is a sum of terms in the batch and in the
    tokens of context.
    """
    memory_s = count_step_bytes(model, batch=batch, context=context) / parts / card.bytes_per_s
    flop_s = batch * count_token_flop(model, context) / parts / card.flop_per_s
    # Two sums of activations over all GPUs in each layer; each GPU sends and receives its share twice.
    exchanged = 2 * model.layers * 2 * (parts - 1) / parts * batch * model.hidden * VALUE_BYTES
    link_s = exchanged / card.link_bytes_per_s
    best = max(memory_s / MEMORY_BEST, flop_s / FLOP_BEST) + link_s / LINK_BEST
    worst = memory_s / MEMORY_WORST + flop_s / FLOP_WORST + link_s / LINK_WORST + model.layers * LAYER_S_WORST
    return worst, best


def count_step_bytes(model: ModelSizes, *, batch: int, context: float) -> float:
    """Read from memory by one step: the weights that some token uses, and all keys and values."""
    value_bytes = model.size.weight_bytes / model.parameters
    used = model.parameters - model.embedding_parameters
    if model.experts:
        idle = (1 - model.experts_used / model.experts) ** batch
        used -= int(model.expert_parameters * idle)
    return used * value_bytes + batch * context * model.size.kv_token_bytes


def count_token_flop(model: ModelSizes, context: float) -> float:
    """Two for each weight that the token uses, and the products with the tokens before it."""
    used: float = model.parameters - model.embedding_parameters
    if model.experts:
        used -= model.expert_parameters * (1 - model.experts_used / model.experts)
    return 2 * used + 4 * model.layers * model.attention_width * context


def round_figure(value: float) -> int:
    """Two digits: an estimate has no more."""
    unit = int(10 ** max(0, math.floor(math.log10(max(value, 1))) - 1))
    return round(value / unit) * unit
