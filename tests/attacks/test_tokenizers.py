"""Every hostile tokenizer.json of the gallery ends its own process and nothing else."""

from pathlib import Path

import pytest

from prime_lab.attacks.catalog import (
    HOSTILE_TOKENIZER,
)
from prime_lab.attacks.tokenizer_attacks import HOSTILE_TOKENIZERS, attack_tokenizer, open_context


@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
async def test_a_hostile_tokenizer_is_an_error_of_its_own_process(name: str, tmp_path: Path) -> None:
    found = await attack_tokenizer(name, open_context(tmp_path / "model", HOSTILE_TOKENIZERS[name]()))
    assert found.is_as_listed(HOSTILE_TOKENIZER), found.reason


async def test_an_honest_tokenizer_is_not_taken_for_a_hostile_one(tmp_path: Path) -> None:
    found = await attack_tokenizer("honest", open_context(tmp_path / "model"))
    assert found.verdict is None
