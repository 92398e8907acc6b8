"""A reply answers one request of one kind by one server, and a refusal always fits its own format."""

from dataclasses import dataclass

import pytest

from prime_protocol.constants import KIND_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, RunId
from prime_protocol.wire.rpc import REPLY_SUFFIX, Endpoint, Refusal, RefusalCode, open_reply, seal_reply
from prime_protocol.wire.signing import WalletKey

NETWORK = NetworkId("test")
SERVER = WalletKey.from_secret(b"\x01" * 32)
REQUEST = Digest(b"\x02" * 32)


@dataclass(frozen=True, slots=True)
class Ping:
    text: str


PING = Endpoint("ping", Ping, Ping)


def sealed(kind: str = PING.kind + REPLY_SUFFIX, request: Digest = REQUEST, key: WalletKey = SERVER) -> bytes:
    return seal_reply(
        key, kind=kind, body=b"hi", request=request, network=NETWORK, run=RunId("r"), sequence=1, now_ms=5
    )


def opened(frame: bytes) -> bytes:
    return open_reply(frame, kind="ping.reply", request=REQUEST, server=SERVER.node, network=NETWORK)


def test_a_reply_gives_back_its_body() -> None:
    assert opened(sealed()) == b"hi"
    assert open_envelope(sealed(), network=NETWORK).payload.run == "r"


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (sealed(key=WalletKey.from_secret(b"\x03" * 32)), "Payload.sender"),
        (sealed(kind="ping.refusal"), "Payload.kind"),
        (sealed(kind="ping"), "Payload.kind"),
        (sealed(request=Digest(bytes(32))), "ReplyBody.request"),
        (sealed()[:-1] + b"?", "Payload"),
        (b"", "envelope"),
    ],
)
def test_a_reply_by_another_or_to_another_is_refused(frame: bytes, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        opened(frame)
    assert caught.value.field.startswith(field)


def test_a_body_that_is_no_reply_is_refused() -> None:
    from prime_protocol.wire.envelope import seal_envelope

    frame = seal_envelope(
        SERVER, kind="ping.reply", body=b"x", network=NETWORK, run=None, sequence=1, issued_at_ms=0, life_ms=1
    )
    with pytest.raises(RemoteError, match="ReplyBody"):
        opened(frame)


def test_a_path_names_its_kind_and_a_kind_leaves_room_for_its_suffix() -> None:
    assert PING.path == "/api/ping"
    with pytest.raises(AssertionError, match="too long"):
        Endpoint("k" * (KIND_CHARS_MAX - 3), Ping, Ping)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_a_refusal_survives_the_wire(code: RefusalCode) -> None:
    refusal = Refusal(code=code, field="a.b[3]", problem="is wrong", retry_after_ms=5, now_ms=6)
    assert decode(Refusal, encode(refusal)) == refusal
