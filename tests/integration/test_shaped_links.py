"""Sixteen nodes and an origin, each behind 100 Mbit/s up and down: the last has the weights almost as soon as one could."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import netns
import pytest
from shard_hosts import make_tensors, write_checkpoint

NODES = 16
MBIT = 100
SHARD_BYTES = 2**20
SIZE_BYTES = 96 * 2**20
PARTY = Path(__file__).parents[1] / "shard_party.py"


class Host:
    """A party in its own namespace."""

    def __init__(self, namespace: str, address: str, role: str, folder: Path) -> None:
        command = ["ip", "netns", "exec", namespace, sys.executable, str(PARTY), role, str(folder), "--host", address]
        command += ["--slots", "4", "--address-slots", "2"]
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


@pytest.mark.skipif(not netns.is_possible(), reason="network namespaces with shaped links need root and iproute2")
def test_time_to_the_last_node_is_near_the_least_possible(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "step0", make_tensors(1, tensors=4, size=SIZE_BYTES // 4))
    with netns.shaped_hosts(NODES + 1, mbit=MBIT) as places:
        names = ["origin", *(f"node{number}" for number in range(NODES))]
        hosts = [
            Host(namespace, address, name.rstrip("0123456789").replace("node", "client"), tmp_path / name)
            for name, (namespace, address) in zip(names, places, strict=True)
        ]
        try:
            for host in hosts:
                host.hear()
            seconds, found = broadcast(hosts, checkpoint)
        finally:
            for host in hosts:
                host.process.kill()
                host.process.wait()
    check_files(tmp_path, names[1:], checkpoint)
    depth = max(each["depth"] for each in found)
    least_s, shard_s = SIZE_BYTES * 8 / (MBIT * 1e6), SHARD_BYTES * 8 / (MBIT * 1e6)
    print(
        f"\n{NODES} nodes, {MBIT} Mbit/s, {SIZE_BYTES >> 20} MiB: last after {seconds:.2f} s, "
        f"size/bandwidth {least_s:.2f} s, ratio {seconds / least_s:.3f}, depth {depth}, "
        f"{sum(each['sent_shards'] for each in found)} of {NODES * SIZE_BYTES // SHARD_BYTES} shards sent by nodes, "
        f"{sum(each['cpu_s'] for each in found):.1f} CPU-s"
    )
    assert seconds <= 1.3 * least_s + depth * shard_s


def broadcast(hosts: list[Host], checkpoint: Path) -> tuple[float, list[dict[str, Any]]]:
    origin, *nodes = hosts
    origin.tell(publish=str(checkpoint), step=0, shard_bytes=SHARD_BYTES)
    made = origin.hear()
    frames = list(made["frames"])
    for node in nodes:
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
    return time.monotonic() - began, found


def check_files(folder: Path, names: list[str], checkpoint: Path) -> None:
    for name in names:
        (place,) = (folder / name / "checkpoints").iterdir()
        for file in ("model.safetensors", "config.json"):
            assert (place / file).read_bytes() == (checkpoint / file).read_bytes()
        shutil.rmtree(folder / name)
