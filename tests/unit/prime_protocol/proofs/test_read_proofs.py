"""Looks agree between readers of the same file, and cannot be guessed, copied or left out."""

from hashlib import sha256
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_protocol.constants import READ_BLOCK_TOKENS, READ_PROOF_BYTES, READ_PROOF_ERROR_MAX, READ_PROOF_PROBES
from prime_protocol.proofs.read_proofs import (
    NO_READ_PROOFS,
    BlockProjections,
    ReadProofRequest,
    ReadProofSum,
    compute_projection,
    compute_read_proof_error,
    draw_probes,
    encode_read_proof,
    is_read_proof_refuted,
    split_blocks,
)
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.wire.ids import Digest, NodeId

HIDDEN = 64
LENGTHS = (5, 1, 40, 17)


def submission(name: str = "file") -> Digest:
    return Digest(sha256(name.encode()).digest())


def node(name: str) -> NodeId:
    return NodeId(sha256(name.encode()).digest()[:20])


def make_states(seed: int = 1, *, noise: float = 0.0, common: float = 0.0) -> list[Bits]:
    """Hidden states of all rows; `common` is what all tokens share."""
    dice = np.random.default_rng(seed)
    exact = [dice.normal(common, 1.0, (length, HIDDEN)) for length in LENGTHS]
    other = np.random.default_rng(99)
    return [to_bits(row * (1 + other.normal(0.0, noise, row.shape))) for row in exact]


def to_bits(values: np.ndarray) -> Bits:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def look(*blocks: list[Bits], readers: tuple[NodeId, ...], name: str = "file") -> dict[NodeId, bytes]:
    sums = {reader: ReadProofSum() for reader in readers}
    for number, states in enumerate(blocks):
        request = ReadProofRequest(submission(name), readers, number)
        looker = BlockProjections(request, [len(row) for row in states])
        for row, bits in reversed(list(enumerate(states))):
            looker.add_row(row, bits)
        for reader, projections in looker.finish().items():
            sums[reader].add(projections)
    return {reader: each.encode() for reader, each in sums.items()}


ANN, BOB = node("ann"), node("bob")


def test_everybody_who_reads_the_file_finds_the_same_looks() -> None:
    states = make_states()
    found = look(states, readers=(ANN, BOB))
    assert found == {**look(states, readers=(BOB,)), **look(states, readers=(ANN,))}
    assert {len(looks) for looks in found.values()} == {READ_PROOF_BYTES}


@pytest.mark.parametrize("noise", [0.004, 0.03, 0.1])
def test_noise_of_honest_machines_is_far_from_refuting(noise: float) -> None:
    said, found = look(make_states(noise=noise), readers=(ANN,)), look(make_states(), readers=(ANN,))
    assert 0 < compute_read_proof_error(said[ANN], found[ANN]) < READ_PROOF_ERROR_MAX
    assert not is_read_proof_refuted(said[ANN], found[ANN])


@given(st.integers(0, 2**32), st.binary(min_size=READ_PROOF_BYTES, max_size=READ_PROOF_BYTES))
def test_guessed_looks_are_refuted(seed: int, guess: bytes) -> None:
    found = look(make_states(seed), readers=(ANN,))[ANN]
    likely = encode_read_proof(np.random.default_rng(seed + 1).normal(0.0, 1.0, READ_PROOF_PROBES))
    for said in (guess, likely, bytes(READ_PROOF_BYTES)):
        assert is_read_proof_refuted(said, found)


@given(st.integers(0, 2**32))
def test_the_looks_of_another_reader_or_another_file_are_refuted(seed: int) -> None:
    states = make_states(seed)
    found = look(states, readers=(ANN, BOB))
    assert is_read_proof_refuted(found[BOB], found[ANN])
    assert is_read_proof_refuted(look(states, readers=(ANN,), name="other")[ANN], found[ANN])
    assert is_read_proof_refuted(look(make_states(seed + 1), readers=(ANN,))[ANN], found[ANN])


def test_knowing_what_all_states_have_in_common_does_not_help() -> None:
    """Who has seen many states of a model knows their mean: here it is three quarters of each."""
    common = 3.0
    found = look(make_states(common=common), readers=(ANN,))[ANN]
    mean = [np.full((length, HIDDEN), common) for length in LENGTHS]
    guess = look([to_bits(row) for row in mean], readers=(ANN,))[ANN]
    assert guess == bytes(READ_PROOF_BYTES), "two places of the mean do not differ"
    assert compute_read_proof_error(guess, found) > 2 * READ_PROOF_ERROR_MAX


def test_looks_that_are_missing_are_refuted_where_the_file_has_some() -> None:
    found = look(make_states(), readers=(ANN,))[ANN]
    assert is_read_proof_refuted(b"", found)
    assert compute_read_proof_error(b"", found) == inf


def test_the_bound_is_the_root_mean_square_of_all() -> None:
    zeros = bytes(READ_PROOF_BYTES)
    assert not is_read_proof_refuted(encode_read_proof([READ_PROOF_ERROR_MAX] * READ_PROOF_PROBES), zeros)
    assert is_read_proof_refuted(encode_read_proof([READ_PROOF_ERROR_MAX + 0.002] * READ_PROOF_PROBES), zeros)
    assert not is_read_proof_refuted(
        encode_read_proof([READ_PROOF_ERROR_MAX * READ_PROOF_PROBES**0.5] + [0.0] * (READ_PROOF_PROBES - 1)), zeros
    )
    assert compute_read_proof_error(encode_read_proof([0.5] * READ_PROOF_PROBES), zeros) == 0.5


def test_one_token_has_nothing_to_be_compared_with() -> None:
    assert draw_probes(submission(), ANN, 0, [1]) == []
    assert look([make_states()[1]], readers=(ANN,)) == {ANN: b""}


def test_nobody_asks_for_nothing() -> None:
    assert BlockProjections(NO_READ_PROOFS, LENGTHS).finish() == {}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 1))
def test_glances_are_at_two_tokens_that_the_file_has(lengths: list[int]) -> None:
    for glance in draw_probes(submission(), ANN, 3, lengths):
        assert glance.here != glance.there
        for row, token in (glance.here, glance.there):
            assert 0 <= token < lengths[row]


def test_every_token_can_be_looked_at() -> None:
    seen = {
        place
        for number in range(200)
        for glance in draw_probes(submission(), node(str(number)), 0, LENGTHS)
        for place in (glance.here, glance.there)
    }
    assert seen == {(row, token) for row, length in enumerate(LENGTHS) for token in range(length)}


def test_states_that_do_not_differ_or_are_not_finite_give_nothing() -> None:
    state, hole = make_states()[0][0], np.full(HIDDEN, 0x7F80, np.uint16)
    assert compute_projection(state, state, submission()) == 0.0
    assert compute_projection(state, hole, submission()) == 0.0


def test_a_look_does_not_depend_on_the_scale_of_the_states() -> None:
    here, there = make_states()[0][:2]
    twice = [(bits.astype(np.int32) + 0x80).astype(np.uint16) for bits in (here, there)]
    assert compute_projection(*twice, submission()) == pytest.approx(compute_projection(here, there, submission()))


def test_what_is_beyond_an_int16_is_cut() -> None:
    assert encode_read_proof([1000.0, -1000.0]) == b"\xff\x7f\x00\x80"


# --- Blocks ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(2, 2 * READ_BLOCK_TOKENS), min_size=1, max_size=40))
def test_blocks_are_all_rows_in_order_and_none_is_too_large(lengths: list[int]) -> None:
    blocks = split_blocks(lengths)
    assert [row for block in blocks for row in block] == list(range(len(lengths)))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        tokens = sum(lengths[row] for row in block)
        assert len(block) == 1 or tokens <= READ_BLOCK_TOKENS
        assert after is None or tokens + lengths[after.start] > READ_BLOCK_TOKENS, "and as few as that allows"


@pytest.mark.parametrize("read", range(1, 8))
def test_a_proof_is_of_exactly_the_blocks_that_were_read(read: int) -> None:
    """Also of a reader that says it has read one block more, or one less."""
    blocks = [make_states(seed) for seed in range(9)]
    said = look(*blocks[:read], readers=(ANN,))[ANN]
    noisy = look(*(make_states(seed, noise=0.03) for seed in range(read)), readers=(ANN,))[ANN]
    assert not is_read_proof_refuted(said, noisy)
    for other in (read - 1, read + 1):
        assert is_read_proof_refuted(said, look(*blocks[:other], readers=(ANN,))[ANN])


@pytest.mark.parametrize("count", [1, 4, 64])
def test_a_proof_of_many_blocks_is_as_large_and_as_noisy_as_one_of_one(count: int) -> None:
    exact = look(*(make_states(seed) for seed in range(count)), readers=(ANN, BOB))
    noisy = look(*(make_states(seed, noise=0.03) for seed in range(count)), readers=(ANN, BOB))
    for reader in (ANN, BOB):
        assert 0 < compute_read_proof_error(exact[reader], noisy[reader]) < READ_PROOF_ERROR_MAX / 4
        assert 0.5 < compute_read_proof_error(exact[reader], bytes(READ_PROOF_BYTES)) < 2


def test_a_reader_that_leaves_out_an_eighth_of_the_blocks_is_refuted() -> None:
    blocks = [make_states(seed) for seed in range(16)]
    found = look(*blocks, readers=(ANN,))[ANN]
    missing = [blocks[0], blocks[1], *(make_states(seed + 100) for seed in range(2)), *blocks[4:]]
    assert is_read_proof_refuted(look(*missing, readers=(ANN,))[ANN], found)


def test_a_block_without_two_output_tokens_adds_nothing() -> None:
    states, single = make_states(), [make_states()[1]]
    assert look(single, readers=(ANN,)) == {ANN: b""}
    alone = look(states, readers=(ANN,))[ANN]
    assert look(states, single, readers=(ANN,))[ANN] == alone
