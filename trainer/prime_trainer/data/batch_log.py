"""The batches of the last steps on disk, so that a step can be computed again from the one before, bit by bit. Rim.

A batch is on disk before the weights that it made are published. Its submissions are the step's lineage in the log;
their tokens, log-probs and advantages are here, so that computing a step again needs neither the network nor another
grading. A batch of 16 million tokens is 128 MB; the weights and moments of a 32B model are 393 GB.
"""

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest
from prime_trainer.checkpoints import DRAFT, disk_errors, fsync_path
from prime_trainer.data.packing import Sample
from prime_trainer.data.rollout_buffer import TrainingBatch

NAME = re.compile(r"step-(\d{8})\.npz")


class BatchLog:
    """A file per step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, batch: TrainingBatch) -> None:
        """Durable when it returns."""
        path = self._get_path(step)
        draft = path.with_name(path.name + DRAFT)
        with disk_errors(f"write {path}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **encode_batch(batch))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
            fsync_path(self.folder)

    def read(self, step: int) -> TrainingBatch | None:
        """None if it is not here, or damaged: the archive has a checksum of every member."""
        path = self._get_path(step)
        with disk_errors(f"read {path}"):
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    return decode_batch({name: arrays[name] for name in arrays.files})
            except FileNotFoundError:
                return None
            except (zipfile.BadZipFile, ValueError, KeyError, EOFError, RemoteError):
                return None

    def list_steps(self) -> list[int]:
        names = (NAME.fullmatch(path.name) for path in self.folder.glob("step-*"))
        return sorted(int(name[1]) for name in names if name)

    def read_lineage(self, after: int) -> dict[Digest, int]:
        """Submissions of the steps after `after`, as far as these are complete, and the step of each."""
        lineage: dict[Digest, int] = {}
        step = after + 1
        while (batch := self.read(step)) is not None:
            lineage |= dict.fromkeys(batch.submissions, step)
            step += 1
        return lineage

    def remove(self, *, before: int = 0, after: int | None = None) -> None:
        """Remove steps up to `before`, whose checkpoint is saved, or those after `after`, which no log will have."""
        with disk_errors(f"remove batches in {self.folder}"):
            for step in self.list_steps():
                if step <= before or (after is not None and step > after):
                    self._get_path(step).unlink()

    def _get_path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}.npz"


def encode_batch(batch: TrainingBatch) -> dict[str, NDArray[Any]]:
    samples = batch.samples

    def join(arrays: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype)

    return {
        "submissions": np.frombuffer(b"".join(bytes(name) for name in batch.submissions), np.uint8),
        "metrics": np.frombuffer(json.dumps(dict(batch.metrics)).encode(), np.uint8),
        "prompt_lengths": np.array([len(each.prompt_tokens) for each in samples], np.int64),
        "output_lengths": np.array([len(each.output_tokens) for each in samples], np.int64),
        "prompts": join([each.prompt_tokens for each in samples], np.int32),
        "outputs": join([each.output_tokens for each in samples], np.int32),
        "logprobs": join([each.sampled_logprobs for each in samples], np.float32),
        "advantages": np.array([each.advantage for each in samples], np.float64),
        "temperatures": np.array([each.temperature for each in samples], np.float64),
    }


def decode_batch(arrays: dict[str, NDArray[Any]]) -> TrainingBatch:
    def split(values: str, lengths: str) -> list[NDArray[Any]]:
        return np.split(arrays[values], np.cumsum(arrays[lengths])[:-1]) if len(arrays[lengths]) else []

    names = arrays["submissions"].tobytes()
    samples = tuple(
        Sample(prompt, output, logprobs, float(advantage), float(temperature))
        for prompt, output, logprobs, advantage, temperature in zip(
            split("prompts", "prompt_lengths"),
            split("outputs", "output_lengths"),
            split("logprobs", "output_lengths"),
            arrays["advantages"],
            arrays["temperatures"],
            strict=True,
        )
    )
    submissions = tuple(Digest(names[start : start + 32]) for start in range(0, len(names), 32))
    return TrainingBatch(submissions, samples, json.loads(arrays["metrics"].tobytes()))
