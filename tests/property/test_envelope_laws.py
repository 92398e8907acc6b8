"""Laws of envelopes: nothing in a frame can be changed, and nothing passes the guard twice."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.constants import CLOCK_SKEW_MS_MAX, ENVELOPE_LIFE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.envelope import Payload, ReplayGuard, open_envelope, seal_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.seen_messages import BUCKET_MS
from prime_protocol.wire.signing import WalletKey
from property.message_strategies import NAMES

KEY = WalletKey.from_secret(b"k" * 32)
MAIN = NetworkId("main")
START_MS = 1_800_000_000_000
FRAME = seal_envelope(
    KEY, kind="test", body=b"some body", network=MAIN, run=RunId("r"), sequence=9, issued_at_ms=START_MS, life_ms=1000
)


@settings(deadline=None)
@given(
    st.binary(min_size=32, max_size=32).filter(any),
    st.text(st.sampled_from("abc._é漢"), min_size=1, max_size=48),
    st.binary(max_size=200),
    NAMES,
    st.none() | NAMES,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**62),
    st.integers(1, ENVELOPE_LIFE_MS_MAX),
)
def test_every_sealed_letter_opens_to_what_was_sealed(
    secret: bytes, kind: str, body: bytes, network: str, run: str | None, sequence: int, issued_at_ms: int, life_ms: int
) -> None:
    key = WalletKey.from_secret(b"\x01" + secret[1:])
    times = {"issued_at_ms": issued_at_ms, "life_ms": life_ms}
    where = {"network": NetworkId(network), "run": None if run is None else RunId(run)}
    frame = seal_envelope(key, kind=kind, body=body, sequence=sequence, **where, **times)
    letter = open_envelope(frame, network=NetworkId(network)).payload
    assert (letter.sender, letter.kind, letter.body, letter.sequence) == (key.node, kind, body, sequence)
    assert (letter.network, letter.run) == (network, run)
    assert (letter.issued_at_ms, letter.expires_at_ms) == (issued_at_ms, issued_at_ms + life_ms)


def test_no_bit_of_a_sealed_envelope_can_be_flipped() -> None:
    for at in range(len(FRAME)):
        for bit in range(8):
            with pytest.raises(RemoteError):
                open_envelope(FRAME[:at] + bytes([FRAME[at] ^ 1 << bit]) + FRAME[at + 1 :], network=MAIN)


@settings(deadline=None)
@given(st.integers(0, len(FRAME)), st.integers(0, len(FRAME)), st.binary(max_size=8))
def test_no_stretch_of_a_sealed_envelope_can_be_replaced(start: int, end: int, other: bytes) -> None:
    changed = FRAME[:start] + other + FRAME[max(start, end) :]
    if changed != FRAME:
        with pytest.raises(RemoteError):
            open_envelope(changed, network=MAIN)


@dataclass(frozen=True)
class Move:
    """One thing that happens to a guard: the clock shows a time, and a letter comes, fresh or from before."""

    at_ms: int
    ahead_ms: int
    life_ms: int
    sender: int
    replayed: int | None


# Few different times, so that a clock that jumps comes back to where it was.
times = st.sampled_from([0, 1, 5_000, BUCKET_MS, 2 * BUCKET_MS, 60_000, ENVELOPE_LIFE_MS_MAX, 10**10])
stories = st.lists(
    st.builds(
        Move,
        times | st.integers(0, 400_000),
        st.sampled_from([0, CLOCK_SKEW_MS_MAX]) | st.integers(-ENVELOPE_LIFE_MS_MAX, CLOCK_SKEW_MS_MAX),
        st.sampled_from([1, 5_000, BUCKET_MS, ENVELOPE_LIFE_MS_MAX]),
        st.integers(0, 1),
        st.none() | st.integers(0, 5),
    ),
    min_size=2,
    max_size=20,
)
forward_stories = stories.map(lambda story: sorted(story, key=lambda move: move.at_ms))


def letter_of(sequence: int, move: Move, now_ms: int) -> Payload:
    issued_at_ms = now_ms + move.ahead_ms
    return Payload(
        version=1,
        network=MAIN,
        run=None,
        sender=NodeId(bytes([move.sender]) * 20),
        sequence=sequence,
        issued_at_ms=issued_at_ms,
        expires_at_ms=issued_at_ms + move.life_ms,
        kind="test",
        body=b"",
    )


def run_guard(guard: ReplayGuard, story: list[Move]) -> tuple[list[Payload], int]:
    """Play a story; every letter passes at most once. Returns those that passed, and the clock."""
    passed: list[Payload] = []
    now_ms = START_MS
    for sequence, move in enumerate(story):
        now_ms = START_MS + move.at_ms
        is_replay = move.replayed is not None and bool(passed)
        letter = passed[move.replayed % len(passed)] if is_replay else letter_of(sequence, move, now_ms)
        try:
            guard.admit(letter, now_ms)
        except RemoteError:
            continue
        assert letter not in passed, "a letter passed twice"
        passed.append(letter)
    return passed, now_ms


@settings(deadline=None, max_examples=300)
@given(stories)
def test_no_letter_passes_twice_however_the_clock_moves(story: list[Move]) -> None:
    run_guard(ReplayGuard(since_ms=0), story)


@settings(deadline=None, max_examples=100)
@given(forward_stories)
def test_while_the_clock_runs_forward_every_fresh_letter_in_time_passes(story: list[Move]) -> None:
    fresh = [Move(move.at_ms, move.ahead_ms, move.life_ms, move.sender, None) for move in story]
    passed, _ = run_guard(ReplayGuard(since_ms=0), fresh)
    assert len(passed) == sum(move.ahead_ms + move.life_ms > 0 for move in fresh)


@settings(deadline=None, max_examples=100)
@given(forward_stories, st.integers(1, 400_000))
def test_a_guard_that_starts_later_lets_nothing_of_the_one_before_through(story: list[Move], pause_ms: int) -> None:
    passed, stopped_ms = run_guard(ReplayGuard(since_ms=0), story)
    restarted_ms = stopped_ms + pause_ms
    guard = ReplayGuard(since_ms=restarted_ms + CLOCK_SKEW_MS_MAX)
    for letter in passed:
        with pytest.raises(RemoteError, match=r"^Payload\.(issued|expires)_at_ms"):
            guard.admit(letter, restarted_ms)


@settings(deadline=None, max_examples=100)
@given(forward_stories)
def test_the_guard_remembers_no_more_than_what_still_lives(story: list[Move]) -> None:
    guard = ReplayGuard(since_ms=0)
    passed, now_ms = run_guard(guard, story)
    later_ms = now_ms + 2 * BUCKET_MS
    guard.admit(letter_of(len(story), Move(0, 0, 1, 0, None), later_ms), later_ms)
    assert len(guard) <= 1 + sum(letter.expires_at_ms > later_ms - 2 * BUCKET_MS for letter in passed)
