"""What does a rollout file cost to write, read strictly and hash? Against pyarrow reading the same bytes."""

import io

import numpy as np
import pyarrow.parquet as pq
from benchmark import BenchmarkParser, print_result, take_turns

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

SAMPLES, TOKENS_MAX, VOCAB_SIZE = 16, 8000, 150_000


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


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--slots", 64, 1)
    parser.add_size("--rounds", 3, 1)
    args = parser.parse()
    dice = np.random.default_rng(0)
    rows = [rollout(number, dice) for number in range(args.slots * SAMPLES)]
    header = RolloutHeader(
        run=RunId("bench"), step=Step(1), checkpoint_root=Digest(bytes(32)), lease=1, node=NodeId(bytes(20))
    )
    limits = RolloutLimits(
        first_slot=Slot(0),
        slots=args.slots,
        samples_per_slot=SAMPLES,
        vocab_size=VOCAB_SIZE,
        prompt_tokens_max=1000,
        output_tokens_max=TOKENS_MAX,
    )
    data = write_rollouts(header, rows)
    file = read_rollouts(data, limits)
    works = {
        "write": lambda: write_rollouts(header, rows),
        "read strictly": lambda: read_rollouts(data, limits),
        "rollout root": lambda: compute_rollout_root(file),
        "pyarrow read, for comparison": lambda: pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(
            use_threads=False
        ),
    }
    timings = {name: min(times) * 1000 for name, times in take_turns(works, rounds=args.rounds).items()}
    print(f"{len(rows)} completions, {len(data) / 1e6:.1f} MB")
    for name, ms in timings.items():
        print(f"{name:32}{ms:8.0f} ms{len(data) / ms / 1000:8.0f} MB/s")
    print_result(read_ms=f"{timings['read strictly']:.0f}", root_ms=f"{timings['rollout root']:.0f}", bytes=len(data))


if __name__ == "__main__":
    main()
