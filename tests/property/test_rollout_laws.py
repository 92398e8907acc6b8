"""Laws of the rollout file: it reads back, it has one encoding, and pyarrow agrees."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.rollouts.file import decode_list_lengths, read_rollouts, write_rollouts
from prime_protocol.rollouts.layout import encode_levels
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
    compute_proofs_bytes,
    compute_rollout_root,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step
from support.rollout_examples import pyarrow_table

UINT64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    RolloutHeader,
    run=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True).map(RunId),
    step=UINT64.map(Step),
    checkpoint_root=st.binary(min_size=32, max_size=32).map(Digest),
    lease=UINT64,
    node=st.binary(min_size=20, max_size=20).map(NodeId),
)


@st.composite
def rows_of(draw: st.DrawFn, slots: int, samples: int) -> list[Rollout]:
    rows = []
    for number in range(slots * samples):
        output, prompt = draw(st.integers(1, 70)), draw(st.integers(1, 5))
        dice = np.random.default_rng(draw(st.integers(0, 2**32)))
        rows.append(
            Rollout(
                slot=Slot(5 + number // samples),
                sample=Sample(number % samples),
                task=draw(st.integers(0, 2**40 - 1)),
                temperature=draw(st.just(0.0) | st.floats(0.001, 100.0)),
                target_length=draw(st.none() | st.integers(1, 2**20)),
                finish=draw(st.sampled_from(FinishReason)),
                prompt_tokens=dice.integers(0, 2**20, prompt, dtype=np.int32),
                output_tokens=dice.integers(0, 2**20, output, dtype=np.int32),
                output_logprobs=-dice.exponential(size=output).astype(np.float32),
                proofs=dice.bytes(compute_proofs_bytes(output)),
            )
        )
    return rows


@settings(deadline=None, max_examples=60)
@given(st.data(), HEADERS, st.integers(1, 4), st.integers(1, 3))
def test_a_file_reads_back_to_the_same_bytes_and_root(
    data: st.DataObject, header: RolloutHeader, slots: int, samples: int
) -> None:
    rows = data.draw(rows_of(slots, samples))
    encoded = write_rollouts(header, rows)
    limits = RolloutLimits(
        first_slot=Slot(5),
        slots=slots,
        samples_per_slot=samples,
        vocab_size=2**20,
        prompt_tokens_max=5,
        output_tokens_max=70,
    )
    file = read_rollouts(encoded, limits)
    assert file.header == header
    assert write_rollouts(file.header, file.rows) == encoded
    assert compute_rollout_root(file) == compute_rollout_root(RolloutFile(header, tuple(rows)))
    table = pyarrow_table(encoded)
    assert table["output_tokens"].to_pylist() == [row.output_tokens.tolist() for row in rows]
    assert table["temperature"].to_pylist() == [row.temperature for row in rows]
    assert table["proofs"].to_pylist() == [row.proofs for row in rows]


@settings(deadline=None)
@given(st.lists(st.integers(1, 3) | st.integers(1, 2**30), min_size=1, max_size=50))
def test_levels_give_the_lengths_back(lengths: list[int]) -> None:
    assert decode_list_lengths("x", memoryview(encode_levels(lengths)), len(lengths)) == lengths
