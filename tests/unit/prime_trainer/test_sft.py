"""A warm start makes some answers right, a test says how many, and a filter keeps what is worth training on."""

import asyncio
import json
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_trainer.cli import main
from prime_trainer.config import EvalConfig, SftConfig
from prime_trainer.evaluate import TaskScore, batch_by_length, choose_tasks, cut_at_eos, evaluate
from prime_trainer.model.tiny import make_tiny_checkpoint
from prime_trainer.sft import read_examples, train_sft


def test_a_warm_start_makes_answers_right_that_were_wrong(tmp_path: Path) -> None:
    start, warm = make_tiny_checkpoint(tmp_path / "start", spread=0.3), tmp_path / "warm"
    losses: list[float] = []
    config = SftConfig(model=start, out=warm, task_set="sort-digits?digits=2", steps=40, examples=32)
    train_sft(config, lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0] / 5

    def score(model: Path) -> float:
        wanted = EvalConfig(model=model, task_set="sort-digits?digits=2&seed=1", tasks=64, tokens_max=4)
        found = asyncio.run(evaluate(wanted))
        return sum(each.mean for each in found) / len(found)

    assert score(start) < 0.1
    assert score(warm) > 0.3
    with pytest.raises(LocalError, match="exists; choose another folder"):
        train_sft(config, lambda step, loss: None)


def test_examples_come_from_a_file_too(tmp_path: Path) -> None:
    data = tmp_path / "examples.jsonl"
    data.write_text('{"prompt": "^21>", "completion": "12$"}\n')
    start = make_tiny_checkpoint(tmp_path / "start", spread=0.3)
    words = ["--model", str(start), "--out", str(tmp_path / "warm"), "--data", str(data), "--steps", "2"]
    assert main(["sft", *words, "--examples", "4"]) == 0
    for text, problem in (('{"prompt": 1}\n', "line 1 is not"), ("", "holds no example")):
        data.write_text(text)
        with pytest.raises(LocalError, match=problem):
            read_examples(data)


def test_bad_words_are_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = str(make_tiny_checkpoint(tmp_path / "start"))
    out = ["--out", str(tmp_path / "warm")]
    assert main(["sft", "--model", start, *out]) == 1
    assert main(["sft", "--model", start, *out, "--task-set", "reasoning-gym?dataset=chain_sum"]) == 1
    assert main(["eval", "--model", start, "--task-set", "sort-digits?size=3", "--tasks", "4"]) == 1
    assert main(["filter", "--model", start, "--task-set", "sort-digits", "--low", "2", "--out", "x"]) == 1
    said = capsys.readouterr().err
    for part in ("--task-set or --data", "give examples in a file", "fewer than 4", "must be from 0 to 1"):
        assert part in said


def test_tasks_of_middling_difficulty_are_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored = [TaskScore(3, (0.0, 0.0)), TaskScore(5, (1.0, 0.0)), TaskScore(9, (1.0, 1.0))]
    assert choose_tasks(scored, low=0.1, high=0.9) == [5]
    start, out = make_tiny_checkpoint(tmp_path / "start"), tmp_path / "tasks.txt"
    words = ["filter", "--model", str(start), "--task-set", "sort-digits", "--tasks", "4", "--tokens-max", "2"]
    assert main([*words, "--low", "0", "--out", str(out), "--json"]) == 0
    assert out.read_text().split() == ["0", "1", "2", "3"]
    assert json.loads(capsys.readouterr().out) == {"tasks": 4, "chosen": 4}


def test_batches_are_sorted_by_length_and_even_where_a_state_would_carry_padding_on() -> None:
    lengths = [3, 1, 3, 2, 1]
    assert batch_by_length(lengths, 2, is_even=False) == [[1, 4], [3, 0], [2]]
    assert batch_by_length(lengths, 2, is_even=True) == [[1, 4], [3], [0, 2]]


def test_an_answer_ends_with_its_first_end_token() -> None:
    assert cut_at_eos([4, 7, 9, 7], frozenset({7})) == [4, 7]
    assert cut_at_eos([4, 5], frozenset({7})) == [4, 5]
