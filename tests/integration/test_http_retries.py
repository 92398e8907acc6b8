"""What the client does when a server or the way to it fails: repeats what is safe, and says clearly what is not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.rpc import Refusal, RefusalCode, seal_reply
from prime_protocol.wire.signing import WalletKey
from prime_runtime.http.client import CallRefused, Unreachable
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.messages import ENVELOPE_TYPE, REFUSAL_TYPE, RefusalError
from prime_runtime.http.server import Caller
from support.processes.signed_http import (
    DOUBLE,
    NETWORK,
    NODE_KEY,
    SERVER_KEY,
    SPEND,
    START_MS,
    Ask,
    TestClock,
    Told,
    client_of,
    running_server,
)

Answerer = Callable[[bytes], Awaitable[web.StreamResponse]]
BUSY = Refusal(code=RefusalCode.OVERLOADED, field="", problem="busy", retry_after_ms=300, now_ms=START_MS)


def good(frame: bytes, *, kind: str = "double.reply", key: WalletKey = SERVER_KEY) -> web.Response:
    reply = seal_reply(
        key,
        kind=kind,
        body=encode(Told(42)),
        request=Digest(sha256(frame).digest()),
        network=NETWORK,
        run=None,
        sequence=1,
        now_ms=START_MS,
    )
    return web.Response(body=reply, content_type=ENVELOPE_TYPE)


def unsigned(refusal: Refusal, status: int = 503) -> web.Response:
    return web.Response(status=status, body=encode(refusal), content_type=REFUSAL_TYPE)


@asynccontextmanager
async def scripted(*answers: web.Response | str | None) -> AsyncIterator[tuple[ServerAddress, list[bytes]]]:
    """A real server that gives these answers in turn: a response, "good", "stranger" (good, but by
    another key), "drop" (hang up) or "hang" (say nothing)."""
    frames: list[bytes] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        frames.append(await request.read())
        planned = answers[min(len(frames), len(answers)) - 1]
        if planned == "hang":
            await asyncio.Event().wait()
        if planned == "drop":
            assert request.transport is not None
            request.transport.abort()
        if isinstance(planned, web.Response):
            return web.Response(status=planned.status, body=planned.body, headers=planned.headers)
        return good(frames[-1], key=NODE_KEY if planned == "stranger" else SERVER_KEY)

    async with RawTestServer(answer) as made:
        yield ServerAddress(f"http://127.0.0.1:{made.port}", SERVER_KEY.node), frames


async def test_a_busy_server_is_asked_again_after_the_time_it_named() -> None:
    clock = TestClock()
    async with (
        scripted(unsigned(BUSY), unsigned(BUSY, 429), "good") as (server, frames),
        client_of(clock=clock) as client,
    ):
        assert (await client.call(server, replace(DOUBLE, is_idempotent=False), Ask(21))).message == Told(42)
    assert len(frames) == 3
    assert len(clock.slept_ms) == 2
    assert 300 <= clock.slept_ms[0] <= 500
    assert 300 <= clock.slept_ms[1] <= 700


async def test_every_attempt_is_sealed_anew() -> None:
    async with scripted(unsigned(BUSY), "good") as (server, frames), client_of() as client:
        await client.call(server, DOUBLE, Ask(21))
    letters = [open_envelope(frame, network=NETWORK).payload for frame in frames]
    assert len({letter.sequence for letter in letters}) == 2
    assert {letter.sender for letter in letters} == {NODE_KEY.node}


async def test_the_last_failure_is_raised_when_all_attempts_are_used() -> None:
    clock = TestClock()
    async with scripted(unsigned(BUSY)) as (server, frames), client_of(clock=clock, attempts_max=4) as client:
        with pytest.raises(CallRefused, match="busy"):
            await client.call(server, DOUBLE, Ask(21))
    assert len(frames) == 4
    assert len(clock.slept_ms) == 3


async def test_the_wait_grows_up_to_its_bound_and_is_drawn() -> None:
    clock = TestClock()
    quick = replace(BUSY, retry_after_ms=0)
    async with (
        scripted(unsigned(quick)) as (server, _),
        client_of(clock=clock, attempts_max=9, backoff_ms=100, backoff_ms_max=400) as client,
    ):
        with pytest.raises(CallRefused):
            await client.call(server, DOUBLE, Ask(21))
    spans = [100, 200, 400, 400, 400, 400, 400, 400]
    assert all(0 <= slept <= span for slept, span in zip(clock.slept_ms, spans, strict=True))
    assert len(set(clock.slept_ms)) > 4


async def test_a_server_cannot_make_a_client_wait_for_ever() -> None:
    clock = TestClock()
    later = replace(BUSY, retry_after_ms=10**12)
    async with scripted(unsigned(later)) as (server, frames), client_of(clock=clock, deadline_ms=2**31) as client:
        with pytest.raises(CallRefused):
            await client.call(server, DOUBLE, Ask(21))
    assert (len(frames), clock.slept_ms) == (1, [])


async def test_a_wait_past_the_deadline_is_not_begun() -> None:
    clock = TestClock()
    async with scripted(unsigned(BUSY)) as (server, frames), client_of(clock=clock) as client:
        with pytest.raises(CallRefused):
            await client.call(server, DOUBLE, Ask(21), deadline_ms=250)
    assert (len(frames), clock.slept_ms) == (1, [])


async def test_what_may_have_been_done_is_repeated_only_if_twice_is_as_good_as_once() -> None:
    async with scripted("drop", "good") as (server, frames), client_of() as client:
        with pytest.raises(Unreachable, match="closed the connection"):
            await client.call(server, SPEND, Ask(21))
        assert len(frames) == 1
    async with scripted("drop", "good") as (server, frames), client_of() as client:
        assert (await client.call(server, DOUBLE, Ask(21))).message == Told(42)
        assert len(frames) == 2


async def test_a_handler_that_timed_out_is_asked_again_only_if_twice_is_as_good_as_once() -> None:
    calls = 0

    async def first_late(caller: Caller, message: Ask) -> Told:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RefusalError(RefusalCode.TIMED_OUT, "", "late")
        return Told(1)

    for endpoint, expected in [(DOUBLE, 2), (SPEND, 1)]:
        calls = 0
        async with running_server(handlers={endpoint: first_late}) as (_, server), client_of() as client:
            if expected == 1:
                with pytest.raises(CallRefused, match="late"):
                    await client.call(server, endpoint, Ask(1))
            else:
                await client.call(server, endpoint, Ask(1))
        assert calls == expected


async def test_silence_ends_at_the_deadline() -> None:
    async with scripted("hang") as (server, frames), client_of(deadline_ms=60) as client:
        with pytest.raises(Unreachable, match="did not answer in time"):
            await client.call(server, SPEND, Ask(21))
        assert len(frames) == 1


async def test_a_proxys_errors_are_told_apart() -> None:
    for status, is_safe in [(503, True), (429, True), (502, False), (504, False)]:
        html = web.Response(status=status, text="<html>nginx</html>", content_type="text/html")
        async with scripted(html, "good") as (server, frames), client_of() as client:
            if is_safe:
                with pytest.raises(RemoteError, match=r"Payload\.kind"):
                    await client.call(server, SPEND, Ask(21))
            else:
                with pytest.raises(Unreachable, match=f"HTTP {status}"):
                    await client.call(server, SPEND, Ask(21))
        assert len(frames) == (2 if is_safe else 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(text="hello"), "without an envelope"),
        (web.Response(status=404, text="no"), "HTTP 404"),
        (web.Response(status=302, headers={"Location": "http://192.0.2.1/"}), "HTTP 302"),
        (web.Response(body=b"", content_type=ENVELOPE_TYPE), "envelope: is 0 bytes"),
        (web.Response(body=b"\x00" * 300, content_type=ENVELOPE_TYPE), "Payload"),
        (web.Response(body=b"\x00" * 300, content_type=REFUSAL_TYPE), "Refusal"),
        (web.Response(body=b"x" * 5000, content_type=ENVELOPE_TYPE), "longer than 2048"),
        (good(b"another request"), "names another request"),
        (good(b"", kind="double"), "Payload.kind"),
        ("stranger", "expected the server"),
        (unsigned(replace(BUSY, code=RefusalCode.FORBIDDEN), 403), "needs a signature"),
    ],
)
async def test_an_answer_that_breaks_the_protocol_is_not_believed(answer: web.Response | str, words: str) -> None:
    clock = TestClock()
    async with scripted(answer) as (server, frames), client_of(clock=clock, reply_bytes_max=2048) as client:
        with pytest.raises(RemoteError, match=words):
            await client.call(server, DOUBLE, Ask(21))
    # Where another key answers, the client also asks for the log's keys, without a frame.
    assert (len([frame for frame in frames if frame]), clock.slept_ms) == (1, [])


async def test_a_server_that_is_not_there_is_explained_and_tried_again() -> None:
    clock = TestClock()
    async with client_of(clock=clock, attempts_max=3) as client:
        with pytest.raises(Unreachable, match=r"cannot reach http://127.0.0.1:1: connection refused; is the coord"):
            await client.call(ServerAddress("http://127.0.0.1:1", SERVER_KEY.node), SPEND, Ask(21))
    assert len(clock.slept_ms) == 2


async def test_a_request_that_met_a_restart_is_sealed_again_and_done() -> None:
    clock = TestClock(START_MS - 50)

    class Catching(TestClock):
        """The client's clock is 50 ms behind until it has waited."""

        async def sleep_ms(self, duration_ms: int) -> None:
            await super().sleep_ms(duration_ms)
            self.wall_ms += duration_ms

    clock = Catching(START_MS - 50)
    async with running_server() as (_, server), client_of(clock=clock) as client:
        assert (await client.call(server, SPEND, Ask(21))).message == Told(42)
    assert len(clock.slept_ms) == 1
