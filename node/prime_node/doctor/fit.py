"""Whether the run's model fits the GPUs of this machine, as lines of the doctor's checklist. Pure.

The plan is that of `prime-node plan`. A model that is not known by name is planned by the size of its published
weights alone, so a model that needs much room for keys and values may turn out not to fit after all.
"""

from prime_node.doctor.facts import MachineReport
from prime_node.engine.placement import GPUS_MAX, ModelSize
from prime_node.planning.cards import find_card
from prime_node.planning.plan import MachinePlan, PlannedMachine, PlanWishes, make_plan
from prime_node.planning.sizes import VALUE_BYTES, ModelSizes, find_known_model


def plan_gpus(examined: MachineReport, sequence_tokens: int = 0) -> MachinePlan | None:
    """None where there is no GPU that works, or no model whose size is known."""
    devices = list_usable_gpus(examined)
    model = get_model(examined)
    if not devices or model is None:
        return None
    free = sorted((free for _, free in devices), reverse=True)[:GPUS_MAX]
    # Copies are equal, so a small card beside large ones may be better left out.
    plans = [
        make_plan(
            model,
            PlannedMachine(
                name=f"{count} × {devices[0][0]}",
                gpus=count,
                memory_bytes=free[count - 1],
                card=find_card(devices[0][0]),
            ),
            PlanWishes(sequence_tokens=sequence_tokens) if sequence_tokens else PlanWishes(),
        )
        for count in range(len(free), 0, -1)
    ]
    return max(plans, key=lambda plan: plan.placement.replicas * plan.placement.kv_tokens if plan.placement else -1)


def list_usable_gpus(examined: MachineReport) -> list[tuple[str, int]]:
    """Name and free bytes of each GPU that passed its test."""
    devices = examined.engine.devices if examined.engine else ()
    return [(each.name or each.device, each.free_bytes) for each in devices if each.is_good and each.device != "cpu"]


def get_model(examined: MachineReport) -> ModelSizes | None:
    """The run's model: by its name, else by the size of its newest keyframe."""
    known = find_known_model(examined.coordinator.model) if examined.coordinator else None
    weight_bytes = examined.sources.model_bytes if examined.sources else None
    return known or (guess_model(examined, weight_bytes) if weight_bytes else None)


def guess_model(examined: MachineReport, weight_bytes: int) -> ModelSizes:
    """Of a model of which nothing but its size is known: no heads that a split must keep whole, and no context."""
    size = ModelSize(weight_bytes=weight_bytes, heads=0, kv_heads=1, kv_token_bytes=0, vocabulary=0, context_max=1)
    return ModelSizes(
        name=(examined.coordinator.model if examined.coordinator else "") or "the model",
        parameters=max(1, weight_bytes // VALUE_BYTES),
        embedding_parameters=0,
        expert_parameters=0,
        experts=0,
        experts_used=0,
        layers=0,
        hidden=0,
        attention_width=0,
        size=size,
        download_bytes=weight_bytes,
    )


def describe_placement(plan: MachinePlan) -> str:
    place = plan.placement
    assert place is not None, "a plan without a problem has a placement"
    copies = f"{place.replicas} {'copy' if place.replicas == 1 else 'copies'} of {plan.model}"
    unused = f", {place.unused} unused" if place.unused else ""
    return f"{copies}, each on {place.tensor_parallel} of {place.gpus} GPUs{unused}"
