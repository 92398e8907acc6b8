"""TOPLOC laws: an honest proof always fits, and the compiled kernels compute what numpy does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.toploc_inputs import Bits, make_bits
from prime_protocol.constants import TOPLOC_PRIME
from prime_protocol.errors import RemoteError
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import build_proofs, parse_proofs
from prime_protocol.proofs.toploc_kernels import NativeToplocKernels, get_kernels, get_native_kernels
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.wire.ids import Digest

digests = st.binary(min_size=32, max_size=32).map(Digest)
distributions = st.sampled_from(
    ["gaussian", "heavy", "massive", "tied", "level", "zeros", "extreme", "uniform", "falling"]
)


@st.composite
def activations(draw: st.DrawFn, names: st.SearchStrategy[str] = distributions) -> Bits:
    tokens, hidden = draw(st.integers(1, 70)), draw(st.integers(16, 300))
    return make_bits(draw(names), draw(st.integers(0, 2**64 - 1)), tokens, hidden)


@settings(deadline=None, max_examples=60)
@given(activations(), digests)
def test_an_honest_proof_survives_the_wire_and_fits_exactly(bits: Bits, seed: Digest) -> None:
    built = build_proofs(bits)
    tokens, hidden = bits.shape
    parsed = parse_proofs(built.blob, tokens=tokens, hidden=hidden)
    assert parsed == built
    for report in verify_proofs(parsed, bits, seed=seed):
        assert report.exponent_mismatches == report.sign_mismatches == report.collisions == 0
        assert report.mantissa_error_sum == report.mantissa_error_median == 0


@settings(deadline=None, max_examples=40)
@given(activations(st.sampled_from(["gaussian", "heavy", "massive", "uniform"])), digests)
def test_an_honest_proof_of_varied_activations_has_no_fault(bits: Bits, seed: Digest) -> None:
    assert find_faults(verify_proofs(build_proofs(bits), bits, seed=seed), ToplocThresholds()) == []


@settings(deadline=None, max_examples=40)
@given(activations(), activations(), digests)
def test_every_kernel_builds_the_same_bytes_and_sees_the_same_numbers(bits: Bits, other: Bits, seed: Digest) -> None:
    plain = build_proofs(bits, toploc_plain)
    mine = np.resize(other, bits.shape)
    numbers = verify_proofs(plain, mine, seed=seed, kernels=toploc_plain)
    compiled = get_native_kernels()
    narrow = compiled and NativeToplocKernels(compiled.selection, compiled.field, wide=False)
    for kernels in filter(None, (compiled, narrow)):
        assert build_proofs(bits, kernels) == plain
        assert verify_proofs(plain, mine, seed=seed, kernels=kernels) == numbers


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=128, unique=True))
def test_the_polynomial_passes_through_its_points_under_the_largest_modulus(indices: list[int]) -> None:
    values = np.array([[index * 40_503 % TOPLOC_PRIME for index in indices]], dtype=np.uint16)
    points = np.array([indices], dtype=np.uint32)
    moduli, coefficients = get_kernels().interpolate(points, values)
    modulus = int(moduli[0])
    for larger in range(modulus + 1, TOPLOC_PRIME + 1):
        assert len({index % larger for index in indices}) < len(indices)
    assert get_kernels().evaluate(coefficients, points % np.uint32(modulus)).tolist() == values.tolist()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=800), st.integers(-5, 100), st.integers(16, 200))
def test_any_bytes_for_any_completion_are_proofs_or_the_peers_mistake(blob: bytes, tokens: int, hidden: int) -> None:
    try:
        proofs = parse_proofs(blob, tokens=tokens, hidden=hidden)
    except RemoteError:
        return
    assert proofs.blob == blob
