"""An origin and nodes in namespaces of their own, each behind a line of a given speed: one broadcast, timed."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import netns, netns_nat
from support.netns_nat import Place

PARTY = Path(__file__).with_name("shard_process.py")


class Host:
    """A party in its own namespace, driven by JSON lines."""

    def __init__(self, place: Place, role: str, folder: Path) -> None:
        self.is_private = place.is_private
        command = ["ip", "netns", "exec", place.namespace, sys.executable, str(PARTY), role, str(folder)]
        command += ["--host", place.address, "--slots", "6", "--address-slots", "2"]
        command += ["--private"] if place.is_private else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "a party ended early"
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Outcome:
    """What a broadcast came to."""

    seconds: float
    """From the order to fetch until the last node has every tensor verified."""
    depth: int
    shards: int
    sent_by_origin: int
    cpu_s: float
    sent_by_private: int
    """Shards that nodes behind routers sent."""
    connected: int
    """Connections through two routers."""


def run_broadcast(folder: Path, checkpoint: Path, *, nodes: int, mbit: int, shard_bytes: int) -> Outcome:
    """Every node can connect to every other one."""
    with netns.shaped_hosts(nodes + 1, mbit=mbit) as hosts:
        places = [Place(namespace, address, False) for namespace, address in hosts]
        return run_broadcast_at(folder, checkpoint, places, shard_bytes=shard_bytes)


def run_broadcast_behind_routers(
    folder: Path,
    checkpoint: Path,
    *,
    public: int,
    routers: int,
    behind_each: int,
    mbit: int,
    shard_bytes: int,
    late: int = 0,
) -> Outcome:
    """As `run_broadcast`, and some nodes are behind routers. The origin is not counted among the public ones. `late`: 1
    for one more node, behind a router of its own, that joins when the origin is gone."""
    sizes = [behind_each] * routers + [1] * late
    with netns_nat.homes(public=public + 1, behind=sizes, mbit=mbit) as places:
        return run_broadcast_at(folder, checkpoint, places, shard_bytes=shard_bytes, is_last_late=bool(late))


def run_broadcast_at(
    folder: Path, checkpoint: Path, places: Sequence[Place], *, shard_bytes: int, is_last_late: bool = False
) -> Outcome:
    """From the first place to all others. Every node knows of every other, as by gossip; what each fetched is compared
    with the checkpoint. `is_last_late`: the node at the last place joins when the origin is gone, and knows the first
    node only."""
    names = ["origin", *(f"node{number}" for number in range(len(places) - 1))]
    hosts: list[Host] = []
    try:
        for name, place in list(zip(names, places, strict=True))[: -1 if is_last_late else None]:
            hosts.append(Host(place, "client" if name != "origin" else name, folder / name))
        for host in hosts:
            host.hear()
        outcome, announced = broadcast(hosts, checkpoint, shard_bytes)
        if is_last_late:
            hosts[0].end()
            hosts.append(Host(places[-1], "client", folder / names[-1]))
            fetch_late(hosts[1], hosts[-1], announced)
    finally:
        for host in hosts:
            host.end()
    for name in names[1:]:
        (place_of_it,) = (folder / name / "checkpoints").glob("*[0-9a-f]")
        for file in checkpoint.iterdir():
            assert (place_of_it / file.name).read_bytes() == file.read_bytes(), f"{name} has other weights"
    return outcome


def fetch_late(peer: Host, late: Host, announced: dict[str, Any]) -> None:
    """A node that knows the announcement and one peer fetches from that."""
    late.hear()
    assert peer.hear()["rested"]
    peer.tell(serve=announced["manifest"])
    late.tell(frames=announced["frames"][:-1] + peer.hear()["frames"])
    late.tell(obtain=announced["root"], manifest=announced["manifest"])
    late.hear()
    late.hear()


def broadcast(hosts: list[Host], checkpoint: Path, shard_bytes: int) -> tuple[Outcome, dict[str, Any]]:
    """What came of it, and what the origin had announced."""
    origin, *nodes = hosts
    origin.tell(publish=str(checkpoint), step=0, shard_bytes=shard_bytes)
    made = origin.hear()
    frames = list(made["frames"])
    for node in nodes:
        if node.is_private:
            continue
        node.tell(serve=made["manifest"])
        frames += node.hear()["frames"]
    for host in hosts:
        host.tell(frames=frames)
    began = time.monotonic()
    for node in nodes:
        node.tell(obtain=made["root"], manifest=made["manifest"])
    for node in nodes:
        node.hear()
    found = [node.hear() for node in nodes]
    seconds = time.monotonic() - began
    sent_by_nodes = sum(each["sent_shards"] for each in found)
    outcome = Outcome(
        seconds=seconds,
        depth=max(each["depth"] for each in found),
        shards=made["shards"],
        sent_by_origin=len(nodes) * made["shards"] - sent_by_nodes,
        cpu_s=sum(each["cpu_s"] for each in found),
        sent_by_private=sum(each["sent_shards"] for node, each in zip(nodes, found, strict=True) if node.is_private),
        connected=sum(each["connected"] for each in found),
    )
    return outcome, made
