"""Laws of the codec, for every message that goes into an envelope or the log."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import RelayPoll, RelayPollReply, RelayPublish, RelayPublishReply
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.replay import ENTRY_RULES
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.rpc import Refusal, ReplyBody
from prime_protocol.wire.typed_data import Delegation, SubmissionReceipt, VerdictReceipt
from property.message_strategies import messages

ENVELOPED: list[Any] = [
    Payload,
    LogRecord,
    Refusal,
    ReplyBody,
    RelayPublish,
    RelayPublishReply,
    RelayPoll,
    RelayPollReply,
]
KINDS: list[Any] = [*ENTRY_RULES, Delegation, SubmissionReceipt, VerdictReceipt, *ENVELOPED]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
quick = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))


@every_kind
@quick
@given(data=st.data())
def test_a_message_and_its_frame_determine_each_other(kind: Any, data: st.DataObject) -> None:
    first, second = data.draw(messages(kind)), data.draw(messages(kind))
    for message in (first, second):
        frame = encode(message)
        assert decode(kind, frame) == message
        assert repr(decode(kind, frame)) == repr(message)
        assert encode(decode(kind, frame)) == frame
    # By their print, since -0.0 equals 0.0 and is another value here.
    assert (encode(first) == encode(second)) == (repr(first) == repr(second))


@every_kind
@quick
@given(data=st.data())
def test_a_changed_frame_is_refused_or_is_the_form_of_another_message(kind: Any, data: st.DataObject) -> None:
    frame = encode(data.draw(messages(kind)))
    at, start = data.draw(st.integers(0, len(frame) - 1)), data.draw(st.integers(0, len(frame)))
    for flip in data.draw(st.lists(st.integers(1, 255), min_size=5, max_size=5)):
        assert_refused_or_canonical(kind, frame[:at] + bytes([frame[at] ^ flip]) + frame[at + 1 :])
    assert_refused_or_canonical(kind, frame[:at] + frame[start:])


def assert_refused_or_canonical(kind: Any, frame: bytes) -> None:
    try:
        message = decode(kind, frame)
    except RemoteError as error:
        assert error.field.startswith(kind.__name__)
        assert str(error).isprintable()
    else:
        assert encode(message) == frame


@settings(deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_a_frame_of_another_type_is_refused(data: st.DataObject, kind: Any) -> None:
    other = data.draw(st.sampled_from([other for other in KINDS if fields_of(other) != fields_of(kind)]))
    with pytest.raises(RemoteError):
        decode(kind, encode(data.draw(messages(other))))


def fields_of(kind: Any) -> list[str]:
    return sorted(kind.__dataclass_fields__)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9) | st.binary(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=200)
@given(plain, st.sampled_from(KINDS))
def test_any_msgpack_at_all_is_refused_or_canonical(value: Any, kind: Any) -> None:
    assert_refused_or_canonical(kind, msgpack.packb(value))


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(KINDS))
def test_any_field_may_hold_anything_and_is_refused_by_name_or_canonical(data: st.DataObject, kind: Any) -> None:
    honest = msgpack.unpackb(encode(data.draw(messages(kind))))
    name = data.draw(st.sampled_from(sorted(honest)))
    honest[name] = data.draw(plain)
    try:
        message = decode(kind, msgpack.packb(honest))
    except RemoteError as error:
        # A rule that joins fields may name the other one.
        joined = error.field.removeprefix(f"{kind.__name__}.") in honest
        assert joined or error.field.startswith(f"{kind.__name__}.{name}")
    else:
        assert encode(message) == msgpack.packb(honest)
        assert not isinstance(honest[name], float) or math.isfinite(honest[name])
