"""Hostile proofs: whatever the bytes are, they are refused or compared; nothing crashes and nothing hangs."""

import pytest

from fuzz.harness import assert_survives
from oracle.toploc_inputs import make_bits
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import build_proofs, parse_proofs
from prime_protocol.proofs.toploc_verify import ProofFault, find_faults, verify_proofs
from prime_protocol.wire.ids import Digest

TOKENS, HIDDEN = 65, 64
MINE = make_bits("gaussian", 1, TOKENS, HIDDEN)
CORPUS = [build_proofs(make_bits(name, 2, TOKENS, HIDDEN)).blob for name in ("gaussian", "tied", "extreme", "zeros")]


def parse_and_verify(blob: bytes) -> list[ProofFault]:
    proofs = parse_proofs(blob, tokens=TOKENS, hidden=HIDDEN)
    return find_faults(verify_proofs(proofs, MINE, seed=Digest(bytes(32))), ToplocThresholds())


@pytest.mark.fuzz
def test_hostile_proofs_are_refused_or_judged() -> None:
    assert_survives(parse_and_verify, CORPUS)
