"""Who takes part in a devnet, and that every word they are started with is one that their program knows."""

from pathlib import Path

import pytest

from prime_devnet.cli import parse_args
from prime_devnet.plan import Part, Plan, list_nodes
from prime_devnet.settings import coordinator_words, origin_words, run_words, trainer_words
from prime_devnet.view import draw_curve

PLAN = Plan(folder=Path("/somewhere"))
COORDINATOR = "0x" + "11" * 20


def test_the_default_network_is_the_one_that_the_readme_promises() -> None:
    parts = [party.part for party in list_nodes(PLAN, "http://127.0.0.1:1")]
    assert {part: parts.count(part) for part in set(parts)} == {
        Part.RELAY: 1,
        Part.WORKER: 3,
        Part.VALIDATOR: 2,
        Part.CHEATER: 1,
    }


def test_every_party_is_started_with_words_that_its_program_knows() -> None:
    from prime_coordinator.cli import parse_args as parse_coordinator
    from prime_node.cli import parse_args as parse_node
    from prime_trainer.cli import parse_args as parse_trainer

    model = Path("/somewhere/model")
    for words in (coordinator_words(PLAN), run_words(PLAN, model, COORDINATOR)):
        parse_coordinator(list(words[1:]))
    for words in (
        trainer_words(PLAN, "http://127.0.0.1:1", COORDINATOR, model),
        origin_words(PLAN, "http://127.0.0.1:1", COORDINATOR),
    ):
        parse_trainer(list(words[1:]))
    for party in list_nodes(PLAN, "http://127.0.0.1:1"):
        parse_node(list(party.words[1:]))


@pytest.mark.parametrize("words", [["--validators", "1"], ["--nodes", "0"], ["--steps", "0"], ["--attack", "nothing"]])
def test_a_network_that_cannot_work_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(words)
    assert capsys.readouterr().err


def test_the_curve_rises_with_the_reward() -> None:
    assert draw_curve([]) == ""
    assert draw_curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(draw_curve([0.5] * 1000, width=60)) == 60
