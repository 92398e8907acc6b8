"""Envelopes: what opens, what does not, and that nothing passes the guard twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.constants import (
    CLOCK_SKEW_MS_MAX,
    ENVELOPE_LIFE_MS_MAX,
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    SIGNATURE_BYTES,
)
from prime_protocol.errors import RemoteError
from prime_protocol.wire import envelope
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import Payload, ReplayGuard, check_time, open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.seen_messages import BUCKET_MS
from prime_protocol.wire.signing import WalletKey

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "envelope.json").read_text())
MAIN = NetworkId("main")
ANN, BOB = WalletKey.from_secret(b"a" * 32), WalletKey.from_secret(b"b" * 32)
NOW_MS = 1_800_000_000_000


def letter(key: WalletKey = ANN, *, sequence: int = 1, issued_at_ms: int = NOW_MS, life_ms: int = 60_000) -> Payload:
    return Payload(
        version=PROTOCOL_VERSION,
        network=MAIN,
        run=None,
        sender=key.node,
        sequence=sequence,
        issued_at_ms=issued_at_ms,
        expires_at_ms=issued_at_ms + life_ms,
        kind="test",
        body=b"",
    )


def sealed(key: WalletKey = ANN, *, body: bytes = b"body", version: int = PROTOCOL_VERSION) -> bytes:
    return seal_envelope(
        key,
        kind="test",
        body=body,
        network=MAIN,
        run=RunId("run-1"),
        sequence=7,
        issued_at_ms=NOW_MS,
        life_ms=1000,
        version=version,
    )


def refusal(frame: bytes, **options: Any) -> tuple[str, str]:
    with pytest.raises(RemoteError) as caught:
        open_envelope(frame, network=MAIN, **options)
    return caught.value.field, caught.value.problem


def test_what_is_sealed_opens_to_the_same_letter() -> None:
    opened = open_envelope(sealed(), network=MAIN)
    assert (opened.payload.sender, opened.payload.body, opened.payload.kind) == (ANN.node, b"body", "test")
    assert (opened.payload.run, opened.payload.sequence) == (RunId("run-1"), 7)
    assert (opened.payload.issued_at_ms, opened.payload.expires_at_ms) == (NOW_MS, NOW_MS + 1000)
    assert sealed() == sealed()


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["why"])
def test_every_accepted_vector_opens_and_seals_to_the_same_frame(
    vector: dict[str, Any],
) -> None:
    frame, fields = bytes.fromhex(vector["frame"]), vector["letter"]
    opened = open_envelope(frame, network=NetworkId(VECTORS["network"]))
    assert opened.digest == Digest(bytes.fromhex(vector["frame_sha256"]))
    shown = {name: getattr(opened.payload, name) for name in fields}
    assert {name: value.hex() if isinstance(value, bytes) else value for name, value in shown.items()} == fields
    assert frame == seal_envelope(
        WalletKey.from_secret(bytes.fromhex(VECTORS["secret"])),
        kind=fields["kind"],
        body=bytes.fromhex(fields["body"]),
        network=NetworkId(fields["network"]),
        run=None if fields["run"] is None else RunId(fields["run"]),
        sequence=fields["sequence"],
        issued_at_ms=fields["issued_at_ms"],
        life_ms=fields["expires_at_ms"] - fields["issued_at_ms"],
        version=fields["version"],
    )


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
def test_every_refused_vector_is_refused_at_its_field(vector: dict[str, Any]) -> None:
    assert refusal(bytes.fromhex(vector["frame"]))[0] == vector["field"]


def test_an_envelope_of_another_network_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^Payload\.network: is main, this is test$"):
        open_envelope(sealed(), network=NetworkId("test"))


def test_an_old_version_is_told_to_upgrade_and_old_logs_still_open() -> None:
    wanted = ("Payload.version", f"is {PROTOCOL_VERSION}, this run needs {PROTOCOL_VERSION + 1}: please upgrade")
    assert refusal(sealed(), version_min=PROTOCOL_VERSION + 1) == wanted
    assert open_envelope(sealed(version=1), network=MAIN).payload.version == 1


def test_nobody_can_write_as_somebody_else() -> None:
    forged = encode(letter(BOB))
    frame = ANN.sign(envelope._signed_digest(forged)) + forged
    assert refusal(frame) == ("Payload.sender", f"is {BOB.node}, but {ANN.node} signed")


def test_every_truncation_is_refused() -> None:
    frame = sealed()
    for end in range(len(frame)):
        assert refusal(frame[:end])[0].startswith("envelope" if end <= SIGNATURE_BYTES else "Payload")


def test_a_frame_past_the_limit_is_refused_before_it_is_read() -> None:
    assert refusal(bytes(FRAME_BYTES_MAX + 1))[0] == "envelope"


def test_the_largest_frame_opens() -> None:
    room = FRAME_BYTES_MAX - len(sealed(body=bytes(2**16)))
    frame = sealed(body=bytes(2**16 + room))
    assert len(frame) == FRAME_BYTES_MAX
    assert len(open_envelope(frame, network=MAIN).payload.body) == 2**16 + room


@pytest.mark.parametrize("life_ms", [-1, 0, ENVELOPE_LIFE_MS_MAX + 1])
def test_a_letter_without_a_sensible_life_cannot_be_made(life_ms: int) -> None:
    with pytest.raises(RemoteError, match=rf"^expires_at_ms: is {life_ms} ms after issue"):
        letter(life_ms=life_ms)


def test_time_is_right_from_the_allowed_skew_before_issue_until_just_before_expiry() -> None:
    post = letter(life_ms=1000)
    for now_ms in (NOW_MS - CLOCK_SKEW_MS_MAX, NOW_MS, NOW_MS + 999):
        check_time(post, now_ms)
    with pytest.raises(RemoteError, match=r"^Payload\.expires_at_ms: is 0 ms in the past"):
        check_time(post, NOW_MS + 1000)
    with pytest.raises(RemoteError, match=rf"^Payload\.issued_at_ms: is {CLOCK_SKEW_MS_MAX + 1} ms in the future"):
        check_time(post, NOW_MS - CLOCK_SKEW_MS_MAX - 1)


def test_the_same_sequence_passes_once_for_each_sender() -> None:
    guard = ReplayGuard(since_ms=0)
    guard.admit(letter(ANN), NOW_MS)
    guard.admit(letter(BOB), NOW_MS)
    guard.admit(letter(ANN, sequence=2), NOW_MS)
    for again in (letter(ANN), letter(ANN, life_ms=30_000)):
        with pytest.raises(RemoteError, match=rf"^Payload\.sequence: 1 was used before by {ANN.node}$"):
            guard.admit(again, NOW_MS + 1)
    assert len(guard) == 3


def test_sequences_may_come_in_any_order() -> None:
    guard = ReplayGuard(since_ms=0)
    for sequence in (5, 3, 9, 4):
        guard.admit(letter(sequence=sequence), NOW_MS)
    assert len(guard) == 4


def test_the_guard_checks_the_time_too() -> None:
    guard = ReplayGuard(since_ms=0)
    with pytest.raises(RemoteError, match=r"^Payload\.expires_at_ms"):
        guard.admit(letter(), NOW_MS + 60_000)
    assert len(guard) == 0


def test_what_was_issued_before_the_start_is_refused() -> None:
    guard = ReplayGuard(since_ms=NOW_MS)
    with pytest.raises(RemoteError, match=r"^Payload\.issued_at_ms: is before this server started"):
        guard.admit(letter(issued_at_ms=NOW_MS - 1), NOW_MS)
    guard.admit(letter(), NOW_MS)


def test_one_sender_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "REPLAY_SENDER_ENTRIES_MAX", 3)
    guard = ReplayGuard(since_ms=0)
    for sequence in range(3):
        guard.admit(letter(sequence=sequence, life_ms=1000), NOW_MS)
    with pytest.raises(RemoteError, match=r"^Payload\.sender: has 3 envelopes that still live; slow down$"):
        guard.admit(letter(sequence=3), NOW_MS)
    guard.admit(letter(BOB), NOW_MS)
    later_ms = NOW_MS + 2 * BUCKET_MS
    guard.admit(letter(sequence=3, issued_at_ms=later_ms), later_ms)


def test_all_senders_together_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "REPLAY_ENTRIES_MAX", 5)
    guard = ReplayGuard(since_ms=0)
    for number in range(5):
        guard.admit(replace(letter(), sender=NodeId(bytes([number]) * 20)), NOW_MS)
    with pytest.raises(RemoteError, match=r"^Payload\.sender: comes while too many envelopes still live"):
        guard.admit(letter(), NOW_MS)
    assert len(guard) == 5


def test_the_guard_forgets_what_has_expired_and_keeps_the_rest() -> None:
    guard = ReplayGuard(since_ms=0)
    guard.admit(letter(sequence=1, life_ms=1), NOW_MS)
    guard.admit(letter(sequence=2, life_ms=ENVELOPE_LIFE_MS_MAX), NOW_MS)
    later_ms = NOW_MS + 2 * BUCKET_MS
    guard.admit(letter(BOB, issued_at_ms=later_ms), later_ms)
    assert len(guard) == 2
    with pytest.raises(RemoteError, match=r"^Payload\.sequence"):
        guard.admit(letter(sequence=2, life_ms=ENVELOPE_LIFE_MS_MAX), later_ms)


def test_a_clock_that_is_set_back_lets_nothing_through_again() -> None:
    guard = ReplayGuard(since_ms=0)
    post = letter(life_ms=20_000)
    guard.admit(post, NOW_MS)
    glitch_ms = NOW_MS + 365 * 24 * 3_600_000
    guard.admit(letter(BOB, issued_at_ms=glitch_ms), glitch_ms)
    assert len(guard) == 1
    with pytest.raises(RemoteError, match=r"^Payload\.issued_at_ms: is before this server's clock was set back"):
        guard.admit(post, NOW_MS + 1)


def test_after_the_clock_was_set_back_fresh_letters_pass_at_once() -> None:
    guard = ReplayGuard(since_ms=0)
    guard.admit(letter(life_ms=20_000), NOW_MS)
    glitch_ms = NOW_MS + 365 * 24 * 3_600_000
    guard.admit(letter(BOB, issued_at_ms=glitch_ms), glitch_ms)
    fresh = letter(issued_at_ms=NOW_MS + 1, sequence=2)
    guard.admit(fresh, NOW_MS + 1)
    with pytest.raises(RemoteError, match=r"^Payload\.sequence"):
        guard.admit(fresh, NOW_MS + 2)


def test_what_is_sealed_is_the_canonical_letter() -> None:
    key = WalletKey.from_secret(b"\x41" * 32)
    for run in (None, RunId("run-1")):
        frame = seal_envelope(
            key,
            kind="k",
            body=b"body",
            network=NetworkId("net"),
            run=run,
            sequence=7,
            issued_at_ms=1000,
            life_ms=500,
        )
        letter = open_envelope(frame, network=NetworkId("net")).payload
        assert frame[SIGNATURE_BYTES:] == encode(letter)
        assert (letter.run, letter.expires_at_ms, letter.sender) == (run, 1500, key.node)
