"""Plans for machines that are not here: what fits, how fast, and the command that shows it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_node.cli.main import main
from prime_node.planning.cards import CARDS, find_card, get_card
from prime_node.planning.plan import (
    PlannedMachine,
    PlanWishes,
    count_step_bytes,
    count_token_flop,
    make_plan,
)
from prime_node.planning.render import describe_plan, list_table, render_markdown
from prime_node.planning.sizes import open_model
from prime_protocol.errors import LocalError

DOCS = Path(__file__).parents[4] / "docs" / "operating" / "plan.md"
SMALL, EXPERTS = open_model("Qwen3-8B"), open_model("Qwen3-30B-A3B")


def machine(name: str = "H100", gpus: int = 1) -> PlannedMachine:
    card = get_card(name)
    return PlannedMachine(name=name, gpus=gpus, memory_bytes=card.memory_bytes, card=card)


def test_the_table_in_the_documentation_is_what_the_command_writes() -> None:
    rows = list_table()
    assert len(rows) == 4 * 4 * 3
    assert render_markdown(rows) in DOCS.read_text()


def test_each_known_card_is_found_by_its_name_and_in_the_name_that_a_driver_gives() -> None:
    names = {
        "NVIDIA GeForce RTX 4090": "4090",
        "NVIDIA A100-SXM4-40GB": "A100-40",
        "NVIDIA A100 80GB PCIe": "A100-80",
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 PCIe": "H100-PCIe",
        "NVIDIA L40S": "L40S",
        "NVIDIA L4": "L4",
        "AMD Instinct MI300X": "MI300X",
    }
    for driver_name, name in names.items():
        assert get_card(driver_name) == get_card(name)
    assert [get_card(card.name) for card in CARDS] == list(CARDS)
    assert find_card("NVIDIA T4") is None
    with pytest.raises(
        LocalError, match=r"no card 'T4' is known; give its memory with --memory, or one of: 3090, 4090"
    ):
        get_card("T4")


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    plan = make_plan(open_model("QwQ-32B"), machine("4090", 2), PlanWishes())
    assert plan.problem.startswith("QwQ-32B does not run on 4090: a sequence of 8192 tokens does not fit: over 2 of 2")
    assert "\n" not in plan.problem
    assert plan.placement is plan.tokens_per_s is None
    assert dict(describe_plan(plan, PlanWishes()))["fits"] == plan.problem


def test_more_memory_and_more_cards_never_give_less() -> None:
    before = (0, 0)
    for name, gpus in (("A100-40", 1), ("A100-80", 1), ("A100-80", 2), ("A100-80", 8)):
        speed = make_plan(SMALL, machine(name, gpus), PlanWishes()).tokens_per_s
        assert speed is not None
        assert speed[0] < speed[1]
        assert speed > before
        before = speed


def test_one_sequence_at_full_bandwidth_bounds_the_speed() -> None:
    """Decoding one sequence reads every weight that a token uses once."""
    read = count_step_bytes(SMALL, batch=1, context=0)
    assert read == 2 * (SMALL.parameters - SMALL.embedding_parameters)
    assert count_token_flop(SMALL, 0) == read
    assert count_step_bytes(SMALL, batch=8, context=100) - read == 8 * 100 * SMALL.size.kv_token_bytes


def test_a_step_of_many_sequences_reads_all_experts_and_a_step_of_one_only_its_own() -> None:
    shared = EXPERTS.parameters - EXPERTS.embedding_parameters - EXPERTS.expert_parameters
    alone = count_step_bytes(EXPERTS, batch=1, context=0) / 2
    assert alone == pytest.approx(shared + EXPERTS.expert_parameters / 16, rel=1e-6)
    assert count_step_bytes(EXPERTS, batch=256, context=0) / 2 == pytest.approx(
        shared + EXPERTS.expert_parameters, rel=1e-4
    )
    assert count_token_flop(EXPERTS, 0) == pytest.approx(2 * alone)


def test_a_processor_without_bfloat16_needs_twice_the_memory_and_has_no_known_speed() -> None:
    host = PlannedMachine(name="this processor", gpus=0, memory_bytes=24 * 2**30)
    plan, wide = (make_plan(SMALL, each, PlanWishes()) for each in (host, replace(host, is_wide=True)))
    assert not plan.problem
    assert wide.problem
    assert wide.weight_bytes == 2 * plan.weight_bytes
    assert wide.download_s == plan.download_s
    assert dict(describe_plan(plan, PlanWishes()))["tokens/s"].startswith("no speed is known")


def test_electricity_is_priced_at_what_the_boards_draw() -> None:
    plan = make_plan(SMALL, machine("H100", 2), PlanWishes(price_per_kwh=0.5))
    assert plan.tokens_per_s is not None
    assert plan.cost_per_million is not None
    assert plan.cost_per_hour == pytest.approx(1.4 * 0.5)
    assert plan.cost_per_million[1] == pytest.approx(0.7 / (plan.tokens_per_s[0] * 3600 / 1e6))
    assert plan.cost_per_million[0] < plan.cost_per_million[1]


def test_the_command_plans_for_flags_and_says_with_its_exit_code_whether_it_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "QwQ-32B", "--gpu", "H100", "--gpus", "2", "--price", "0.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["placement"]["tensor_parallel"] == 2
    assert found["disk_bytes"] == 3 * 65_527_752_704
    assert main(["plan", "QwQ-32B", "--memory", "24", "--gpus", "2"]) == 3
    assert "does not run on 2 × 24 GB" in capsys.readouterr().out
    assert main(["plan", "Qwen2.5-1.5B", "--memory", "24", "--tensor-parallel", "1", "--bandwidth", "1000"]) == 0
    assert "24 s at 125.0 MB/s" in capsys.readouterr().out
    assert main(["plan", "--table"]) == 0
    assert capsys.readouterr().out == render_markdown(list_table())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "name a model or a checkpoint folder"),
        (("Qwen3-8B", "--gpu", "T4"), "no card 'T4' is known"),
        (("Qwen3-8B", "--gpu", "H100", "--gpus", "65"), "--gpus is 65, allowed is at most 64"),
        (("Qwen3-8B", "--gpu", "H100", "--gpus", "-1"), "--gpus is -1, the least is 1"),
        (("Qwen3-8B", "--memory", "nan"), "--memory is nan"),
        (("Qwen3-8B", "--bandwidth", "0"), "--bandwidth is 0.0"),
        (("Qwen3-8B", "--sequence-tokens", "1"), "--sequence-tokens is 1"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 1
    assert problem in capsys.readouterr().err


def test_without_flags_it_plans_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Qwen2.5-1.5B", "--sequence-tokens", "512", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "Qwen2.5-1.5B"
