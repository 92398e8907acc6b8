"""What does a rollout file cost to write, read strictly and hash? Against pyarrow reading the same bytes."""

import io
import time
from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq

from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutHeader,
    RolloutLimits,
    compute_proofs_bytes,
    compute_rollout_root,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step

SLOTS, SAMPLES, TOKENS_MAX, VOCAB_SIZE = 64, 16, 8000, 150_000


def rollout(number: int, dice: np.random.Generator) -> Rollout:
    tokens = int(dice.integers(1, TOKENS_MAX))
    return Rollout(
        slot=Slot(number // SAMPLES),
        sample=Sample(number % SAMPLES),
        task=number,
        temperature=1.0,
        target_length=None,
        finish=FinishReason.EOS,
        prompt_tokens=dice.integers(0, VOCAB_SIZE, 200, dtype=np.int32),
        output_tokens=dice.integers(0, VOCAB_SIZE, tokens, dtype=np.int32),
        output_logprobs=-dice.random(tokens, dtype=np.float32),
        proofs=dice.bytes(compute_proofs_bytes(tokens)),
    )


def pyarrow_read(data: bytes) -> object:
    return pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)


def best_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def main() -> None:
    dice = np.random.default_rng(0)
    rows = [rollout(number, dice) for number in range(SLOTS * SAMPLES)]
    header = RolloutHeader(
        run=RunId("bench"), step=Step(1), checkpoint_root=Digest(bytes(32)), lease=1, node=NodeId(bytes(20))
    )
    limits = RolloutLimits(
        first_slot=Slot(0),
        slots=SLOTS,
        samples_per_slot=SAMPLES,
        vocab_size=VOCAB_SIZE,
        prompt_tokens_max=1000,
        output_tokens_max=TOKENS_MAX,
    )
    data = write_rollouts(header, rows)
    file = read_rollouts(data, limits)
    timings = {
        "write": best_ms(lambda: write_rollouts(header, rows)),
        "read strictly": best_ms(lambda: read_rollouts(data, limits)),
        "rollout root": best_ms(lambda: compute_rollout_root(file)),
        "pyarrow read, for comparison": best_ms(
            lambda: pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
        ),
    }
    print(f"{len(rows)} completions, {len(data) / 1e6:.1f} MB")
    for name, ms in timings.items():
        print(f"{name:32}{ms:8.0f} ms{len(data) / ms / 1000:8.0f} MB/s")
    print(f"RESULT read_ms={timings['read strictly']:.0f} root_ms={timings['rollout root']:.0f} bytes={len(data)}")


if __name__ == "__main__":
    main()
