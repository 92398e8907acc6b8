"""One validator key takes the audits of two runs, in one process or in two: real coordinator, origins and nodes."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.admin.operator_api import OPERATOR_ENTRY_ENDPOINTS
from prime_coordinator.home import load_key
from prime_node.storage.journal import JobState
from prime_protocol.ledger.entries import NodeStatus, RunCreated, RunStatus, RunStatusSet
from prime_protocol.wire.ids import RunId
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import open_client
from prime_runtime.http.config import ClientLimits
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.processes.coordinator import NETWORK, RUN, key_of, terms
from support.processes.nodes import TERMS, VOCABULARY, Network, Node, alter_checkpoint, running_network
from support.processes.swarm import until, write_key

OTHER = RunId("run-2")
SLOTS = 2


async def append(network: Network, entry: Any, run: RunId) -> None:
    """An entry of the operator."""
    key, limits = load_key(network.coordinator.config), ClientLimits()
    async with open_client(key=key, network=NETWORK, clock=SystemClock(), limits=limits) as client:
        await client.call(network.coordinator.server, OPERATOR_ENTRY_ENDPOINTS[type(entry)], entry, run=run)


async def open_other_run(network: Network, **changes: Any) -> None:
    """A second run with a model of its own, and an origin that serves it."""
    await append(network, RunCreated(terms=terms(**{**TERMS, "slots_per_step": SLOTS, **changes})), OTHER)
    checkpoint = make_tiny_checkpoint(network.folder / "other-step-0", vocabulary=VOCABULARY, layers=3, seed=7)
    flags = ("--run", OTHER, "--store", str(network.folder / "other-store"))
    await network.publish(checkpoint, 0, *flags)
    await network.origin(*flags)


async def until_credited(workers: list[Node], slots: int, explain: Callable[[], str]) -> None:
    good = (JobState.CREDITED, JobState.PAID)
    for worker in workers:
        await until(
            lambda worker=worker: sum(each.slots for each in worker.pieces() if each.state in good) == slots,
            "a step that is credited",
            lambda worker=worker: worker.command.tail + explain(),
        )


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
        await until_credited(workers, SLOTS, lambda: "".join(each.command.tail for each in validators))
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


def count_verdicts(verdicts: list[dict[str, Any]], name: str) -> Counter[str]:
    """Verdicts of a key, by run."""
    node = str(key_of(name).node)
    return Counter(each["receipt"]["run"] for each in verdicts if each["receipt"]["validator"] == node)


async def start_both(network: Network) -> Node:
    """One process of the key `val` that serves both runs."""
    flags = ("--engine-python", str(network.double), "--run", f"{RUN},{OTHER}", "--hardware", "one machine")
    node = Node(network, "val", "validator", *flags)
    write_key(node.folder / "key.json", "val")
    await network._start(node.command)
    return node


@pytest.mark.timeout(900)
async def test_one_process_serves_two_runs_and_outlives_one_of_them(tmp_path: Path) -> None:
    async with running_network(tmp_path, slots_per_step=SLOTS, quorum=2) as network:
        await open_other_run(network, quorum=2)
        ann, bob = await network.node("ann", "worker"), await network.node("bob", "worker", "--run", OTHER)
        both = await start_both(network)
        others = [
            await network.node("carl", "validator"),
            await network.node("dora", "validator", "--run", OTHER),
        ]
        nodes = (ann, bob, both, *others)
        for node in nodes:
            await node.until(lambda status: True, "a node that has joined")

        def explain() -> str:
            return "".join(each.command.tail for each in (both, *others))

        # A quorum is two, so no file of either run is accepted without the node that serves both.
        await until_credited([ann, bob], SLOTS, explain)
        given = count_verdicts(await network.entries("VerdictGiven"), "val")
        assert set(given) == {RUN, OTHER}
        registered = [each["runs"] for each in await network.entries("NodeRegistered")]
        assert registered.count([RUN, OTHER]) == 1, "one registration names both runs"
        status = await both.until(lambda status: True, "its status")
        assert [row["run"] for row in status["runs"]] == [RUN, OTHER]
        assert all(row["verdicts"] and row["weights_step"] == 0 for row in status["runs"])

        await both.command.kill()
        await append(network, RunStatusSet(status=RunStatus.CLOSED, reason="it has what it needs"), OTHER)
        await network.publish(alter_checkpoint(network.checkpoint, tmp_path / "step-1", share=0.01), 1)
        await both.command.start()
        await until_credited([ann], 2 * SLOTS, explain)
        after = count_verdicts(await network.entries("VerdictGiven"), "val")
        assert after[RUN] > given[RUN], "the run that is left goes on"
        assert after[OTHER] == given[OTHER]
        await both.until(
            lambda status: [row["status"] for row in status["runs"]] == [RunStatus.ACTIVE, RunStatus.CLOSED],
            "what the coordinator says about both runs",
        )
        assert registered == [each["runs"] for each in await network.entries("NodeRegistered")]
        drained = [each for each in await network.entries("NodeStatusSet") if each["status"] == NodeStatus.DRAINED]
        assert not [each for each in drained if each["run"] == RUN], drained
        for node in nodes:
            assert await node.command.stop() == 0, node.command.tail
