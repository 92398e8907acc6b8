"""A plan as text: the lines of `prime-node plan`, and the table of docs/operating/plan.md. Pure."""

from collections.abc import Sequence

from prime_node.planning.cards import get_card
from prime_node.planning.plan import (
    BATCH_MAX,
    MEAN_SHARE,
    SLOW_NOTE,
    MachinePlan,
    PlannedMachine,
    PlanWishes,
    make_plan,
)
from prime_node.planning.sizes import open_model
from prime_runtime.formatting import format_bytes, format_duration
from prime_runtime.known_models import KNOWN_MODELS

TABLE_CARDS = ("4090", "A100-40", "A100-80", "H100")
TABLE_COUNTS = (1, 2, 8)
TABLE_HEAD = ("model", "GPUs", "copies × GPUs", "KV tokens of a copy", "sequences at once", "tokens/s")
BASIS = "between two rooflines of the data sheet, decoding at this concurrency; not measured"


def describe_plan(plan: MachinePlan, wishes: PlanWishes) -> list[tuple[str, str]]:
    """Names and values, for people."""
    rows = [
        ("model", f"{plan.model}, weights of {format_bytes(plan.weight_bytes)} in memory"),
        ("machine", plan.machine),
        ("fits", plan.problem or "yes"),
    ]
    if (place := plan.placement) is not None:
        mean = wishes.sequence_tokens // MEAN_SHARE
        rows += [
            ("tensor parallel", f"{place.tensor_parallel}"),
            ("copies", f"{place.replicas}" + (f", {place.unused} GPUs unused" if place.unused else "")),
            ("KV cache", f"{place.kv_tokens:,} tokens in each copy"),
            (
                "sequences at once",
                f"{place.get_sequences(wishes.sequence_tokens):,} of {wishes.sequence_tokens:,} tokens; "
                f"{plan.sequences:,} of {mean:,}, the assumed mean (at most {BATCH_MAX} in a copy)",
            ),
            ("tokens/s", describe_speed(plan)),
        ]
    rows += [
        ("disk", format_bytes(plan.disk_bytes)),
        (
            "first download",
            f"{format_duration(round(plan.download_s * 1000))} at {format_bytes(wishes.bandwidth_bytes_per_s)}/s",
        ),
    ]
    if plan.cost_per_million:
        low, high = plan.cost_per_million
        rows.append(
            (
                "electricity",
                f"{plan.cost_per_hour:.2f} an hour at {plan.watts:,} W, "
                f"{low:.2g} to {high:.2g} for a million tokens, without the rest of the machine",
            )
        )
    return rows


def describe_speed(plan: MachinePlan) -> str:
    if plan.tokens_per_s is None:
        return SLOW_NOTE
    low, high = plan.tokens_per_s
    return f"{low:,} to {high:,} ({BASIS})"


def list_table(cards: Sequence[str] = TABLE_CARDS, counts: Sequence[int] = TABLE_COUNTS) -> list[list[str]]:
    """A row for each known model, card and number of cards."""
    rows = []
    for name in KNOWN_MODELS:
        for card_name in cards:
            card = get_card(card_name)
            for count in counts:
                machine = PlannedMachine(
                    name=f"{count} × {card.name}", gpus=count, memory_bytes=card.memory_bytes, card=card
                )
                rows.append(_table_row(make_plan(open_model(name), machine, PlanWishes())))
    return rows


def _table_row(plan: MachinePlan) -> list[str]:
    place, speed = plan.placement, plan.tokens_per_s
    if place is None or speed is None:
        return [plan.model, plan.machine, "does not fit", "", "", ""]
    return [
        plan.model,
        plan.machine,
        f"{place.replicas} × {place.tensor_parallel}",
        f"{place.kv_tokens:,}",
        f"{plan.sequences:,}",
        f"{speed[0]:,} to {speed[1]:,}",
    ]


def render_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [TABLE_HEAD, ["---"] * len(TABLE_HEAD), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
