"""Sources of the randomness chain: own rounds on time, lying and absent servers, and descriptions of chains."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from prime_coordinator.randomness import (
    QUICKNET_NAME,
    DrandRounds,
    OwnRounds,
    open_rounds,
    parse_round,
    read_chain_file,
    read_secret,
    render_info,
    resolve_chain,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.randomness_chain import QUICKNET, sign_round, verify_round
from prime_runtime.clock import SystemClock
from support.ledger_network import CHAIN, CHAIN_SECRET

PATH = f"/{CHAIN.compute_hash().hex()}"
GOOD = sign_round(CHAIN_SECRET, 9)


class StoppedClock(SystemClock):
    """It shows the time it is set to."""

    def __init__(self, now_ms: int) -> None:
        self.set_ms = now_ms

    def now_ms(self) -> int:
        return self.set_ms


@asynccontextmanager
async def serve(app: web.Application) -> AsyncIterator[str]:
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


def answering(make: Callable[[int], Any], status: int = 200) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(make(int(request.match_info["round"])), status=status)

    app = web.Application()
    app.router.add_get(PATH + "/public/{round}", answer)
    return app


def told(signature: bytes, number: int = 9) -> dict[str, Any]:
    return {"round": number, "signature": signature.hex()}


async def test_an_own_chain_signs_no_round_before_its_time() -> None:
    clock = StoppedClock(CHAIN.round_time_ms(9) - 1)
    source = OwnRounds(CHAIN, CHAIN_SECRET, clock)
    assert await source.fetch(9) is None
    assert await source.fetch(0) is None
    clock.set_ms += 1
    assert await source.fetch(9) == GOOD
    await source.close()


async def test_an_own_chain_is_served_at_drands_paths_and_verifies() -> None:
    app, clock = web.Application(), StoppedClock(CHAIN.round_time_ms(9))
    OwnRounds(CHAIN, CHAIN_SECRET, clock).add_routes(app)
    async with serve(app) as url, ClientSession() as session:
        async with session.get(f"{url}{PATH}/info") as response:
            info = await response.json()
        assert info == render_info(CHAIN)
        assert info["hash"] == CHAIN.compute_hash().hex()
        for wanted in ("9", "latest"):
            async with session.get(f"{url}{PATH}/public/{wanted}") as response:
                found = await response.json()
            assert found["round"] == 9
            randomness = verify_round(CHAIN, 9, bytes.fromhex(found["signature"]))
            assert found["randomness"] == randomness.hex()
        for missing in ("10", "0", "abc"):
            async with session.get(f"{url}{PATH}/public/{missing}") as response:
                assert response.status == 404
        source = DrandRounds(CHAIN, [url], clock)
        assert await source.fetch(9) == GOOD, "our own client reads it too"
        await source.close()


async def test_the_signature_decides_among_servers_that_lie_or_are_away() -> None:
    liars = [
        answering(lambda number: told(sign_round(CHAIN_SECRET, 8))),
        answering(lambda number: told(GOOD, 8)),
        answering(lambda number: told(b"no point")),
        answering(lambda number: {"round": 9, "signature": "not hexadecimal"}),
        answering(lambda number: "x" * 10_000),
        answering(lambda number: told(GOOD), status=500),
    ]
    async with serve(answering(lambda number: told(GOOD))) as honest:
        for liar in liars:
            async with serve(liar) as url:
                source = DrandRounds(CHAIN, ["http://127.0.0.1:1", url, honest], SystemClock())
                assert await source.fetch(9) == GOOD
                await source.close()


async def test_without_a_valid_round_there_is_none_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    source = DrandRounds(CHAIN, ["http://127.0.0.1:1"], StoppedClock(10**12))
    assert await source.fetch(9) is None
    assert await source.fetch(9) is None
    await source.close()
    warnings = [record.message for record in caplog.records if "no source has round 9" in record.message]
    assert len(warnings) == 1, "not for every try"


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"round": 8, "signature": ""}', b'{"round": 9, "signature": "zz"}'])
def test_other_answers_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteError):
        parse_round(raw, 9)


CHAIN_FILE = f"""
public_key = "{CHAIN.public_key.hex()}"
genesis_time = {CHAIN.genesis_s}
period = 1
groupHash = "{CHAIN.group_hash.hex()}"
beaconID = "{CHAIN.beacon_id}"
urls = ["http://one", "http://two"]
"""


def test_a_chain_is_described_by_a_file_with_drands_names(tmp_path: Path) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(CHAIN_FILE)
    assert read_chain_file(path) == (CHAIN, ("http://one", "http://two"))
    assert resolve_chain(str(path))[0] == CHAIN
    assert resolve_chain(QUICKNET_NAME)[0] == QUICKNET


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("public_key = ", "is not TOML"),
        ("period = 1", "has no public_key; needed are"),
        (CHAIN_FILE.replace('public_key = "', 'public_key = "zz'), "does not describe a chain"),
        (CHAIN_FILE + 'hash = "00"', "the chain hash is 00"),
        (CHAIN_FILE + 'schemeID = "pedersen-bls-chained"', "the one supported is"),
    ],
)
def test_a_bad_description_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(text)
    with pytest.raises(LocalError, match=problem):
        read_chain_file(path)


def test_an_unknown_chain_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="known are own, drand:quicknet"):
        resolve_chain("drand:fastnet")
    with pytest.raises(LocalError, match="cannot read"):
        resolve_chain(str(tmp_path / "nothing.toml"))


def test_the_key_of_an_own_chain_must_be_there_and_whole(tmp_path: Path) -> None:
    path, clock = tmp_path / "randomness.key", SystemClock()
    with pytest.raises(LocalError, match="is missing; restore it from a backup"):
        open_rounds(CHAIN, (), "", path, clock)
    for text in ("zz", "00"):
        path.write_text(text)
        with pytest.raises(LocalError, match=r"cannot read|is damaged"):
            read_secret(path)
    path.write_text(CHAIN_SECRET.hex() + "\n")
    assert isinstance(open_rounds(CHAIN, (), "", path, clock), OwnRounds)
    assert isinstance(open_rounds(QUICKNET, (), "", path, clock), DrandRounds)
    assert isinstance(open_rounds(QUICKNET, ("http://mirror",), "", path, clock), DrandRounds)
