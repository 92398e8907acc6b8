"""Asks the router to forward a port to this machine, by NAT-PMP (RFC 6886) or by UPnP with miniupnpc.

Off unless the owner sets `reach.map_port`, because it opens the router for everybody. The router belongs to the same
home, but its answers are parsed strictly: other devices of that network may send them too.
"""

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

LIFE_S = 3_600
"""How long the router keeps the mapping; it is renewed at half of it."""
RETRY_MS = 300_000
RENEW_MIN_MS = 60_000
"""A router that grants a second must not be asked twice a second."""
PMP_PORT = 5_351
PMP_TRIES_S = (0.25, 0.5, 1.0)
UPNP_DISCOVER_MS = 2_000
UPNP_NAME = "prime-node"
MAP_TCP, ADDRESS = 2, 0
PMP_PROBLEMS = {1: "speaks another version", 2: "refuses: port mapping is off", 3: "has no connection", 4: "is full"}


@dataclass(frozen=True, slots=True)
class PortMapping:
    """What the router forwards."""

    address: str
    """Of the router, outside."""
    port: int
    """Outside."""
    life_s: int
    how: str


def encode_pmp_mapping(port: int, life_s: int) -> bytes:
    return struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, port, life_s)


def decode_pmp_mapping(raw: bytes, port: int) -> tuple[int, int]:
    """Outer port and life. LocalError: the router refuses."""
    _check_pmp(raw, MAP_TCP, 16)
    _, inner, outer, life_s = struct.unpack("!IHHI", raw[4:])
    if inner != port or not outer or not life_s:
        raise LocalError("the router's answer is about another port")
    return outer, life_s


def decode_pmp_address(raw: bytes) -> str:
    _check_pmp(raw, ADDRESS, 12)
    return str(IPv4Address(raw[8:]))


def _check_pmp(raw: bytes, operation: int, length: int) -> None:
    if len(raw) < 4 or raw[0] != 0 or raw[1] != 128 + operation:
        raise LocalError("the router's answer is malformed")
    (code,) = struct.unpack("!H", raw[2:4])
    if code:
        raise LocalError(f"the router {PMP_PROBLEMS.get(code, f'answers {code}')}")
    if len(raw) != length:
        raise LocalError("the router's answer is malformed")


def find_router(routes: str) -> str | None:
    """The default route's gateway in the text of /proc/net/route."""
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000" and fields[2] != "00000000":
            return socket.inet_ntoa(struct.pack("<I", int(fields[2], 16)))
    return None


def map_by_pmp(router: str, port: int, life_s: int, *, pmp_port: int = PMP_PORT) -> PortMapping:
    """Blocks for at most two seconds twice. LocalError: there is no answer, or a refusal."""
    address = decode_pmp_address(_ask_pmp(router, pmp_port, bytes([0, ADDRESS])))
    outer, granted_s = decode_pmp_mapping(_ask_pmp(router, pmp_port, encode_pmp_mapping(port, life_s)), port)
    return PortMapping(address, outer, granted_s, "NAT-PMP")


def _ask_pmp(router: str, pmp_port: int, question: bytes) -> bytes:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as line:
        try:
            line.connect((router, pmp_port))  # the kernel then drops answers of other addresses
            for wait_s in PMP_TRIES_S:
                line.settimeout(wait_s)
                line.send(question)
                try:
                    return line.recv(64)
                except TimeoutError:
                    continue
        except OSError as error:
            raise LocalError(f"the router does not speak NAT-PMP: {error.strerror or error}") from None
    raise LocalError("the router does not speak NAT-PMP")


def map_by_upnp(port: int, life_s: int) -> PortMapping:
    """LocalError: miniupnpc is not installed, or there is no router that does it."""
    try:
        # libp2p brings it. It has no types.
        router: Any = import_module("miniupnpc").UPnP()
    except ImportError:
        raise LocalError("for UPnP, pip install miniupnpc") from None
    router.discoverdelay = UPNP_DISCOVER_MS
    try:
        if not router.discover():
            raise LocalError("no router speaks UPnP")
        router.selectigd()
        router.addportmapping(port, "TCP", router.lanaddr, port, UPNP_NAME, "", life_s)
        return PortMapping(str(IPv4Address(router.externalipaddress())), port, life_s, "UPnP")
    except LocalError:
        raise
    except Exception as error:  # boundary: the library raises bare Exceptions
        raise LocalError(f"UPnP: {error}") from None


def map_port(port: int, life_s: int) -> PortMapping:
    """By whichever the router speaks. Blocks for some seconds. LocalError: neither."""
    problems = []
    try:
        router = find_router(Path("/proc/net/route").read_text()) if sys.platform == "linux" else None
    except OSError:  # a sandbox may hide it
        router = None
    if router is not None:
        try:
            return map_by_pmp(router, port, life_s)
        except LocalError as error:
            problems.append(str(error))
    try:
        return map_by_upnp(port, life_s)
    except LocalError as error:
        problems.append(str(error))
    raise LocalError("; ".join(problems))


class PortMapper:
    """Keeps one port mapped."""

    def __init__(
        self, clock: Clock, map_port: Callable[[int, int], PortMapping] = map_port, *, allow_private: bool
    ) -> None:
        """`allow_private`: announce an outer address of a private network too."""
        self._allow_private = allow_private
        self._clock = clock
        self._map_port = map_port
        self.mapping: PortMapping | None = None
        self.problem = ""

    @property
    def urls(self) -> tuple[str, ...]:
        return (f"http://{self.mapping.address}:{self.mapping.port}",) if self.mapping is not None else ()

    async def run(self, port: int) -> None:
        while True:
            try:
                found = await asyncio.to_thread(self._map_port, port, LIFE_S)
                if not (self._allow_private or IPv4Address(found.address).is_global):
                    raise LocalError(f"its outer address {found.address} is private: another router is before it")
            except LocalError as error:
                if str(error) != self.problem:
                    log.info("the router does not forward a port: %s", error)
                self.mapping, self.problem = None, str(error)
                await self._clock.sleep_ms(RETRY_MS)
                continue
            if found != self.mapping:
                log.info("the router forwards %s:%d to this machine (%s)", found.address, found.port, found.how)
            self.mapping, self.problem = found, ""
            await self._clock.sleep_ms(max(RENEW_MIN_MS, found.life_s * 500))
