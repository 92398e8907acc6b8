"""Where the rounds of the network's randomness chain come from: drand's HTTP servers, or the coordinator's own chain.

Any server may lie or be away: the signature of a round decides, so the first valid one is taken. An own chain uses the
same scheme with a key in the coordinator's folder, and is served at drand's HTTP paths. Its operator can predict it.
"""

import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from prime_protocol.constants import RANDOMNESS_SECRET_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.randomness_chain import QUICKNET, SCHEME, RandomnessChain, sign_round, verify_round
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.strict_json import parse_json
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

OWN, QUICKNET_NAME = "own", "drand:quicknet"
QUICKNET_URLS = (
    "https://api.drand.sh",
    "https://api2.drand.sh",
    "https://api3.drand.sh",
    "https://drand.cloudflare.com",
)
REPLY_BYTES_MAX = 4_096
"""A round is about 300 bytes."""
FETCH_S = 5.0
"""Time for one server to answer. Longer than a period, shorter than an operator's patience with a dead server."""
WARN_EVERY_MS = 60_000


class RoundSource(Protocol):
    """Gives the signature of a published round."""

    async def fetch(self, number: int) -> bytes | None:
        """A verified signature; None where no server has it now."""

    async def close(self) -> None: ...


class OwnRounds:
    """Signs rounds with the key of an own chain, none before its time."""

    def __init__(self, chain: RandomnessChain, secret: bytes, clock: Clock) -> None:
        self.chain = chain
        self._secret = secret
        self._clock = clock

    async def fetch(self, number: int) -> bytes | None:
        return self.sign_if_due(number)

    def sign_if_due(self, number: int) -> bytes | None:
        is_due = number >= 1 and self._clock.now_ms() >= self.chain.round_time_ms(number)
        return sign_round(self._secret, number) if is_due else None

    async def close(self) -> None:
        pass

    def add_routes(self, app: web.Application) -> None:
        """drand's paths, so that any drand client can read and verify the chain."""
        base = f"/{self.chain.compute_hash().hex()}"
        app.router.add_get(f"{base}/info", self._get_info)
        app.router.add_get(base + "/public/{round:latest|[0-9]{1,18}}", self._get_round)

    async def _get_info(self, request: web.Request) -> web.Response:
        return web.json_response(render_info(self.chain))

    async def _get_round(self, request: web.Request) -> web.Response:
        wanted = request.match_info["round"]
        newest = self.chain.first_round_from(self._clock.now_ms() + 1) - 1
        number = newest if wanted == "latest" else int(wanted)
        if not 1 <= number <= newest:
            raise web.HTTPNotFound(text=f"round {wanted} is not published; the newest is {newest}\n")
        signature = sign_round(self._secret, number)
        randomness = verify_round(self.chain, number, signature)
        return web.json_response({"round": number, "randomness": randomness.hex(), "signature": signature.hex()})


class DrandRounds:
    """Fetches rounds from servers that speak drand's HTTP API."""

    def __init__(self, chain: RandomnessChain, urls: Sequence[str], clock: Clock) -> None:
        self.chain = chain
        self._urls = list(urls)
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._warned_ms = -WARN_EVERY_MS

    async def fetch(self, number: int) -> bytes | None:
        problems = []
        for url in list(self._urls):
            try:
                signature = await self._fetch_from(url, number)
                verify_round(self.chain, number, signature)
            except RemoteError as error:
                problems.append(f"{url}: {error}")
                # A server that fails or lies is asked last from now on.
                self._urls.remove(url)
                self._urls.append(url)
            else:
                return signature
        self._warn(number, problems)
        return None

    async def _fetch_from(self, url: str, number: int) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S))
        path = f"{url.rstrip('/')}/{self.chain.compute_hash().hex()}/public/{number}"
        try:
            async with self._session.get(path, allow_redirects=False) as response:
                raw = await response.content.read(REPLY_BYTES_MAX + 1)
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise RemoteError("round", f"cannot be fetched: {error or type(error).__name__}") from None
        if status != 200 or len(raw) > REPLY_BYTES_MAX:
            raise RemoteError("round", f"the answer is HTTP {status} with {len(raw)} bytes")
        return parse_round(raw, number)

    def _warn(self, number: int, problems: list[str]) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._warned_ms >= WARN_EVERY_MS:
            self._warned_ms = now_ms
            log.warning("no source has round %d; beacons and audits wait: %s", number, "; ".join(problems))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def parse_round(raw: bytes, number: int) -> bytes:
    """The signature in a server's answer; RemoteError where it is another round's or not drand's form."""
    value = parse_json("round", raw)
    if not isinstance(value, dict) or value.get("round") != number:
        raise RemoteError("round", f"the answer is not about round {number}")
    try:
        return bytes.fromhex(str(value.get("signature")))
    except ValueError:
        raise RemoteError("signature", "is not hexadecimal") from None


def render_info(chain: RandomnessChain) -> dict[str, Any]:
    """drand's description of a chain."""
    return {
        "public_key": chain.public_key.hex(),
        "period": chain.period_s,
        "genesis_time": chain.genesis_s,
        "hash": chain.compute_hash().hex(),
        "groupHash": chain.group_hash.hex(),
        "schemeID": chain.scheme,
        "metadata": {"beaconID": chain.beacon_id},
    }


def read_chain_file(path: Path) -> tuple[RandomnessChain, tuple[str, ...]]:
    """A chain and its servers from a TOML file with drand's names; LocalError says what is missing."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise LocalError(f"{path} is not TOML: {error}") from None
    try:
        chain = RandomnessChain(
            public_key=bytes.fromhex(table["public_key"]),
            scheme=str(table.get("schemeID", SCHEME)),
            genesis_s=int(table["genesis_time"]),
            period_s=int(table["period"]),
            group_hash=Digest(bytes.fromhex(table["groupHash"])),
            beacon_id=str(table.get("beaconID", "default")),
        )
        wanted, urls = table.get("hash", chain.compute_hash().hex()), tuple(map(str, table["urls"]))
    except KeyError as error:
        raise LocalError(f"{path} has no {error.args[0]}; needed are {CHAIN_KEYS}") from None
    except (RemoteError, TypeError, ValueError) as error:
        raise LocalError(f"{path} does not describe a chain: {error}; needed are {CHAIN_KEYS}") from None
    if wanted != chain.compute_hash().hex():
        raise LocalError(f"{path} says that the chain hash is {wanted}, the description gives {chain.compute_hash()}")
    return chain, urls


CHAIN_KEYS = "public_key, genesis_time, period, groupHash and urls; see docs/protocol/beacon.md"


def resolve_chain(name: str) -> tuple[RandomnessChain, tuple[str, ...]]:
    """The chain that a setting names, and its usual servers; not for an own chain, which is made by `init`."""
    if name == QUICKNET_NAME:
        return QUICKNET, QUICKNET_URLS
    if name.startswith("drand:"):
        raise LocalError(f"randomness is {name}; known are {OWN}, {QUICKNET_NAME}, or the path of a TOML file")
    return read_chain_file(Path(name))


def read_secret(path: Path) -> bytes:
    """The key of an own chain."""
    try:
        raw = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        raise LocalError(f"{path} is missing; restore it from a backup: without it no step can begin") from None
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None
    if len(raw) != RANDOMNESS_SECRET_BYTES:
        raise LocalError(f"{path} is damaged; restore it from a backup")
    return raw


def open_rounds(chain: RandomnessChain, urls: Sequence[str], name: str, key_path: Path, clock: Clock) -> RoundSource:
    """The source of the chain that the network's first entry names."""
    if chain.is_own:
        return OwnRounds(chain, read_secret(key_path), clock)
    if not urls:
        urls = QUICKNET_URLS if chain == QUICKNET else resolve_chain(name)[1]
    return DrandRounds(chain, urls, clock)
