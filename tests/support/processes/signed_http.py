"""Parts for tests of signed HTTP over real sockets: a clock that tests move, keys, one endpoint, raw hostile bytes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NetworkId
from prime_protocol.wire.rpc import Endpoint
from prime_protocol.wire.signing import WalletKey
from prime_runtime.http.client import HttpClient, open_client
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress, ServerLimits
from prime_runtime.http.server import Caller, HttpServer

NETWORK = NetworkId("testnet")
SERVER_KEY = WalletKey.from_secret(b"\x11" * 32)
NODE_KEY = WalletKey.from_secret(b"\x22" * 32)
START_MS = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Ask:
    number: int


@dataclass(frozen=True, slots=True)
class Told:
    double: int


DOUBLE = Endpoint("double", Ask, Told, is_idempotent=True)
SPEND = Endpoint("spend", Ask, Told)


@dataclass
class TestClock:
    """Wall time stands still until a test moves it; deadlines run for real; sleeping is only noted."""

    __test__ = False
    wall_ms: int = START_MS
    slept_ms: list[int] = field(default_factory=list)

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept_ms.append(duration_ms)
        await asyncio.sleep(0)


async def double(caller: Caller, message: Ask) -> Told:
    return Told(message.number * 2)


LIMITS = ServerLimits(drain_ms=2_000)
LANES = {"express": False}
"""Whether running_server opens the express lane. Nobody who calls may notice it."""


@asynccontextmanager
async def running_server(
    limits: ServerLimits = LIMITS,
    clock: TestClock | None = None,
    handlers: dict[Endpoint[Any, Any], Any] | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[HttpServer, ServerAddress]]:
    made = HttpServer(SERVER_KEY, NETWORK, clock=clock or TestClock(), limits=replace(limits, **changes))
    for endpoint, handler in (handlers or {DOUBLE: double, SPEND: double}).items():
        made.add(endpoint, handler, is_fast=LANES["express"])
    port = await made.start(ListenConfig())
    try:
        yield made, ServerAddress(f"http://127.0.0.1:{port}", SERVER_KEY.node)
    finally:
        await made.stop()


@asynccontextmanager
async def client_of(
    key: WalletKey = NODE_KEY,
    clock: TestClock | None = None,
    network: NetworkId = NETWORK,
    authority: Path | None = None,
    **changes: Any,
) -> AsyncIterator[HttpClient]:
    async with open_client(
        key=key,
        network=network,
        clock=clock or TestClock(),
        limits=ClientLimits(**changes),
        authority=authority,
    ) as client:
        yield client


def sealed(number: int = 21, *, sequence: int = 1, **changes: Any) -> bytes:
    """The frame of an honest request, or of one with a part changed."""
    parts: dict[str, Any] = {
        "kind": DOUBLE.kind,
        "body": encode(Ask(number)),
        "network": NETWORK,
        "run": None,
        "issued_at_ms": START_MS,
        "life_ms": 60_000,
    }
    return seal_envelope(NODE_KEY, sequence=sequence, **{**parts, **changes})


async def send_raw(server: ServerAddress, data: bytes) -> bytes:
    """Bytes to the socket as they are; all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
