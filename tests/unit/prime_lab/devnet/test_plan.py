"""Who takes part in a devnet, and that every word they are started with is one that their program knows."""

from pathlib import Path

import pytest

from prime_coordinator.admin.run_terms import read_model_config
from prime_lab.devnet.cli import parse_args
from prime_lab.devnet.monitor import draw_sparkline
from prime_lab.devnet.plan import (
    DevnetPlan,
    DevnetRole,
    get_attack,
    list_nodes,
    make_coordinator_argv,
    make_origin_argv,
    make_run_argv,
    make_trainer_argv,
)
from prime_trainer.model.tiny import make_recurrent_checkpoint

PLAN = DevnetPlan(folder=Path("/somewhere"))
COORDINATOR = "0x" + "11" * 20


def test_the_default_network_is_the_one_that_the_readme_promises() -> None:
    parts = [party.part for party in list_nodes(PLAN, "http://127.0.0.1:1")]
    assert {part: parts.count(part) for part in set(parts)} == {
        DevnetRole.RELAY: 1,
        DevnetRole.WORKER: 3,
        DevnetRole.VALIDATOR: 2,
        DevnetRole.CHEATER: 1,
    }


def test_every_party_is_started_with_words_that_its_program_knows() -> None:
    from prime_coordinator.cli.main import parse_args as parse_coordinator
    from prime_node.cli.main import parse_args as parse_node
    from prime_trainer.cli import parse_args as parse_trainer

    model = Path("/somewhere/model")
    for words in (make_coordinator_argv(PLAN), make_run_argv(PLAN, model, COORDINATOR)):
        parse_coordinator(list(words[1:]))
    for words in (
        make_trainer_argv(PLAN, "http://127.0.0.1:1", COORDINATOR, model),
        make_origin_argv(PLAN, "http://127.0.0.1:1", COORDINATOR),
    ):
        parse_trainer(list(words[1:]))
    for party in list_nodes(PLAN, "http://127.0.0.1:1"):
        parse_node(list(party.words[1:]))


@pytest.mark.parametrize(
    "words", [["--validators", "1"], ["--nodes", "0"], ["--steps", "0"], ["--attack", "nothing"], ["--malicious", "1"]]
)
def test_a_network_that_cannot_work_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(words)
    assert capsys.readouterr().err


@pytest.mark.parametrize(("honest", "share", "cheaters"), [(4, 0.3, 2), (7, 0.3, 3), (3, 0.25, 1), (3, 0.0, 0)])
def test_a_malicious_share_is_reached_with_the_fewest_cheaters(honest: int, share: float, cheaters: int) -> None:
    args = parse_args(["--nodes", str(honest), "--malicious", str(share)])
    assert args.cheaters == cheaters


def test_cheaters_cheat_in_turn() -> None:
    plan = DevnetPlan(folder=Path("/somewhere"), cheaters=3, attacks=("answer-sheet", "other-seed"))
    names = [party.name for party in list_nodes(plan, "http://127.0.0.1:1") if party.part is DevnetRole.CHEATER]
    assert [get_attack(plan, name) for name in names] == ["answer-sheet", "other-seed", "answer-sheet"]


def test_the_recurrent_model_is_whole_and_has_no_attention(tmp_path: Path) -> None:
    from prime_trainer.data.packing import PackLayout
    from prime_trainer.model.policy import PolicyModel

    policy = PolicyModel.load(make_recurrent_checkpoint(tmp_path, hidden=32, layers=1))
    assert policy.layout is PackLayout.STACKED
    assert not any("attn" in name for name, _ in policy.model.named_parameters())
    terms = read_model_config(tmp_path)
    # Two FLOP for each weight of the products and the convolution, six for each number of state.
    met = {"in_proj", "x_proj", "dt_proj.weight", "out_proj", "conv1d.weight", "embeddings"}
    weights = sum(each.numel() for name, each in policy.model.named_parameters() if any(part in name for part in met))
    assert terms["units_per_token"] == 2 * weights + 6 * 64 * 8
    assert "units_per_context_token" not in terms, "a state of fixed size is all that it looks back at"


def test_the_curve_rises_with_the_reward() -> None:
    assert draw_sparkline([]) == ""
    assert draw_sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(draw_sparkline([0.5] * 1000, width=60)) == 60
