"""kill -9 at random moments while many people write: what was acknowledged is there, and all heads tell one history."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prime_coordinator.config import CoordinatorConfig, LogWriterConfig
from prime_coordinator.home import database_url, load_log_key
from prime_coordinator.log.store import UNACKNOWLEDGED_MS_MAX, open_engine, open_log_store
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import LogRecord, Role
from prime_protocol.ledger.replay import replay
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey, open_tree_head
from prime_protocol.wire.codec import decode
from support.processes.coordinator import NETWORK, CoordinatorProcess, Party, make_folder, party, running
from support.processes.postgres import create_database, running_postgres

WRITERS = 6
KILLS = {"sqlite": 6, "postgresql": 3}
SEED = 20_260_101
OVERTAKEN_S = 30.0
"""Until a process notices at the latest that another one has written: it looks every few seconds."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


async def write_for_ever(node: Party, dice: random.Random) -> None:
    """Entries and beats, one after the other; who hears nothing goes on with the next."""
    for number in count():
        try:
            match dice.randrange(4):
                case 0:
                    # A second registration comes too soon; a withdrawal does not.
                    is_known = bool(node.acknowledged)
                    hello = e.NodeRegistered(roles=(Role.WORKER,), hardware=f"machine {number}")
                    await node.write(e.Withdrawn(amount_nano=1 + number) if is_known else hello)
                case 1:
                    await node.write(e.Staked(node=node.node, amount_nano=1 + number))
                case 2:
                    await node.beat()
                case 3:
                    await read_checkpoint(node)
        except (LocalError, RemoteError, OSError, aiohttp.ClientError):
            # Down, or it does not know this node yet.
            await asyncio.sleep(0.01)


async def read_checkpoint(node: Party) -> None:
    async with node.session.get(f"{node.process.server.url}/log/checkpoint") as response:
        if response.status == 200:
            node.heads.append(await response.read())


@pytest.mark.parametrize("kind", KILLS)
async def test_nothing_acknowledged_is_lost_and_no_head_is_taken_back(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = create_database(request.getfixturevalue("postgres"), "killed") if kind == "postgresql" else None
    config = await make_folder(tmp_path / "coordinator", database, LogWriterConfig(head_ms=50))
    dice = random.Random(SEED)
    async with AsyncExitStack() as stack, running(config) as process:
        limits = {"attempts_max": 1, "deadline_ms": 2_000}
        nodes = [
            await stack.enter_async_context(party(process, f"writer-{number}", **limits)) for number in range(WRITERS)
        ]
        work = [asyncio.create_task(write_for_ever(node, random.Random(node.node))) for node in nodes]
        try:
            await kill_often(process, KILLS[kind], dice)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        for task in work:
            assert task.cancelled(), f"a writer failed (seed {SEED}): {task.exception()!r}"
        assert await process.stop() == 0, "\n".join(process.lines[-10:])
    await check_everything(config, nodes, least=21)


async def test_of_two_coordinators_on_one_database_the_overtaken_one_ends_and_nothing_forks(
    postgres: str, tmp_path: Path
) -> None:
    """Each has a folder, so no lock of a folder keeps them apart: the second one is started by mistake."""
    config = await make_folder(tmp_path / "first", create_database(postgres, "twice"), LogWriterConfig(head_ms=50))
    shutil.copytree(config.folder, tmp_path / "second")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(config))
        ann = await stack.enter_async_context(party(first, "ann"))
        await ann.write(e.NodeRegistered(roles=(Role.WORKER,), hardware="known to both"))
        second = await stack.enter_async_context(running(replace(config, folder=tmp_path / "second")))
        bob = await stack.enter_async_context(party(second, "bob", attempts_max=1))
        await bob.write(e.NodeRegistered(roles=(Role.WORKER,), hardware="the first one does not know it"))
        async with asyncio.timeout(OVERTAKEN_S):
            assert await first._wait() != 0
        assert any("is another coordinator using it" in line for line in first.lines), "\n".join(first.lines[-10:])
        await bob.write(e.Withdrawn(amount_nano=1))
        await read_checkpoint(bob)
        assert await second.stop() == 0, "\n".join(second.lines[-10:])
    await check_everything(config, [ann, bob])


def test_a_server_that_vanishes_without_a_word_is_noticed_in_seconds(postgres: str) -> None:
    """No packet says so; only what the connection was told beforehand does."""
    engine = open_engine(create_database(postgres, "silent"))
    with engine.connect() as connection:
        wire: Any = connection.connection.dbapi_connection
        told = wire.info.get_parameters()
    engine.dispose()
    assert int(told["tcp_user_timeout"]) == UNACKNOWLEDGED_MS_MAX
    assert int(told["connect_timeout"]) <= UNACKNOWLEDGED_MS_MAX / 1000
    probes_s = int(told["keepalives_idle"]) + int(told["keepalives_interval"]) * int(told["keepalives_count"])
    assert probes_s <= UNACKNOWLEDGED_MS_MAX / 1000


async def kill_often(process: CoordinatorProcess, kills: int, dice: random.Random) -> None:
    for _ in range(kills):
        await asyncio.sleep(dice.uniform(0.02, 0.6))
        await process.kill()
        await process.start()
    await asyncio.sleep(0.5)


async def check_everything(config: CoordinatorConfig, nodes: list[Party], *, least: int = 1) -> None:
    """Every acknowledged entry and every head; `least` of both, or the test shows nothing."""
    store = open_log_store(database_url(config))
    try:
        leaves = await store.read(0, await store.size())
    finally:
        store.close()
    replay(NETWORK, leaves)
    acknowledged = [word for node in nodes for word in node.acknowledged]
    assert len(acknowledged) >= least, "the writers hardly got through; the test shows nothing"
    for index, frame in acknowledged:
        assert index < len(leaves), f"entry {index} was acknowledged and is lost (seed {SEED})"
        kept = decode(LogRecord, leaves[index], bytes_max=LOG_ENTRY_BYTES_MAX).frame
        assert kept == frame, f"entry {index} is another one than was acknowledged (seed {SEED})"
    heads = {head for node in nodes for head in node.heads}
    assert len(heads) >= least // 5, "hardly any heads were shown; the test shows nothing"
    check_heads(config, leaves, heads)


def check_heads(config: CoordinatorConfig, leaves: list[bytes], heads: set[bytes]) -> None:
    key = VerifierKey.of(ORIGIN_PREFIX + NETWORK, load_log_key(config))
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    for note in heads:
        head = open_tree_head(note, [key])
        assert head.size <= len(leaves), f"a head over {head.size} entries was shown and taken back (seed {SEED})"
        assert head.root == compute_root(head.size, tree.get_node), f"two histories up to {head.size} (seed {SEED})"
