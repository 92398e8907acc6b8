"""TRL's GRPO trainer, one optimizer step at a time: its own loss, its own micro-batches, its own optimizer.

    .oracle/trl/bin/python bench/trainer_trl.py MODEL BATCH ROWS

Only the generation is replaced, by the batch that all sides train with: padded as TRL pads what it has generated.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trainer_batch import (
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_NORM,
    DELTA,
    LEARNING_RATE,
    LENGTH_MAX,
    read_batch,
    read_peak_bytes,
    serve,
)
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def pad(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    tokens, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        tokens[number, place], mask[number, place] = torch.tensor(row), 1
    return tokens, mask


def make_trainer(model_folder: Path, rows: int, samples: int, folder: Path) -> GRPOTrainer:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(model_folder / "tokenizer.json"), eos_token="1", pad_token="0"
    )
    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=samples // rows,
        num_generations=8,
        max_completion_length=LENGTH_MAX,
        loss_type="dapo",
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        delta=DELTA,
        beta=0.0,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        max_grad_norm=CLIP_NORM,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        max_steps=1000,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32),
        reward_funcs=[lambda completions, **more: [0.0] * len(completions)],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * samples}),
        processing_class=tokenizer,
    )


def main() -> None:
    torch.set_num_threads(1)
    model_folder, batch, rows = Path(sys.argv[1]), read_batch(Path(sys.argv[2])), int(sys.argv[3])
    before_bytes = read_peak_bytes()
    samples = len(batch["outputs"])
    trainer = make_trainer(model_folder, rows, samples, Path(sys.argv[2]).parent / "trl")
    prompt_ids, prompt_mask = pad(batch["prompts"], left=True)
    completion_ids, completion_mask = pad(batch["outputs"], left=False)

    def generate(inputs: Any) -> dict[str, Any]:
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(batch["advantages"], dtype=torch.float32),
            "num_items_in_batch": completion_mask.sum(),
        }

    trainer._generate_and_score_completions = generate
    trainer.create_optimizer_and_scheduler(1000)
    model = trainer.model.train()
    trainer.current_gradient_accumulation_steps = samples // rows

    def step() -> dict[str, float]:
        loss = 0.0
        for _ in range(samples // rows):
            loss += float(trainer.training_step(model, {}, None))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        trainer.optimizer.step()
        model.zero_grad()
        return {"loss": loss, "gradient_norm": float(norm)}

    serve(step, before_bytes)


if __name__ == "__main__":
    main()
