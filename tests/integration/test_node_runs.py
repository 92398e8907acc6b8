"""One validator key takes the audits of two runs, with a process for each: real coordinator, origins and nodes."""

from collections import Counter
from pathlib import Path

import pytest

from prime_coordinator.admin.operator_api import OPERATOR_ENTRY_ENDPOINTS
from prime_coordinator.home import load_key
from prime_node.storage.journal import JobState
from prime_protocol.ledger.entries import NodeStatus, RunCreated
from prime_protocol.wire.ids import RunId
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import open_client
from prime_runtime.http.config import ClientLimits
from support.processes.coordinator import NETWORK, RUN, key_of, terms
from support.processes.nodes import TERMS, Network, Node, running_network
from support.processes.swarm import until, write_key

OTHER = RunId("run-2")
SLOTS = 2


async def open_other_run(network: Network) -> None:
    """A second run with a checkpoint of its own, and an origin that serves it."""
    config = network.coordinator.config
    key, limits = load_key(config), ClientLimits()
    async with open_client(key=key, network=NETWORK, clock=SystemClock(), limits=limits) as client:
        created = RunCreated(terms=terms(**{**TERMS, "slots_per_step": SLOTS}))
        await client.call(network.coordinator.server, OPERATOR_ENTRY_ENDPOINTS[RunCreated], created, run=OTHER)
    flags = ("--run", OTHER, "--store", str(network.folder / "other-store"))
    await network.publish(network.checkpoint, 0, *flags)
    await network.origin(*flags)


async def start_validator(network: Network, folder: str, run: RunId, also: RunId) -> Node:
    """A process of the key `val`, whatever its folder is called."""
    flags = ("--engine-python", str(network.double), "--run", run, "--also-audits", also, "--hardware", "one machine")
    node = Node(network, folder, "validator", *flags)
    write_key(node.folder / "key.json", "val")
    await network._start(node.command)
    return node


@pytest.mark.timeout(600)
async def test_one_key_takes_the_audits_of_two_runs(tmp_path: Path) -> None:
    async with running_network(tmp_path, slots_per_step=SLOTS) as network:
        await open_other_run(network)
        workers = [await network.node("ann", "worker"), await network.node("bob", "worker", "--run", OTHER)]
        validators = [
            await start_validator(network, "val-1", RUN, OTHER),
            await start_validator(network, "val-2", OTHER, RUN),
        ]
        for node in (*workers, *validators):
            await node.until(lambda status: True, "a node that has joined")
        good = (JobState.CREDITED, JobState.PAID)
        for worker in workers:
            await until(
                lambda worker=worker: sum(each.slots for each in worker.pieces() if each.state in good) == SLOTS,
                "a step that is credited",
                lambda worker=worker: worker.command.tail + "".join(each.command.tail for each in validators),
            )
        verdicts = await network.entries("VerdictGiven")
        runs = Counter(verdict["receipt"]["run"] for verdict in verdicts)
        assert set(runs) == {RUN, OTHER}, "each process judged its own run"
        assert {verdict["receipt"]["validator"] for verdict in verdicts} == {str(key_of("val").node)}
        registered = [each["runs"] for each in await network.entries("NodeRegistered") if each["runs"]]
        assert registered
        assert all(runs == [RUN, OTHER] for runs in registered)
        drained = [each for each in await network.entries("NodeStatusSet") if each["status"] == NodeStatus.DRAINED]
        assert not drained
        for node in (*workers, *validators):
            assert await node.command.stop() == 0, node.command.tail
