"""Asking a router for a port. The router is a UDP socket of this test."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from prime_node.reverse import port_mapping
from prime_node.reverse.port_mapping import PortMapper, PortMapping, decode_pmp_mapping, find_router, map_by_pmp
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock

ADDRESS_ANSWER = struct.pack("!BBHI4s", 0, 128, 0, 7, socket.inet_aton("203.0.113.9"))
MAPPING_ANSWER = struct.pack("!BBHIHHI", 0, 130, 0, 7, 8450, 18450, 1800)


@contextmanager
def router(*answers: bytes) -> Iterator[int]:
    """Gives these answers, one to each question."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as line:
        line.bind(("127.0.0.1", 0))
        line.settimeout(10)

        def serve() -> None:
            for answer in answers:
                _, client = line.recvfrom(64)
                line.sendto(answer, client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(line.getsockname()[1])
        thread.join()


def test_the_router_says_what_it_forwards() -> None:
    with router(ADDRESS_ANSWER, MAPPING_ANSWER) as pmp_port:
        mapping = map_by_pmp("127.0.0.1", 8450, 3600, pmp_port=pmp_port)
    assert mapping == PortMapping("203.0.113.9", 18450, 1800, "NAT-PMP")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "malformed"),
        (b"\1" + MAPPING_ANSWER[1:], "malformed"),
        (MAPPING_ANSWER + b"x", "malformed"),
        (MAPPING_ANSWER[:2] + b"\0\2" + MAPPING_ANSWER[4:], "port mapping is off"),
        (MAPPING_ANSWER[:2] + b"\0\x63" + MAPPING_ANSWER[4:], "answers 99"),
        (struct.pack("!BBHIHHI", 0, 130, 0, 7, 22, 18450, 1800), "another port"),
        (struct.pack("!BBHIHHI", 0, 130, 0, 7, 8450, 0, 1800), "another port"),
        (struct.pack("!BBHIHHI", 0, 130, 0, 7, 8450, 18450, 0), "another port"),
    ],
)
def test_a_malformed_or_refusing_answer_maps_nothing(answer: bytes, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        decode_pmp_mapping(answer, 8450)


def test_the_router_is_the_default_route() -> None:
    head = "Iface\tDestination\tGateway \tFlags\n"
    assert find_router(head + "eth0\t0000A8C0\t00000000\t0001\neth0\t00000000\t0100A8C0\t0003\n") == "192.168.0.1"
    assert find_router(head + "eth0\t0000A8C0\t00000000\t0001\n") is None


async def test_a_mapping_is_announced_and_its_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[PortMapping | LocalError] = [
        LocalError("no router"),
        PortMapping("100.64.0.9", 18450, 0, "NAT-PMP"),
        PortMapping("8.8.8.8", 18450, 0, "NAT-PMP"),
        LocalError("gone"),
    ]
    said: list[tuple[tuple[str, ...], str]] = []
    monkeypatch.setattr(port_mapping, "RETRY_MS", 0)
    monkeypatch.setattr(port_mapping, "RENEW_MIN_MS", 0)

    def ask(port: int, life_s: int) -> PortMapping:
        said.append((mapper.urls, mapper.problem))
        if not found:
            raise asyncio.CancelledError
        answer = found.pop(0)
        if isinstance(answer, LocalError):
            raise answer
        return answer

    mapper = PortMapper(SystemClock(), ask, allow_private=False)
    with pytest.raises(asyncio.CancelledError):
        await mapper.run(8450)
    private = "its outer address 100.64.0.9 is private: another router is before it"
    assert said == [((), ""), ((), "no router"), ((), private), (("http://8.8.8.8:18450",), ""), ((), "gone")]
