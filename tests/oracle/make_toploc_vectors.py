"""Write tests/vectors/toploc.json from the public toploc package. Run inside .oracle/, see build_toploc.sh.

    PYTHONPATH=protocol:tests .oracle/bin/python tests/oracle/make_toploc_vectors.py

Inputs are named by distribution and seed (toploc_inputs.py); outputs are the package's. Only the definition of a tail
with fewer than 128 values is ours: there the package gives null proofs, so its interpolation is called on all of them
and the missing coefficients are zero.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from toploc import ProofPoly, build_proofs_bytes, verify_proofs_bytes

from oracle.toploc_inputs import Bits, disturb, make_bits

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "toploc.json"
CHUNK, K = 32, 128

# Tokens and hidden size per distribution. The last tokens make short tails; 255 and 256 stand on either side of where
# torch changes its way of selecting (128 * 64 values), 2047 and up have indices beyond the prime.
SHAPES = [
    (40 * 32 + 2, 64),
    (30 * 32 + 1, 160),
    (16 * 32 + 31, 255),
    (24 * 32 + 17, 256),
    (4 * 32 + 3, 896),
    (4 * 32 + 1, 2047),
    (6 * 32 + 5, 4096),
    (5 * 32 + 9, 5120),
]
COMMON = ["gaussian", "heavy", "massive", "tied", "uniform"]
RARE = ["level", "zeros", "extreme", "rising", "falling", "colliding"]
TAILS = 420
"""One-token completions per hidden size of TAIL_HIDDEN: many small selections by partition."""
TAIL_HIDDEN = [128, 129, 191, 576, 1024]


def to_tensor(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


def build(bits: Bits) -> list[bytes]:
    return build_proofs_bytes(list(to_tensor(bits).unbind()), CHUNK, K, skip_prefill=True)


def digest(proofs: list[bytes]) -> str:
    return hashlib.sha256(b"".join(proofs)).hexdigest()


def hashed_cases() -> list[dict[str, Any]]:
    cases = []
    shapes = [(name, shape) for name in COMMON for shape in SHAPES * 2]
    shapes += [(name, shape) for name in RARE for shape in SHAPES]
    shapes += [
        (name, (12 * 32, hidden)) for name in ("gaussian", "heavy", "colliding") for hidden in (3072, 4096, 5120)
    ] * 3
    shapes += [("stubborn", (1, hidden)) for hidden in (129, 200, 500, 1000, 2000, 4096)]
    for seed, (name, (tokens, hidden)) in enumerate(shapes, start=1000):
        proofs = build(make_bits(name, seed, tokens, hidden))
        moduli = [int.from_bytes(proof[:2], "big") for proof in proofs]
        cases.append(
            {
                "distribution": name,
                "seed": seed,
                "tokens": tokens,
                "hidden": hidden,
                "chunks": len(proofs),
                "other_moduli": sum(modulus != 65_497 for modulus in moduli),
                "sha256": digest(proofs),
            }
        )
    return cases


def tail_cases() -> list[dict[str, Any]]:
    """Every row of the input is a completion of its own."""
    cases = []
    for seed, (name, hidden) in enumerate(((n, h) for n in COMMON for h in TAIL_HIDDEN), start=3000):
        bits = make_bits(name, seed, TAILS, hidden)
        proofs = [proof for row in bits for proof in build(row[None])]
        case = {"distribution": name, "seed": seed, "completions": TAILS, "hidden": hidden, "sha256": digest(proofs)}
        cases.append(case)
    return cases


def whole_cases() -> list[dict[str, Any]]:
    """Input and output written out."""
    cases = []
    for seed, name in enumerate([*COMMON, *RARE] * 3, start=5000):
        tokens, hidden = [(2, 64), (1, 130), (1, 160)][seed % 3]
        bits = make_bits(name, seed, tokens, hidden)
        cases.append(write_out(name, bits, build(bits)))
    for seed, (tokens, hidden) in enumerate([(1, 16), (3, 16), (7, 16), (1, 64), (1, 127)], start=5100):
        bits = make_bits("gaussian", seed, tokens, hidden)
        values = bits.reshape(-1).tolist()
        proof = ProofPoly.from_points(list(range(len(values))), values).to_bytes()
        cases.append(write_out("fewer than 128 values", bits, [proof.ljust(258, b"\0")]))
    return cases


def write_out(name: str, bits: Bits, proofs: list[bytes]) -> dict[str, Any]:
    tokens, hidden = bits.shape
    patterns = bits.astype(">u2").tobytes().hex()
    return {"name": name, "tokens": tokens, "hidden": hidden, "bits": patterns, "proofs": b"".join(proofs).hex()}


def verified_cases() -> list[dict[str, Any]]:
    """Numbers per chunk when the verifier's activations differ from the prover's."""
    cases = []
    shapes = [(67, 64), (70, 256), (65, 2100), (33, 4096)]
    noises = [(name, reach) for name in ("gaussian", "heavy", "massive") for reach in (0, 1, 4, 40)]
    for seed, (name, reach) in enumerate(noises, start=7000):
        tokens, hidden = shapes[seed % 4]
        mine = make_bits(name, seed, tokens, hidden)
        theirs = disturb(mine, seed + 500, reach)
        results = verify_proofs_bytes(to_tensor(theirs), build(mine), CHUNK, K, skip_prefill=True)
        numbers = [[r.exp_mismatches, r.mant_err_mean, r.mant_err_median] for r in results]
        case = {"distribution": name, "seed": seed, "noise_seed": seed + 500, "reach": reach}
        cases.append({**case, "tokens": tokens, "hidden": hidden, "numbers": numbers})
    return cases


def main() -> None:
    vectors = {
        "package": "toploc 0.1.6",
        "hashed": hashed_cases(),
        "tails": tail_cases(),
        "whole": whole_cases(),
        "verified": verified_cases(),
    }
    chunks = sum(case["chunks"] for case in vectors["hashed"]) + sum(case["completions"] for case in vectors["tails"])
    assert chunks >= 10_000, chunks
    assert sum(case["other_moduli"] for case in vectors["hashed"]) >= 100
    lines = [f'"package": {json.dumps(vectors.pop("package"))}']
    for key, cases in vectors.items():
        lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]")
    VECTORS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{chunks} hashed chunks, {VECTORS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
