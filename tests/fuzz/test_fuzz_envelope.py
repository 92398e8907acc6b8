"""Hostile bytes into the envelope and the guard behind it: nothing opens that was not sealed."""

import pytest

from fuzz.harness import assert_survives
from prime_protocol.wire.envelope import ReplayGuard, open_envelope, seal_envelope
from prime_protocol.wire.ids import NetworkId, RunId
from prime_protocol.wire.signing import WalletKey

pytestmark = pytest.mark.fuzz

MAIN = NetworkId("main")
NOW_MS = 1_800_000_000_000
FRAMES = [
    seal_envelope(
        WalletKey.from_secret(bytes([number + 1]) * 32),
        kind="heartbeat",
        body=bytes(range(size)),
        network=MAIN,
        run=RunId("run-1") if number else None,
        sequence=number,
        issued_at_ms=NOW_MS,
        life_ms=60_000,
    )
    for number, size in enumerate((0, 10, 200))
]


def test_envelopes_survive_and_only_what_was_sealed_opens() -> None:
    guard = ReplayGuard(since_ms=0)

    def parse(raw: bytes) -> None:
        letter = open_envelope(raw, network=MAIN).payload
        assert raw in FRAMES
        guard.admit(letter, NOW_MS)

    assert_survives(parse, FRAMES)
    assert len(guard) == len(FRAMES)
