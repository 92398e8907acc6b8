"""`prime-node plan`: what a model needs, and what a machine does with it, before it has been downloaded."""

import math
from dataclasses import asdict
from typing import Any

from prime_node.cli.context import NodeCliContext
from prime_node.doctor.machine import list_gpus, load_nvml, read_cpu, read_memory
from prime_node.engine.placement import GPUS_MAX
from prime_node.planning.cards import find_card, get_card
from prime_node.planning.plan import PlannedMachine, PlanWishes, make_plan
from prime_node.planning.render import describe_plan, list_table, render_markdown
from prime_node.planning.sizes import open_model
from prime_protocol.errors import LocalError

EXIT_UNFIT = 3
GB = 10**9
BITS = 8
MBIT = 10**6


def show_plan(context: NodeCliContext) -> int:
    args, screen = context.args, context.screen
    if args.table:
        screen.write(render_markdown(list_table()))
        return 0
    if args.model is None:
        raise LocalError("name a model or a checkpoint folder: prime-node plan Qwen3-8B --gpu H100")
    wishes = PlanWishes(
        sequence_tokens=_check(args.sequence_tokens, "--sequence-tokens", least=2),
        bandwidth_bytes_per_s=int(_check(args.bandwidth, "--bandwidth", least=0.01) * MBIT / BITS),
        price_per_kwh=_check(args.price, "--price", least=0.0),
        tensor_parallel=_check(args.tensor_parallel, "--tensor-parallel", least=0),
    )
    plan = make_plan(open_model(args.model), choose_machine(context), wishes)
    if args.json:
        screen.print_json(asdict(plan))
    else:
        screen.show(screen.key_value_table(describe_plan(plan, wishes)))
    return EXIT_UNFIT if plan.problem else 0


def choose_machine(context: NodeCliContext) -> PlannedMachine:
    """The one that the flags describe, else this one: its GPUs, or its processor if it has none."""
    args = context.args
    count = _check(args.gpus or 1, "--gpus", least=1)
    if count > GPUS_MAX:
        raise LocalError(f"--gpus is {count}, allowed is at most {GPUS_MAX}")
    if args.gpu:
        card = get_card(args.gpu)
        memory = int(_check(args.memory, "--memory", least=0.001) * GB) if args.memory else card.memory_bytes
        return PlannedMachine(name=f"{count} × {card.name}", gpus=count, memory_bytes=memory, card=card)
    if args.memory:
        memory = int(_check(args.memory, "--memory", least=0.001) * GB)
        return PlannedMachine(name=f"{count} × {args.memory:g} GB", gpus=count, memory_bytes=memory)
    return describe_this_machine(args.gpus)


def describe_this_machine(wanted: int | None) -> PlannedMachine:
    gpus = [gpu for gpu in list_gpus(load_nvml()).gpus if not gpu.problem]
    if not gpus:
        memory, is_wide = read_memory(), not read_cpu().has_bf16
        return PlannedMachine(name="this processor", gpus=0, memory_bytes=memory.total_bytes, is_wide=is_wide)
    chosen = gpus[: wanted or len(gpus)]
    # Copies are equal, so the smallest of the cards decides.
    smallest = min(chosen, key=lambda gpu: gpu.memory_bytes)
    return PlannedMachine(
        name=f"{len(chosen)} × {smallest.name}",
        gpus=len(chosen),
        memory_bytes=smallest.memory_bytes,
        card=find_card(smallest.name),
    )


def _check(value: Any, flag: str, *, least: float) -> Any:
    if not math.isfinite(value) or value < least:
        raise LocalError(f"{flag} is {value}, the least is {least:g}")
    return value
