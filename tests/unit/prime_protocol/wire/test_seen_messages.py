"""The detector of repeated messages remembers what is valid, forgets the rest, and says what it may have forgotten."""

from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.seen_messages import BUCKET_MS, SeenMessages

ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)


def seen_until(*expiries_ms: int) -> SeenMessages[int]:
    """Messages of Ann named by their expiry, each issued a second before it."""
    seen: SeenMessages[int] = SeenMessages()
    for expires_at_ms in expiries_ms:
        seen.add(expires_at_ms, ANN, issued_at_ms=expires_at_ms - 1_000, expires_at_ms=expires_at_ms)
    return seen


def test_a_message_is_remembered_until_it_has_expired() -> None:
    seen = seen_until(BUCKET_MS, 3 * BUCKET_MS)
    assert BUCKET_MS in seen
    assert BUCKET_MS + 1 not in seen
    seen.drop_expired(2 * BUCKET_MS)
    assert (BUCKET_MS in seen, 3 * BUCKET_MS in seen, len(seen)) == (False, True, 1)


def test_messages_are_counted_by_sender_while_they_are_remembered() -> None:
    seen = seen_until(BUCKET_MS, BUCKET_MS + 1, 3 * BUCKET_MS)
    seen.add(0, BOB, issued_at_ms=0, expires_at_ms=BUCKET_MS)
    assert (seen.count_of_sender(ANN), seen.count_of_sender(BOB)) == (3, 1)
    seen.drop_expired(2 * BUCKET_MS)
    assert (seen.count_of_sender(ANN), seen.count_of_sender(BOB)) == (1, 0)


def test_nothing_is_searched_twice_within_one_bucket() -> None:
    seen = seen_until(BUCKET_MS)
    assert not seen.drop_expired(BUCKET_MS - 1)
    assert seen.drop_expired(BUCKET_MS)
    assert not seen.drop_expired(2 * BUCKET_MS - 1)
    assert seen.drop_expired(2 * BUCKET_MS)


def test_only_what_was_issued_before_a_forgotten_message_may_be_forgotten() -> None:
    seen = seen_until(BUCKET_MS)
    assert not seen.may_be_forgotten(issued_at_ms=0, expires_at_ms=BUCKET_MS)
    seen.drop_expired(10 * BUCKET_MS)
    seen.drop_expired(0)
    assert seen.may_be_forgotten(issued_at_ms=BUCKET_MS - 1_000, expires_at_ms=BUCKET_MS)
    assert not seen.may_be_forgotten(issued_at_ms=BUCKET_MS - 999, expires_at_ms=BUCKET_MS)
    assert not seen.may_be_forgotten(issued_at_ms=0, expires_at_ms=10 * BUCKET_MS)
