"""Hosts of our own on this machine: network namespaces behind one switch, each with a line of a given speed.

Needs root and the kernel's namespaces and token bucket (iproute2). Everything is made in namespaces of this test and
goes with them; the machine's own network is not touched.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@cache
def is_possible() -> bool:
    """This user, on this kernel, may make namespaces and shape their links."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return False
    try:
        with shaped_hosts(1, mbit=100, prefix=f"try{os.getpid() % 10_000}"):
            return True
    except subprocess.CalledProcessError:
        return False


@contextlib.contextmanager
def shaped_hosts(count: int, *, mbit: int, prefix: str | None = None) -> Iterator[list[tuple[str, str]]]:
    """Namespaces and addresses of so many hosts; each sends and receives at most `mbit` at once."""
    prefix = prefix or f"sc{os.getpid() % 100_000}"
    switch = f"{prefix}-sw"
    made = [switch]
    try:
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        hosts = []
        for number in range(count):
            host, address = f"{prefix}-{number}", f"10.77.{number // 250}.{number % 250 + 1}"
            run("ip", "netns", "add", host)
            made.append(host)
            port = f"p{number}"
            run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            run("ip", "-n", switch, "link", "set", port, "master", "br0")
            run("ip", "-n", switch, "link", "set", port, "up")
            run("ip", "-n", host, "addr", "add", f"{address}/16", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", host, "link", "set", device, "up")
            for namespace, device in ((host, "eth0"), (switch, port)):
                shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
                run("tc", "-n", namespace, "qdisc", "add", "dev", device, *shape)
            hosts.append((host, address))
        yield hosts
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
