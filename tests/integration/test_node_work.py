"""Nodes at work, all real processes: leases become files, files are audited, the honest are credited, cheats caught."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import torch

from prime_node.engine.machine_class import make_device_slug, make_engine_slug
from prime_node.engine.torch.device import describe_device
from prime_node.jobs.evidence_bundle import decode_evidence
from prime_node.storage.journal import JobState
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.proofs.class_bounds import parse_class_bounds
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UploadPurpose
from prime_protocol.wire.typed_data import compute_receipt_id
from support.processes.coordinator import party, terms
from support.processes.nodes import TERMS, TOLERANCE, Network, Node, alter_checkpoint, running_network
from support.processes.swarm import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = (JobState.CREDITED, JobState.PAID)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    """With a validator; engines are small ones that take their time, so that there is a midst to kill them in."""
    async with running_network(tmp_path_factory.mktemp("network"), behaviour="slow") as network:
        validator = await network.node("val", "validator")
        yield network
        assert await validator.command.stop() == 0, validator.command.tail


def is_done(node: Node, step: int = 0, slots: int = TERMS["slots_per_step"]) -> bool:
    """Every slot of the step is credited to this node."""
    return slots == sum(piece.slots for piece in node.pieces() if piece.step == step and piece.state in GOOD)


CPU = torch.device("cpu")


async def test_a_worker_and_a_validator_with_torch_do_two_steps_and_every_rollout_is_credited(tmp_path: Path) -> None:
    # The run takes work of torch on this kind of CPU only, and has bounds for it.
    own = (
        f"{make_device_slug(describe_device(CPU)[0])}/{make_engine_slug('torch', torch.__version__)}/prime/float32/tp1"
    )
    table = parse_class_bounds([f"{own} > {own}: margin_max=0.04"], TOLERANCE, is_closed=True)
    # Without lag, so that the second step has to be made with the new weights.
    async with running_network(tmp_path, slots_per_step=2, lag_max=0, class_bounds=table, version_min=3) as network:
        began = time.monotonic()
        worker = await network.node("ann", "worker", engine="torch")
        validator = await network.node("val", "validator", engine="torch")
        await until(lambda: bool(worker.pieces()), "a first file", lambda: worker.command.tail)
        first_s = time.monotonic() - began
        await until(lambda: is_done(worker, slots=2), "a step that is credited", lambda: worker.command.tail)
        took_s = time.monotonic() - began
        print(f"first useful work {first_s:.1f} s after `prime-node start`, the step was credited after {took_s:.1f} s")
        assert first_s < 60

        second = alter_checkpoint(network.checkpoint, tmp_path / "step-1", share=0.01)
        published = await network.publish(second, 1, "--delta")
        assert set(published.manifests) == {"delta"}
        await until(lambda: is_done(worker, 1, slots=2), "a step with new weights", lambda: worker.command.tail)
        for node in (worker, validator):
            assert len(node.engine_pids) == 1, "weights are swapped in place, nothing is restarted"
            assert any(f"engine loaded {published.root}" in line for line in node.command.lines)

        # The node hears of an outcome before a head that contains the verdict is signed.
        verdicts = list[dict[str, Any]]()
        while len(verdicts) < len(worker.pieces()):
            verdicts = await network.entries("VerdictGiven")
        assert Counter(verdict["outcome"] for verdict in verdicts) == {"accept": len(worker.pieces())}
        for verdict in verdicts:
            metrics = {metric["name"]: metric["value"] for metric in verdict["metrics"]}
            assert metrics["flaws"] == 0
            assert metrics["margin_max"] < 0.01
            assert (metrics["generating_class"], metrics["judging_class"]) == (1, 1)
            assert 0 <= metrics["reward_mean"] <= 1
        for node in (worker, validator):
            assert await node.command.stop() == 0, node.command.tail


async def test_a_worker_passes_the_weights_on_when_their_origin_has_gone(tmp_path: Path) -> None:
    async with running_network(tmp_path, behaviour="slow") as network:
        assert network.server is not None
        first = await network.node("ann", "worker")
        await first.until(lambda status: bool(status["engine"]["precision"]), "an engine with the weights")
        assert await network.server.stop() == 0, network.server.tail
        second = await network.node("bob", "worker")
        await second.until(lambda status: bool(status["engine"]["precision"]), "an engine with the same weights")
        sent = (await first.until(lambda status: status["upload"]["sent_shards"] > 0, "a shard"))["upload"]
        (held,) = (await second.status())["weights"]["held"]
        assert sent["sent_shards"] >= held["shards"] == held["shards_held"], "all of it came from a worker"
        for node in (first, second):
            assert await node.command.stop() == 0, node.command.tail


async def test_a_forged_file_is_rejected_with_evidence_that_anyone_can_run_again(network: Network) -> None:
    async with party(network.coordinator, "cheat") as cheat:
        await cheat.join(Role.WORKER)
        async with network.api() as api:
            await api.wait_for_index()
            (row,) = (await api.get("/checkpoints"))["rows"]
        lease = await cheat.lease()
        data, entry = cheat.answer(
            lease, beacon=Digest.parse(row["beacon"]), root=Digest.parse(row["root"]), wanted=terms(**TERMS)
        )
        await cheat.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await cheat.write(entry)
    name, bundle = compute_receipt_id(entry.receipt), network.folder / "bundle"
    evidence = decode_evidence(await fetch_evidence(network, name, bundle))
    assert (evidence.task.submission, evidence.receipt, evidence.outcome) == (name, entry.receipt, Outcome.FRAUDULENT)

    url, weights = network.coordinator.server.url, ("--weights", str(network.checkpoint))
    code, text = await network.audit(str(name), "--coordinator", url, *weights)
    assert (code, "signature valid" in text) == (0, True), text
    assert "this machine agrees with the verdict" in text
    code, text = await network.audit("--bundle", str(bundle), *weights, "--json")
    assert (code, json.loads(text)["agrees"]) == (0, True), text
    bundle.write_bytes(encode(replace(evidence, outcome=Outcome.ACCEPT)))
    code, text = await network.audit("--bundle", str(bundle), *weights)
    assert (code, "DISAGREES" in text) == (3, True), text


async def test_a_killed_worker_and_a_killed_engine_lose_nothing_and_send_nothing_twice(network: Network) -> None:
    worker = await network.node("ann", "worker")
    await until_at_work(network, worker, 0)
    os.kill(worker.engine_pids[-1], signal.SIGKILL)
    await until(lambda: len(worker.pieces()) == 1, "the lease that was begun again", lambda: worker.command.tail)
    assert len(worker.engine_pids) == 2, "the engine was started again, the node was not"

    await until_at_work(network, worker, 1)
    await worker.command.kill()
    engine = worker.engine_pids[-1]
    await until(lambda: not is_alive(engine), "the engine ends with its node")
    await worker.command.start()
    await until(lambda: is_done(worker), "a step that is credited", lambda: worker.command.tail)

    granted = [each["lease"] for each in await network.entries("LeaseGranted") if each["node"] == str(worker.node)]
    receipts = [each["receipt"] for each in await network.entries("Submitted")]
    assert sorted(each["lease"] for each in receipts if each["node"] == str(worker.node)) == granted
    assert await network.entries("LeaseEnded") == [], "every lease was answered, once"
    assert {piece.lease for piece in worker.pieces()} == set(granted)
    await until(lambda: not list((worker.folder / "spool").iterdir()), "no file is kept that nobody needs")
    assert await worker.command.stop() == 0, worker.command.tail


async def until_at_work(network: Network, worker: Node, answered: int) -> None:
    """Until a lease of the worker is open and its engine is on it."""
    while True:
        async with network.api() as api:
            leases = (await api.get("/leases", node=str(worker.node)))["rows"]
        if leases and worker.engine_pids and len(worker.pieces()) == answered:
            return
        await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def fetch_evidence(network: Network, submission: Digest, path: Path) -> bytes:
    """The bundle that the first verdict names, as the coordinator serves it to anybody."""
    async with network.api() as api:
        while not (rows := (await api.get("/verdicts", submission=str(submission)))["rows"]):
            await asyncio.sleep(0.05)
    url = f"{network.coordinator.server.url}/objects/{rows[0]['evidence']}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        data = await response.read()
    assert f"0x{sha256(data).hexdigest()}" == rows[0]["evidence"]
    path.write_bytes(data)
    return data
