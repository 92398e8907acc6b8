"""TOPLOC vectors made from the public package by tests/oracle/make_toploc_vectors.py: same bytes, same numbers."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.toploc_inputs import disturb, make_bits
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.toploc import build_proofs, parse_proofs
from prime_protocol.proofs.toploc_kernels import get_kernels
from prime_protocol.proofs.toploc_verify import verify_proofs
from prime_protocol.wire.ids import Digest

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "toploc.json").read_text())
SEED = Digest(bytes(32))


def name(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("distribution", "name", "seed", "tokens", "hidden") if key in case)


def test_the_vectors_cover_ten_thousand_chunks_and_a_hundred_other_moduli() -> None:
    hashed, tails = VECTORS["hashed"], VECTORS["tails"]
    assert sum(case["chunks"] for case in hashed) + sum(case["completions"] for case in tails) >= 10_000
    assert sum(case["other_moduli"] for case in hashed) >= 100


@pytest.mark.parametrize("case", VECTORS["hashed"], ids=name)
def test_proofs_are_byte_for_byte_those_of_the_public_package(case: dict[str, Any]) -> None:
    if get_kernels() is toploc_plain and case["tokens"] * case["hidden"] > 300_000:
        pytest.skip("too slow without the compiled kernels")
    proofs = build_proofs(make_bits(case["distribution"], case["seed"], case["tokens"], case["hidden"]))
    assert proofs.layout.chunks == case["chunks"]
    assert sha256(proofs.blob).hexdigest() == case["sha256"]


@pytest.mark.parametrize("case", VECTORS["tails"], ids=name)
def test_short_completions_are_byte_for_byte_those_of_the_public_package(case: dict[str, Any]) -> None:
    bits = make_bits(case["distribution"], case["seed"], case["completions"], case["hidden"])
    blobs = [build_proofs(row[None]).blob for row in bits]
    assert sha256(b"".join(blobs)).hexdigest() == case["sha256"]


@pytest.mark.parametrize("case", VECTORS["whole"], ids=name)
def test_written_out_proofs_are_reproduced_with_and_without_the_compiled_kernels(case: dict[str, Any]) -> None:
    bits = np.frombuffer(bytes.fromhex(case["bits"]), dtype=">u2").astype(np.uint16)
    bits = bits.reshape(case["tokens"], case["hidden"])
    expected = parse_proofs(bytes.fromhex(case["proofs"]), tokens=case["tokens"], hidden=case["hidden"])
    assert build_proofs(bits) == expected
    assert build_proofs(bits, toploc_plain) == expected


@pytest.mark.parametrize("case", VECTORS["verified"], ids=name)
def test_verification_gives_the_numbers_of_the_public_package(case: dict[str, Any]) -> None:
    mine = make_bits(case["distribution"], case["seed"], case["tokens"], case["hidden"])
    theirs = disturb(mine, case["noise_seed"], case["reach"])
    reports = verify_proofs(build_proofs(mine), theirs, seed=SEED)
    numbers = [[r.exponent_mismatches, r.mantissa_error_mean, float(r.mantissa_error_median)] for r in reports]
    assert numbers == case["numbers"]
