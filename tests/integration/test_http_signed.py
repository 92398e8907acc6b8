"""Signed HTTP between a real client and a real server on loopback."""

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest
import trustme

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import NetworkId, RunId
from prime_protocol.wire.rpc import RefusalCode, open_reply
from prime_protocol.wire.signing import WalletKey
from prime_runtime.http.client import CallRefused, Unreachable
from prime_runtime.http.config import ListenConfig, ServerAddress, ServerLimits
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer
from prime_runtime.metrics import Metrics, RequestMetrics
from prime_runtime.settings.schema import ConfigError
from support.processes.signed_http import (
    DOUBLE,
    LANES,
    NETWORK,
    NODE_KEY,
    SERVER_KEY,
    SPEND,
    START_MS,
    Ask,
    TestClock,
    Told,
    client_of,
    double,
    running_server,
)


@pytest.fixture(params=[False, True], ids=["usual", "express"], autouse=True)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LANES, "express", request.param)


async def test_a_call_is_answered_and_both_frames_prove_it() -> None:
    callers: list[Caller] = []

    async def note(caller: Caller, message: Ask) -> Told:
        callers.append(caller)
        return await double(caller, message)

    async with running_server(handlers={DOUBLE: note}) as (_, server), client_of() as client:
        answer = await client.call(server, DOUBLE, Ask(21), run=RunId("run-1"))
    assert answer.message == Told(42)
    assert (callers[0].sender, callers[0].run, callers[0].frame) == (NODE_KEY.node, "run-1", answer.request)
    request = open_envelope(answer.request, network=NETWORK)
    assert callers[0].digest == request.digest
    open_reply(answer.reply, kind="double.reply", request=request.digest, server=SERVER_KEY.node, network=NETWORK)


async def test_many_calls_at_once_are_each_answered_with_their_own_reply() -> None:
    async with running_server(requests_per_address_max=256, sender_burst=300) as (_, server), client_of() as client:
        answers = await asyncio.gather(*(client.call(server, DOUBLE, Ask(number)) for number in range(200)))
    assert [answer.message.double for answer in answers] == [2 * number for number in range(200)]


async def test_a_handlers_refusal_reaches_the_caller_whole() -> None:
    async def refuse(caller: Caller, message: Ask) -> Told:
        raise RefusalError(RefusalCode.CONFLICT, "lease.slots[3]", "is\nheld by another", retry_after_ms=1)

    async with running_server(handlers={DOUBLE: refuse}) as (_, server), client_of() as client:
        with pytest.raises(
            CallRefused, match=r"refused the request \(conflict\): lease.slots\[3\]: is\\nheld by another"
        ) as caught:
            await client.call(server, DOUBLE, Ask(1))
    assert caught.value.refusal.code is RefusalCode.CONFLICT


async def test_a_remote_error_of_a_handler_is_the_callers_fault() -> None:
    async def check(caller: Caller, message: Ask) -> Told:
        raise RemoteError("Ask.number", "is odd")

    async with running_server(handlers={DOUBLE: check}) as (_, server), client_of() as client:
        with pytest.raises(CallRefused, match=r"\(malformed\): Ask.number: is odd"):
            await client.call(server, DOUBLE, Ask(1))


async def test_an_error_that_time_mends_says_when() -> None:
    async def check(caller: Caller, message: Ask) -> Told:
        raise RemoteError("Payload.sender", "asks too often", retry_after_ms=60_000)

    async with running_server(handlers={DOUBLE: check}) as (_, server), client_of() as client:
        with pytest.raises(CallRefused, match=r"\(rate_limited\): Payload.sender: asks too often") as caught:
            await client.call(server, DOUBLE, Ask(1))
    assert caught.value.refusal.retry_after_ms == 60_000


async def test_a_bug_shows_as_an_incident_and_never_as_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def crash(caller: Caller, message: Ask) -> Told:
        raise KeyError("the inside")

    async def wrong_reply(caller: Caller, message: Ask) -> Told:
        return message  # type: ignore[return-value]

    async with running_server(handlers={DOUBLE: crash, SPEND: wrong_reply}) as (_, server), client_of() as client:
        for endpoint in (DOUBLE, SPEND):
            with caplog.at_level(logging.ERROR), pytest.raises(CallRefused, match="incident") as caught:
                await client.call(server, endpoint, Ask(1))
            assert "inside" not in str(caught.value)
            incident = caught.value.refusal.problem.split()[-1]
            assert f"incident {incident} while handling {endpoint.kind}" in caplog.text


async def test_a_slow_handler_is_cut_off() -> None:
    async def hang(caller: Caller, message: Ask) -> Told:
        await asyncio.Event().wait()
        raise AssertionError

    async with running_server(handlers={SPEND: hang}, handle_ms=20) as (_, server), client_of() as client:
        with pytest.raises(CallRefused, match="not finished within 20 ms"):
            await client.call(server, SPEND, Ask(1))


@pytest.mark.parametrize(
    ("shift_ms", "words"), [(-600_000, "600.0 s behind"), (600_000, "600.0 s ahead of"), (31_000, "31.0 s ahead of")]
)
async def test_a_wrong_clock_is_named_with_its_size(shift_ms: int, words: str) -> None:
    async with running_server() as (_, server), client_of(clock=TestClock(START_MS + shift_ms)) as client:
        with pytest.raises(CallRefused, match=words) as caught:
            await client.call(server, DOUBLE, Ask(1))
    assert caught.value.refusal.code is RefusalCode.CLOCK


async def test_the_wrong_network_is_refused() -> None:
    # The client cannot read a reply of another network, so it sees a protocol break that names the network.
    async with running_server() as (_, server), client_of(network=NetworkId("mainnet")) as client:
        with pytest.raises(RemoteError, match=r"Payload.network: is testnet, this is mainnet"):
            await client.call(server, DOUBLE, Ask(1))


async def test_a_reply_by_another_key_is_not_believed() -> None:
    other = WalletKey.from_secret(b"\x33" * 32).node
    async with running_server() as (_, server), client_of() as client:
        with pytest.raises(RemoteError, match="expected the server"):
            await client.call(ServerAddress(server.url, other), DOUBLE, Ask(1))


async def test_past_the_limit_requests_are_turned_away_and_not_queued() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def wait(caller: Caller, message: Ask) -> Told:
        inside.set()
        await go.wait()
        return Told(0)

    async with (
        running_server(handlers={SPEND: wait}, requests_max=1) as (_, server),
        client_of(attempts_max=1) as client,
    ):
        first = asyncio.create_task(client.call(server, SPEND, Ask(1)))
        await inside.wait()
        with pytest.raises(CallRefused, match="too many concurrent requests") as caught:
            await client.call(server, SPEND, Ask(2))
        assert caught.value.refusal.retry_after_ms == 1000
        go.set()
        assert (await first).message == Told(0)
        assert (await client.call(server, SPEND, Ask(3))).message == Told(0)


async def test_one_key_cannot_ask_faster_than_its_rate() -> None:
    async with (
        running_server(sender_rate=0.01, sender_burst=2) as (_, server),
        client_of() as client,
        client_of(key=WalletKey.from_secret(b"\x44" * 32)) as other,
    ):
        for number in range(2):
            await client.call(server, DOUBLE, Ask(number))
        with pytest.raises(CallRefused, match="too many requests from your key"):
            await client.call(server, DOUBLE, Ask(3))
        await other.call(server, DOUBLE, Ask(4))


async def test_one_address_cannot_ask_faster_than_its_rate_and_a_proxy_of_ours_is_seen_through() -> None:
    async def status(session: aiohttp.ClientSession, url: str, forwarded: str) -> int:
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        async with session.post(url, data=b"", headers=headers) as response:
            if response.status == 429:
                assert int(response.headers["Retry-After"]) > 90
            return response.status

    async with (
        running_server(address_rate=0.01, address_burst=1, trusted_proxies=("127.0.0.1",)) as (_, server),
        aiohttp.ClientSession() as session,
    ):
        origins = ["198.51.100.1", "9.9.9.9, 198.51.100.1", "198.51.100.2", "", ""]
        statuses = [await status(session, server.url + DOUBLE.path, origin) for origin in origins]
    assert statuses == [400, 429, 400, 400, 429]


async def test_a_strangers_forwarded_header_is_not_believed() -> None:
    async with running_server(address_rate=0.01, address_burst=1) as (_, server), aiohttp.ClientSession() as session:
        statuses = []
        for number in range(2):
            headers = {"X-Forwarded-For": f"198.51.100.{number}"}
            async with session.post(server.url + DOUBLE.path, data=b"", headers=headers) as response:
                statuses.append(response.status)
        assert statuses == [400, 429]


async def test_stopping_lets_open_requests_end() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def wait(caller: Caller, message: Ask) -> Told:
        inside.set()
        await go.wait()
        return Told(7)

    async with client_of() as client:
        async with running_server(handlers={SPEND: wait}) as (made, server):
            call = asyncio.create_task(client.call(server, SPEND, Ask(1)))
            await inside.wait()
            stop = asyncio.create_task(made.stop())
            await asyncio.sleep(0)
            go.set()
            assert (await call).message == Told(7)
            await stop
        with pytest.raises(Unreachable, match="connection refused; is the coordinator running"):
            await client.call(server, SPEND, Ask(1))


async def test_a_request_on_an_open_connection_of_a_stopping_server_is_told_to_come_back() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def wait(caller: Caller, message: Ask) -> Told:
        if message.number:
            inside.set()
            await go.wait()
        return Told(7)

    async with running_server(handlers={SPEND: wait}) as (made, server), client_of(attempts_max=1) as client:
        # Two connections at once leave one idle connection beside the busy one.
        first = asyncio.create_task(client.call(server, SPEND, Ask(1)))
        await inside.wait()
        await client.call(server, SPEND, Ask(0))
        stop = asyncio.create_task(made.stop())
        await asyncio.sleep(0)
        with pytest.raises(CallRefused, match="this server is stopping"):
            await client.call(server, SPEND, Ask(0))
        go.set()
        await first
        await stop


async def test_a_request_that_will_not_end_does_not_hold_up_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    inside = asyncio.Event()

    async def hang(caller: Caller, message: Ask) -> Told:
        inside.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(attempts_max=1) as client:
        async with running_server(handlers={SPEND: hang}, drain_ms=10) as (_, server):
            call = asyncio.create_task(client.call(server, SPEND, Ask(1)))
            await inside.wait()
        assert "stopping with 1 requests still open" in caplog.text
        with pytest.raises(Unreachable, match="it may have carried out the request"):
            await call


async def test_metrics_count_the_answers() -> None:
    metrics = Metrics("coordinator")
    counted = RequestMetrics(metrics, [DOUBLE.kind])
    made = HttpServer(SERVER_KEY, NETWORK, clock=TestClock(), limits=ServerLimits(address_burst=2), metrics=counted)
    made.add(DOUBLE, double)
    made.app.router.add_get("/metrics", metrics.handle)
    port = await made.start(ListenConfig())
    async with client_of(attempts_max=1) as client, aiohttp.ClientSession() as session:
        server = ServerAddress(f"http://127.0.0.1:{port}", SERVER_KEY.node)
        await client.call(server, DOUBLE, Ask(1))
        async with session.post(server.url + DOUBLE.path, data=b"junk") as response:
            assert response.status == 400
        async with session.get(server.url + "/metrics") as response:
            text = await response.text()
    await made.stop()
    assert 'prime_coordinator_requests_total{kind="double",status="200"} 1.0' in text
    assert 'prime_coordinator_requests_total{kind="double",status="400"} 1.0' in text
    assert "prime_coordinator_requests_open 0.0" in text


async def test_tls_works_and_a_certificate_that_nobody_vouches_for_is_explained(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    made = HttpServer(SERVER_KEY, NETWORK, clock=TestClock(), limits=ServerLimits())
    made.add(DOUBLE, double)
    port = await made.start(ListenConfig(tls_certificate=certificate, tls_key=key))
    server = ServerAddress(f"https://localhost:{port}", SERVER_KEY.node)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with client_of(authority=tmp_path / "ca.pem") as client:
        assert (await client.call(server, DOUBLE, Ask(1))).message == Told(2)
    async with client_of() as client:
        with pytest.raises(Unreachable, match="its TLS certificate is invalid"):
            await client.call(server, DOUBLE, Ask(1))
    await made.stop()
    with pytest.raises(LocalError, match="cannot use the TLS authority"):
        async with client_of(authority=tmp_path / "none.pem"):
            pass
    key.write_text("not a key")
    with pytest.raises(LocalError, match="cannot use the TLS certificate"):
        await HttpServer(SERVER_KEY, NETWORK, clock=TestClock(), limits=ServerLimits()).start(
            ListenConfig(tls_certificate=certificate, tls_key=key)
        )


async def test_a_taken_port_and_a_foreign_address_are_explained() -> None:
    async with running_server() as (_, server):
        port = int(server.url.rpartition(":")[2])
        for listen, words in [
            (ListenConfig(port=port), "the port is in use"),
            (ListenConfig(host="192.0.2.1"), "does not have that address"),
        ]:
            made = HttpServer(SERVER_KEY, NETWORK, clock=TestClock(), limits=ServerLimits())
            with pytest.raises(LocalError, match=words):
                await made.start(listen)


@pytest.mark.parametrize(
    "url", ["ftp://x", "nonsense", "http://", "http://u:p@host", "http://h/?q=1", "http://h:99999"]
)
def test_a_url_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(LocalError, match=r"URL"):
        ServerAddress(url, SERVER_KEY.node)


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be set together"):
        ListenConfig(tls_key=Path("key.pem"))
