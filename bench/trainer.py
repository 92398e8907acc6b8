"""Trained tokens per second against TRL's GRPO step, and against our own loop without packing. One thread, one model.

    python bench/trainer.py [--rounds 2]

All sides take the same optimizer step on the same completions of unequal length and must find the same loss and the
same gradient: 32 completions at a vocabulary of 4,096, and 16 at 151,936. They take turns in separate processes, so
other load on this machine affects all of them. Times are CPU seconds of one thread. TRL is tried with several sizes of
micro-batch, and its fastest counts. Its head is computed in chunks too; its Liger kernels need a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark import BenchmarkParser, print_result
from trainer_batch import (
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_NORM,
    DELTA,
    LEARNING_RATE,
    MODEL,
    REAL_VOCABULARY,
    SAMPLES,
    SMALL_VOCABULARY,
    make_batch,
    read_batch,
    read_peak_bytes,
    serve,
)

ROOT = Path(__file__).parents[1]
TRL_PYTHON = ROOT / ".oracle/trl/bin/python"
TRL_ROWS = (2, 4, 8)
SMOKE_SAMPLES = 4
PACK_TOKENS = 1024
"""Less than what TRL's micro-batches of 4 rows have, padding included, so that it needs no more memory than with 2."""


# --- Our sides --------------------------------------------------------------------------------------------------------


def run_side(folder: Path, batch_path: Path, *, is_packed: bool) -> None:
    torch.set_num_threads(1)
    from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
    from prime_trainer.data.packing import PackLayout, Sample, make_pack
    from prime_trainer.model.distributed import RankGroup
    from prime_trainer.model.optimizer import GradientGuard, make_optimizer
    from prime_trainer.model.policy import PolicyModel
    from prime_trainer.train import Learner

    batch = read_batch(batch_path)
    before_bytes = read_peak_bytes()
    policy = PolicyModel.load(folder)
    policy.layout = PackLayout.PACKED if is_packed else PackLayout.SINGLE
    schedule = OptimizerConfig(
        learning_rate=LEARNING_RATE, warmup_steps=0, weight_decay=0.0, clip_norm=CLIP_NORM, beta2=0.999
    )
    learner = Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier),
        ranks=RankGroup(),
        loss=LossConfig(clip_low=CLIP_LOW, clip_high=CLIP_HIGH, delta=DELTA, correct=False),
        batch=BatchConfig(pack_tokens=PACK_TOKENS),
        schedule=schedule,
    )
    samples = [
        Sample(
            np.array(prompt, np.int32), np.array(output, np.int32), np.zeros(len(output), np.float32), advantage, 1.0
        )
        for prompt, output, advantage in zip(batch["prompts"], batch["outputs"], batch["advantages"], strict=True)
    ]
    assert make_pack(samples[:1]).trained_tokens == len(batch["outputs"][0])

    def step() -> dict[str, float]:
        facts = learner.train_step(samples, 1)
        return {"loss": facts["loss"], "gradient_norm": facts["gradient_norm"]}

    serve(step, before_bytes)


# --- The comparison ---------------------------------------------------------------------------------------------------


class Side:
    """A process that takes steps."""

    def __init__(self, name: str, *words: str) -> None:
        self.name = name
        self.facts: list[dict[str, float]] = []
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT / "bench",
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def step(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                self.facts.append(json.loads(line))
                return self.facts[-1]
        raise SystemExit(f"{self.name} ended without an answer; run its command by hand: {self._process.args}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def tokens_per_s(self, tokens: int) -> float:
        """Of the best round; the first one is for warming up."""
        return tokens / min(each["cpu_s"] for each in self.facts[1:])

    @property
    def peak_bytes(self) -> float:
        return self.facts[-1]["peak_bytes"]


def make_model(folder: Path, vocabulary: int) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, **MODEL)).save_pretrained(folder)
    words = {str(number): number for number in range(vocabulary)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def start_sides(folder: Path, batch: Path, trl_rows: Sequence[int]) -> dict[str, Side]:
    ours = [sys.executable, str(Path(__file__).resolve()), "--model", str(folder), "--batch", str(batch)]
    theirs = [str(TRL_PYTHON), "trainer_trl.py", str(folder), str(batch)]
    return {
        "packed": Side("packed", *ours, "--side", "packed"),
        "alone": Side("alone", *ours, "--side", "alone"),
        **{f"trl {rows} rows": Side(f"trl {rows} rows", *theirs, str(rows)) for rows in trl_rows},
    }


def check_same(sides: dict[str, Side]) -> None:
    wanted = sides["packed"].facts[0]
    for side in sides.values():
        for name in ("loss", "gradient_norm"):
            found = side.facts[0][name]
            assert abs(found - wanted[name]) <= 1e-3 * abs(wanted[name]) + 1e-6, (side.name, name, found, wanted[name])


def compare(vocabulary: int, rounds: int, trl_rows: Sequence[int]) -> dict[str, float]:
    """Ratios of this vocabulary by name."""
    with tempfile.TemporaryDirectory(prefix="prime-trainer-") as name:
        folder, batch_path = Path(name) / "model", Path(name) / "batch.json"
        make_model(folder, vocabulary)
        batch = make_batch(0, vocabulary, SAMPLES[vocabulary] if trl_rows else SMOKE_SAMPLES)
        batch_path.write_text(json.dumps(batch))
        lengths = [len(output) for output in batch["outputs"]]
        tokens = sum(lengths)
        print(
            f"vocabulary {vocabulary}: {len(lengths)} completions of {min(lengths)} to {max(lengths)} tokens, "
            f"{tokens} in all"
        )
        sides = start_sides(folder, batch_path, trl_rows)
        try:
            for _ in range(rounds + 1):
                for side in sides.values():
                    side.step()
        finally:
            for side in sides.values():
                side.close()
    check_same(sides)
    return report(sides, tokens)


def report(sides: dict[str, Side], tokens: int) -> dict[str, float]:
    print(f"{'':<14}{'tokens/s':>10}{'peak MB':>10}{'loss':>12}{'gradient':>12}")
    for side in sides.values():
        first: dict[str, Any] = side.facts[0]
        print(
            f"{side.name:<14}{side.tokens_per_s(tokens):>10.0f}{side.peak_bytes / 1e6:>10.0f}"
            f"{first['loss']:>12.5f}{first['gradient_norm']:>12.5f}",
            flush=True,
        )
    packed, alone = sides["packed"], sides["alone"]
    figures = {"vs_unpacked": packed.tokens_per_s(tokens) / alone.tokens_per_s(tokens)}
    peers = [side for name, side in sides.items() if name.startswith("trl")]
    if peers:
        fastest = max(peers, key=lambda side: side.tokens_per_s(tokens))
        figures["vs_trl"] = packed.tokens_per_s(tokens) / fastest.tokens_per_s(tokens)
        figures["memory_vs_trl"] = packed.peak_bytes / fastest.peak_bytes
    return figures


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 2, 1)
    parser.add_argument("--side", choices=("packed", "alone"), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse()
    if args.side:
        run_side(args.model, args.batch, is_packed=args.side == "packed")
    else:
        # A smoke run leaves TRL out, which takes longer to import than the steps take.
        if not TRL_PYTHON.exists() and not args.smoke:
            raise SystemExit("TRL is missing: sh tests/oracle/install_trl.sh")
        rows = TRL_ROWS if not args.smoke else ()
        figures = compare(SMALL_VOCABULARY, args.rounds, rows)
        real = compare(REAL_VOCABULARY, 1, rows)
        figures |= {f"real_vocab_{name}": value for name, value in real.items() if name != "vs_unpacked"}
        print_result(**{name: f"{value:.2f}" for name, value in figures.items()})


if __name__ == "__main__":
    main()
