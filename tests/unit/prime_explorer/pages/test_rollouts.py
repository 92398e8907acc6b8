"""Rollouts as people see them: text by the run's own tokenizer, graded where that is safe, and bounded."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prime_explorer.config import ROLLOUTS_SHOWN
from prime_explorer.index.fold import encode_json
from prime_explorer.pages.rollouts import find_tokenizer, read_rollout_views
from prime_protocol.rollouts.file import write_rollouts
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.strict_json import parse_json
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import EOS_TOKEN, VOCABULARY_CHARACTERS, make_tiny_checkpoint
from support.ledger_network import TERMS
from support.rollout_examples import HEADER, LIMITS, honest_file, rollout, rollouts

LEASE = {"first_slot": LIMITS.first_slot, "slots": LIMITS.slots, "samples": LIMITS.samples_per_slot}


def terms(**changes: Any) -> dict[str, Any]:
    limits = {"vocabulary": 1000, "prompt_tokens_max": 12, "output_tokens_max": 70, **changes}
    return {**parse_json("terms", encode_json(asdict(TERMS)).encode()), **limits}  # type: ignore[dict-item]


def test_without_a_tokenizer_token_numbers_are_shown() -> None:
    shown = read_rollout_views(honest_file(), terms(), LEASE, 0, None)
    assert (shown.total, len(shown.rows), shown.is_text, shown.problem) == (6, ROLLOUTS_SHOWN, False, "")
    first = rollouts()[0]
    assert shown.rows[0].completion == " ".join(map(str, first.output_tokens))
    assert [row.proofs for row in shown.rows] == [1, 1, 1, 2, 3, 1]
    assert all(row.reward is None for row in shown.rows)
    assert [row.slot for row in read_rollout_views(honest_file(), terms(), LEASE, 4, None).rows] == [12, 12]
    assert read_rollout_views(honest_file(), terms(), LEASE, 99, None).rows == ()


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    return ModelFiles.open(make_tiny_checkpoint(tmp_path / "model", vocabulary=64))


def test_with_the_runs_own_tokenizer_texts_are_shown_and_graded(model: ModelFiles) -> None:
    bound = terms(model_files=str(model.digest), task_set="sort-digits")
    assert find_tokenizer([model], bound) is model
    assert find_tokenizer([model], terms()) is None, "a run that binds no model may have any"
    assert find_tokenizer([], bound) is None
    family = open_family(TaskSetSpec.parse("sort-digits"))
    rows = []
    for row in rollouts():
        answer = family.make(row.task).key + ("" if row.slot == 10 else "0")
        tokens = np.array([*(VOCABULARY_CHARACTERS.index(letter) for letter in answer), EOS_TOKEN], dtype=np.int32)
        made = rollout(row.slot, row.sample, prompt=1, output=len(tokens))
        rows.append(type(row)(**{**{name: getattr(made, name) for name in row.__slots__}, "output_tokens": tokens}))
    shown = read_rollout_views(write_rollouts(HEADER, rows), bound, LEASE, 0, model)
    assert shown.is_text
    assert [(row.reward == 1.0, row.grade) for row in shown.rows][:3] == [(True, "right")] * 2 + [(False, "wrong")]
    assert shown.rows[0].completion == family.make(rows[0].task).key + "$"
    others = read_rollout_views(honest_file(), terms(task_set="math-answer?file=0x" + "11" * 32), LEASE, 0, model)
    assert all(row.reward is None for row in others.rows), "what needs walls or a problem file is not graded here"


def test_a_file_that_does_not_pass_the_strict_reader_is_not_shown() -> None:
    for data in (b"", honest_file()[:-1], honest_file()):
        shown = read_rollout_views(data, terms(vocabulary=10), LEASE, 0, None)
        assert "does not pass the strict reader" in shown.problem
        assert shown.rows == ()
