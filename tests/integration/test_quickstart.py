"""A whole test network with one command: made, started, joined by a second node, stopped, and started again."""

import asyncio
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from prime_coordinator.quickstart.plan import (
    QuickstartPlan,
    list_invites,
    list_orders,
    list_preparations,
    list_services,
    make_coordinator_step,
)
from prime_protocol.wire.ids import NodeId
from prime_runtime.child_processes import RunningProcess
from test_docs import parse

BIN = Path(sys.executable).parent
CREDITED_S = 180.0


def find_free_port() -> int:
    """One whose successor is free too: quickstart takes two."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            try:
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            except OSError:
                continue
            return int(first.getsockname()[1])


@contextmanager
def started(folder: Path, port: int) -> Iterator[list[str]]:
    """quickstart until others can join; ended by Ctrl-C. Yields what it printed."""
    command = [BIN / "prime-coordinator", "quickstart", "--folder", folder, "--port", str(port), "--yes"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C stops it" in line:
                break
        else:
            raise AssertionError("".join(lines))
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    assert [line for line in rest.splitlines() if line.startswith("stopping")][-1] == "stopping coordinator"


def get(port: int, path: str) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1{path}") as response:
            return json.load(response)
    except URLError:
        return None


def test_one_command_makes_a_network_that_a_second_node_joins_and_is_credited(tmp_path: Path) -> None:
    port, folder = find_free_port(), tmp_path / "network"
    with started(folder, port) as lines:
        text = "".join(lines)
        assert f"prime-node start --coordinator http://127.0.0.1:{port}\n" in text
        assert [line.split()[0] for line in lines if line.startswith("prime-")]
        command = [BIN / "prime-node", "start", "--coordinator", f"http://127.0.0.1:{port}"]
        worker = subprocess.Popen([*command, "--folder", tmp_path / "worker"], stderr=subprocess.PIPE, text=True)
        try:
            end_s = time.monotonic() + CREDITED_S
            while not (found := get(port, "/submissions?state=accepted")) or not found["submissions"]["rows"]:
                assert time.monotonic() < end_s, "no rollout was accepted"
                assert worker.poll() is None, worker.communicate()[1]
                select.select([], [], [], 0.5)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=60)
        before = get(port, "/status")["coordinator"]
    assert worker.returncode == 0
    with started(folder, port) as lines:
        again = [line for line in lines if line.startswith("prime-")]
        assert [line.split()[1] for line in again] == ["start", "start", "origin", "start"], "nothing is made twice"
        assert get(port, "/status")["coordinator"] == before


ADDRESS = NodeId(b"\x11" * 20)


@pytest.mark.parametrize("host", ["", "swarm.example"])
def test_every_command_of_the_plan_is_one_that_a_user_could_type(host: str) -> None:
    plan = QuickstartPlan(folder=Path("/somewhere"), host=host, port=1234)
    steps = [
        *list_preparations(plan),
        make_coordinator_step(plan),
        *list_orders(plan, trainer=ADDRESS, inspector=ADDRESS, model=plan.model_folder),
        *list_services(plan, coordinator=ADDRESS, model=plan.model_folder),
    ]
    for step in steps:
        parse(step.words)
    for invite in list_invites(plan):
        parse(invite.split())
    announced = [word for step in steps for word in step.words if word.startswith("http://swarm.example")]
    assert announced == (["http://swarm.example:1234", "http://swarm.example:1235"] if host else [])


async def test_a_program_that_ends_is_shown_with_the_end_of_its_output(tmp_path: Path) -> None:
    from prime_coordinator.quickstart.plan import QuickstartStep
    from prime_runtime.child_processes import ProcessFailedError

    step = QuickstartStep("run", ("prime-coordinator", "run", "show", "demo", "--folder", "nowhere"), tmp_path, "")
    running = await RunningProcess.start(step, {})
    await asyncio.wait_for(running.wait(), 60)
    with pytest.raises(ProcessFailedError, match="run ended with code 1; the end of its output") as failure:
        running.check()
    assert "there is no coordinator in nowhere" in str(failure.value)
