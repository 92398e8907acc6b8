"""TOPLOC proofs: the layout of a completion, the bytes of a proof, and what the parser refuses."""

import numpy as np
import pytest
from numpy.typing import NDArray

from oracle.toploc_inputs import make_bits
from prime_protocol.constants import TOPLOC_PROOF_BYTES, TOPLOC_TOKENS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.toploc import (
    ProofLayout,
    ToplocProofs,
    build_chunk_proofs,
    build_proofs,
    parse_proofs,
    tensor_to_bits,
)
from prime_protocol.proofs.toploc_kernels import get_kernels

BITS = make_bits("gaussian", 1, 70, 64)
BLOB = build_proofs(BITS).blob


def with_word(blob: bytes, chunk: int, place: int, word: int) -> bytes:
    at = chunk * TOPLOC_PROOF_BYTES + 2 * place
    return blob[:at] + word.to_bytes(2, "big") + blob[at + 2 :]


@pytest.mark.parametrize(
    ("tokens", "hidden", "chunks", "size"),
    [
        (1, 4096, 1, 258),
        (32, 4096, 1, 258),
        (33, 4096, 2, 516),
        (4096, 4096, 128, 33_024),
        (33, 64, 2, 516),
        (1, 16, 1, 258),
    ],
)
def test_every_proof_has_258_bytes(tokens: int, hidden: int, chunks: int, size: int) -> None:
    layout = ProofLayout(tokens, hidden)
    assert (layout.chunks, layout.bytes) == (chunks, size)
    if tokens < 100:
        assert len(build_proofs(make_bits("gaussian", 2, tokens, hidden)).blob) == size


def test_a_modulus_comes_first_and_the_coefficients_follow_from_the_lowest() -> None:
    (moduli, coefficients), (tail_moduli, tail_coefficients) = build_proofs(BITS).get_polynomials()
    assert BLOB[:2] == int(moduli[0]).to_bytes(2, "big")
    assert BLOB[2:4] == int(coefficients[0, 0]).to_bytes(2, "big")
    assert BLOB[TOPLOC_PROOF_BYTES - 2 : TOPLOC_PROOF_BYTES] == int(coefficients[0, 127]).to_bytes(2, "big")
    assert BLOB[-258:-256] == int(tail_moduli[0]).to_bytes(2, "big")
    assert BLOB[-2:] == int(tail_coefficients[0, -1]).to_bytes(2, "big")


def test_what_was_built_parses_to_the_same_value() -> None:
    assert parse_proofs(BLOB, tokens=70, hidden=64) == build_proofs(BITS)


def test_a_tail_with_fewer_than_128_values_leaves_the_highest_coefficients_zero() -> None:
    proofs = build_proofs(make_bits("gaussian", 3, 33, 64))
    words = proofs.get_words()
    assert words[1, 1:65].all()
    assert not words[1, 65:].any()
    filled = with_word(proofs.blob, 1, 1 + 100, 5)
    with pytest.raises(RemoteError, match="is 5, must be 0 as the chunk has 64 values") as caught:
        parse_proofs(filled, tokens=33, hidden=64)
    assert caught.value.field == "proofs[1].coefficients[100]"


def test_rows_that_are_not_adjacent_in_memory_give_the_same_proofs() -> None:
    spaced = np.zeros((140, 64), dtype=np.uint16)
    spaced[::2] = BITS
    assert build_proofs(spaced[::2]).blob == BLOB


@pytest.mark.parametrize("hidden", [64, 300])
def test_chunks_of_any_length_together_give_the_proofs_that_each_gives_alone(hidden: int) -> None:
    pages = make_bits("gaussian", 4, 6 * 32, hidden).reshape(6, 32, hidden)
    chunks = [(3, 32), (0, 1), (5, 31), (1, 32), (2, 1), (4, 27)]
    alone = [build_proofs(pages[page, :tokens]).blob for page, tokens in chunks]
    assert build_chunk_proofs(pages, chunks) == b"".join(alone)
    assert build_chunk_proofs(pages, chunks, toploc_plain) == b"".join(alone)


def test_a_chunk_among_others_that_is_not_finite_is_named() -> None:
    pages = make_bits("gaussian", 4, 3 * 32, 64).reshape(3, 32, 64).copy()
    pages[2, 9, 5] = 0x7F80
    assert len(build_chunk_proofs(pages, [(0, 32), (2, 9)])) == 2 * 258, (
        "what is behind the end of a chunk does not count"
    )
    with pytest.raises(LocalError, match="chunk 1 hold an infinity or NaN"):
        build_chunk_proofs(pages, [(0, 32), (2, 10)])


def test_a_tensor_gives_the_proofs_of_its_patterns() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(BITS).view(torch.bfloat16)
    assert build_proofs(tensor_to_bits(tensor)).blob == BLOB
    assert build_proofs(tensor_to_bits(tensor.float().to(torch.bfloat16).T.contiguous().T)).blob == BLOB
    with pytest.raises(LocalError, match="float32"):
        tensor_to_bits(tensor.float())


@pytest.mark.parametrize("pattern", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_an_infinity_or_nan_is_named_with_its_chunk(pattern: int) -> None:
    broken = BITS.copy()
    broken[40, 7] = pattern
    with pytest.raises(LocalError, match="chunk 1 hold an infinity or NaN"):
        build_proofs(broken)


@pytest.mark.parametrize(
    ("bits", "complaint"),
    [
        (BITS.astype(np.float32), "float32"),
        (BITS.reshape(-1), "1 axes"),
        (BITS[:0], "0 tokens"),
        (BITS[:, :15], "hidden size of 15"),
        (np.zeros((1, 2**16 + 1), dtype=np.uint16), "hidden size of 65537"),
    ],
)
def test_hidden_states_of_another_shape_or_type_are_our_mistake(bits: NDArray[np.uint16], complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        build_proofs(bits)


class NoModulus:
    """Kernels that never find one, as no real activations make them."""

    select = staticmethod(toploc_plain.select)
    evaluate = staticmethod(toploc_plain.evaluate)
    pick_free = staticmethod(toploc_plain.pick_free)

    def interpolate(self, indices: toploc_plain.Points, values: toploc_plain.Bits) -> tuple[toploc_plain.Bits, ...]:
        moduli, coefficients = toploc_plain.interpolate(indices, values)
        moduli[1:] = 0
        return moduli, coefficients


def test_a_chunk_without_a_modulus_is_named() -> None:
    with pytest.raises(LocalError, match=r"no modulus .* chunk 1 "):
        build_proofs(BITS, NoModulus())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "blob", [b"", BLOB[:-1], BLOB[:-2], BLOB[:-258], BLOB + b"\0", BLOB + b"\0\0", BLOB + BLOB[:258]]
)
def test_only_the_exact_length_is_accepted(blob: bytes) -> None:
    with pytest.raises(RemoteError, match=r"bytes, expected 774 for 70 tokens in 3 chunks") as caught:
        parse_proofs(blob, tokens=70, hidden=64)
    assert caught.value.field == "proofs"


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("modulus", [0, 1, 32_767, 65_498, 65_535])
def test_a_modulus_out_of_range_is_refused_and_named(chunk: int, modulus: int) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_proofs(with_word(BLOB, chunk, 0, modulus), tokens=70, hidden=64)
    assert caught.value.field == f"proofs[{chunk}].modulus"
    assert str(modulus) in caught.value.problem


@pytest.mark.parametrize("modulus", [32_768, 65_497])
def test_the_smallest_and_the_largest_modulus_are_accepted(modulus: int) -> None:
    assert isinstance(parse_proofs(with_word(BLOB, 1, 0, modulus), tokens=70, hidden=64), ToplocProofs)


@pytest.mark.parametrize(("chunk", "place"), [(0, 0), (1, 5), (2, 127)])
@pytest.mark.parametrize("coefficient", [65_497, 65_535])
def test_a_coefficient_outside_the_field_is_refused_and_named(chunk: int, place: int, coefficient: int) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_proofs(with_word(BLOB, chunk, 1 + place, coefficient), tokens=70, hidden=64)
    assert caught.value.field == f"proofs[{chunk}].coefficients[{place}]"


@pytest.mark.parametrize("tokens", [-1, 0, TOPLOC_TOKENS_MAX + 1])
def test_a_token_count_out_of_range_is_the_peers_mistake(tokens: int) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_proofs(BLOB, tokens=tokens, hidden=64)
    assert caught.value.field == "tokens"


def test_the_fastest_kernels_are_chosen_once() -> None:
    assert get_kernels() is get_kernels()
