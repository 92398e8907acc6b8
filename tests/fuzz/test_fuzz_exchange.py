"""Hostile replies and refusals: every input gives a value or a RemoteError."""

import pytest

from fuzz.harness import assert_survives
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, NetworkId
from prime_protocol.wire.rpc import Refusal, RefusalCode, ReplyBody, open_reply, seal_reply
from prime_protocol.wire.signing import WalletKey

NETWORK = NetworkId("test")
SERVER = WalletKey.from_secret(b"\x01" * 32)
REQUEST = Digest(b"\x02" * 32)
REFUSALS = [
    encode(Refusal(code=code, field="a.b[3]", problem="is wrong", retry_after_ms=number, now_ms=2**41))
    for number, code in enumerate(RefusalCode)
]


def reply(body: bytes) -> bytes:
    return seal_reply(
        SERVER, kind="ping.reply", body=body, request=REQUEST, network=NETWORK, run=None, sequence=1, now_ms=5
    )


@pytest.mark.fuzz
def test_no_reply_breaks_the_reader() -> None:
    def read(frame: bytes) -> bytes:
        return open_reply(frame, kind="ping.reply", request=REQUEST, server=SERVER.node, network=NETWORK)

    assert_survives(read, [reply(b""), reply(REFUSALS[0]), reply(b"x" * 2000)])


@pytest.mark.fuzz
def test_no_refusal_breaks_the_reader() -> None:
    assert_survives(lambda frame: decode(Refusal, frame), REFUSALS)


@pytest.mark.fuzz
def test_no_reply_body_breaks_the_reader() -> None:
    assert_survives(lambda frame: decode(ReplyBody, frame), [encode(ReplyBody(request=REQUEST, body=REFUSALS[0]))])
