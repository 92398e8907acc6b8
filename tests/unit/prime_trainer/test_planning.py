"""Plans of a rank's memory: what is traced, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from prime_protocol.errors import LocalError
from prime_trainer import cli
from prime_trainer.planning import MemoryWishes, get_usable_bytes, judge_memory, open_config, plan_memory

SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
IS_SLOW = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="traces deep models: SLOW_TESTS=1")


def make_config(**changes: Any) -> Any:
    return AutoConfig.for_model("qwen2", **{**SHAPE, **changes})


@IS_SLOW
def test_a_model_of_32_billion_parameters_fits_eight_cards_with_stated_switches() -> None:
    """16,384 tokens, 80 GB. Its parts are those of 32.76 billion parameters over eight ranks."""
    memory = 80 * 10**9
    verdict = judge_memory(open_config("Qwen/QwQ-32B"), MemoryWishes(ranks=8, tokens=16_384), memory)
    assert not verdict.fits
    assert verdict.plan.parts["weights"] == pytest.approx(4 * 32.76e9 / 8, rel=1e-3)
    assert verdict.plan.parts["gradients"] == verdict.plan.parts["weights"]
    assert verdict.plan.parts["moments"] == pytest.approx(8 * 32.76e9 / 8, rel=1e-3)
    assert set(verdict.switches) <= {"offload_activations = true", "optimizer.moments = bfloat16"}
    assert verdict.switched is not None
    assert verdict.switched.total_bytes <= get_usable_bytes(memory)


@IS_SLOW
def test_layers_on_a_straight_line_are_what_a_whole_trace_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    config, wishes = make_config(num_hidden_layers=9), MemoryWishes(ranks=4, tokens=512)
    line = plan_memory(config, wishes)
    monkeypatch.setattr("prime_trainer.planning.DEPTHS", (4, 5, 9))
    assert line.total_bytes == pytest.approx(plan_memory(config, wishes).total_bytes, rel=0.005)


def test_ranks_that_share_a_pack_have_half_the_activations() -> None:
    config = make_config(num_hidden_layers=1)
    alone = plan_memory(config, MemoryWishes(ranks=4, tokens=4096))
    shared = plan_memory(config, MemoryWishes(ranks=4, tokens=4096, context=2))
    assert shared.parts["activations"] < 0.7 * alone.parts["activations"]
    with pytest.raises(LocalError, match="4 ranks cannot be 1 replicas with 3 ranks a pack"):
        plan_memory(config, MemoryWishes(ranks=4, tokens=64, context=3))


def test_command_refuses_what_cannot_fit_and_names_a_switch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_config(num_hidden_layers=1).save_pretrained(tmp_path)
    words = ["plan", str(tmp_path), "--gpus", "2", "--tokens", "512"]
    assert cli.main([*words, "--memory", "80GB", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total_bytes"]
    assert cli.main([*words, "--memory", f"{total + 2 * 10**9}B"]) == 5
    assert "it would with optimizer.moments = bfloat16" in capsys.readouterr().out
    assert cli.main([*words, "--context", "3"]) == 1
    assert cli.main([*words, "--memory", "2 horses"]) == 1
    assert cli.main(["plan", "no-such-model"]) == 1
