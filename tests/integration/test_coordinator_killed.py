"""kill -9 at random moments while many people write: what was acknowledged is there, and all heads tell one history."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
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
    await check_everything(config, nodes)


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


async def check_everything(config: CoordinatorConfig, nodes: list[Party]) -> None:
    store = open_log_store(database_url(config))
    try:
        leaves = await store.read(0, await store.size())
    finally:
        store.close()
    replay(NETWORK, leaves)
    acknowledged = [word for node in nodes for word in node.acknowledged]
    assert len(acknowledged) > 20, "the writers hardly got through; the test shows nothing"
    for index, frame in acknowledged:
        assert index < len(leaves), f"entry {index} was acknowledged and is lost (seed {SEED})"
        kept = decode(LogRecord, leaves[index], bytes_max=LOG_ENTRY_BYTES_MAX).frame
        assert kept == frame, f"entry {index} is another one than was acknowledged (seed {SEED})"
    check_heads(config, leaves, {head for node in nodes for head in node.heads})


def check_heads(config: CoordinatorConfig, leaves: list[bytes], heads: set[bytes]) -> None:
    key = VerifierKey.of(ORIGIN_PREFIX + NETWORK, load_log_key(config))
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    assert len(heads) > 3, "hardly any heads were shown; the test shows nothing"
    for note in heads:
        head = open_tree_head(note, [key])
        assert head.size <= len(leaves), f"a head over {head.size} entries was shown and taken back (seed {SEED})"
        assert head.root == compute_root(head.size, tree.get_node), f"two histories up to {head.size} (seed {SEED})"
