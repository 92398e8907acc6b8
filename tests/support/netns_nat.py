"""Homes behind routers, in network namespaces: a public network, routers that masquerade, hosts behind them.

As in netns.py everything goes with the namespaces. The addresses of the public network are of a block that the internet
routes, because nodes refuse to connect to private ones; nothing leaves the namespaces. A router behaves like those sold
to homes (Linux): connections from inside get the router's address, and packets that belong to none are dropped.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from support import netns
from support.netns import run


@dataclass(frozen=True)
class Place:
    """Where a program runs."""

    namespace: str
    address: str
    is_private: bool


@cache
def is_possible() -> bool:
    """This user, on this kernel, may make namespaces with address translation."""
    if not netns.is_possible() or not shutil.which("iptables"):
        return False
    try:
        with homes(public=1, behind=[1], mbit=100, prefix=f"tn{os.getpid() % 10_000}"):
            return True
    except subprocess.CalledProcessError:
        return False


@contextlib.contextmanager
def homes(*, public: int, behind: Sequence[int], mbit: int, prefix: str | None = None) -> Iterator[list[Place]]:
    """So many public hosts, and for each number of `behind` a router with so many hosts. The public ones come first.

    Each host has a line of `mbit`, up and down; a router's own line is not a bottleneck, as if each host had its own
    router at the same provider.
    """
    prefix = prefix or f"nn{os.getpid() % 100_000}"
    made: list[str] = []
    try:
        switch = _make_namespace(f"{prefix}-sw", made)
        _make_bridge(switch)
        places = []
        for number in range(public):
            place = Place(_make_namespace(f"{prefix}-p{number}", made), f"11.77.0.{number + 1}", False)
            _plug_in(switch, f"p{number}", place, mbit)
            places.append(place)
        for number, hosts in enumerate(behind):
            router = _make_router(f"{prefix}-r{number}", f"11.77.1.{number + 1}", switch, f"r{number}", made)
            for index in range(hosts):
                name = _make_namespace(f"{prefix}-n{number}-{index}", made)
                place = Place(name, f"192.168.0.{index + 2}", True)
                _plug_in(router, f"h{index}", place, mbit)
                run("ip", "-n", name, "route", "add", "default", "via", "192.168.0.1")
                places.append(place)
        yield places
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _make_namespace(name: str, made: list[str]) -> str:
    run("ip", "netns", "add", name)
    made.append(name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    return name


def _make_bridge(namespace: str) -> None:
    run("ip", "-n", namespace, "link", "add", "br0", "type", "bridge")
    run("ip", "-n", namespace, "link", "set", "br0", "up")


def _make_router(name: str, address: str, switch: str, port: str, made: list[str]) -> str:
    _make_namespace(name, made)
    _make_bridge(name)
    run("ip", "-n", name, "addr", "add", "192.168.0.1/24", "dev", "br0")
    run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "wan", "netns", name)
    run("ip", "-n", switch, "link", "set", port, "master", "br0")
    run("ip", "-n", switch, "link", "set", port, "up")
    run("ip", "-n", name, "addr", "add", f"{address}/16", "dev", "wan")
    run("ip", "-n", name, "link", "set", "wan", "up")
    inside = ("ip", "netns", "exec", name)
    run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    known = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
    for chain in ("INPUT", "FORWARD"):
        run(*inside, "iptables", "-A", chain, "-i", "wan", *known)
        run(*inside, "iptables", "-A", chain, "-i", "wan", "-j", "DROP")
    run(*inside, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE")
    return name


def _plug_in(switch: str, port: str, place: Place, mbit: int) -> None:
    run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", place.namespace)
    run("ip", "-n", switch, "link", "set", port, "master", "br0")
    run("ip", "-n", switch, "link", "set", port, "up")
    bits = 24 if place.is_private else 16
    run("ip", "-n", place.namespace, "addr", "add", f"{place.address}/{bits}", "dev", "eth0")
    run("ip", "-n", place.namespace, "link", "set", "eth0", "up")
    for namespace, device in ((place.namespace, "eth0"), (switch, port)):
        shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, *shape)
