"""A node follows its log through rotations: what convinces it, what it refuses, and what it keeps as evidence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from prime_node.log.key_follower import KeyFollower, read_saved_chain
from prime_node.log.log_sources import LogSource
from prime_node.log.tree_heads import KEY_TRIES_MAX, HeadMonitor
from prime_protocol.constants import LOG_ENTRIES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import HeadSeen
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import Tile, encode_tile, parse_tile_path
from prime_protocol.wire.messages import Cosigned
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.server_keys import ServerKeys
from support.gossip_examples import key_of
from support.ledger_network import NETWORK, World, verifier
from support.rotated_log import RotatedLog
from support.served_log import run_monitor_until

COORDINATOR = World().id("coordinator")


class ServedRotations:
    """The files that a coordinator serves of a log. Has the `get` of an HttpClient."""

    def __init__(self, log: RotatedLog) -> None:
        self.log = log
        self.server_keys = ServerKeys(NETWORK, SystemClock())
        self.changed: dict[str, bytes | None] = {}
        """Files that it serves instead of the honest ones."""

    async def get(self, server: ServerAddress, path: str, *, bytes_max: int) -> bytes | None:
        name = path.removeprefix("/log/")
        if name in self.changed:
            return self.changed[name]
        if name == "checkpoint":
            return self.log.head()
        if name == "keys":
            return self.log.key_file.encode()
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in self.log.leaves])
        tile = parse_tile_path(name)
        assert isinstance(tile, Tile)
        is_there = (tile.index * TILE_HASHES + tile.width) * TILE_HASHES**tile.level <= tree.size
        return encode_tile(tile, tree.get_node) if is_there else None


class Following:
    """A head monitor over a log, and what it told the rest of the node."""

    def __init__(self, folder: Path, served: ServedRotations) -> None:
        async def publish(seen: HeadSeen) -> None: ...

        self.served = served
        self.folder = folder
        self.told: list[tuple[KeyChain, int]] = []
        self.cosigned: list[Cosigned] = []
        self.monitor = HeadMonitor(
            served,  # type: ignore[arg-type]
            ServerAddress("http://127.0.0.1:1", COORDINATOR),
            NETWORK,
            folder,
            log_key=verifier("first"),
            clock=SystemClock(),
            publish=publish,
            count_nodes=lambda: 0,
            witness=key_of("witness"),
        )
        self.monitor.on_keys = lambda keys, size: self.told.append((keys, size))
        self.monitor.on_cosigned = self.cosigned.append

    async def until(self, holds: Callable[[], bool]) -> None:
        await run_monitor_until(self.monitor, holds)

    async def until_at(self, size: int) -> None:
        self.monitor.add_coordinator_head(self.served.log.head())
        await self.until(lambda: self.monitor.latest is not None and self.monitor.latest.size == size)


@pytest.fixture
async def node(tmp_path: Path) -> Following:
    """It has verified a head of five entries, by the first key."""
    made = Following(tmp_path, ServedRotations(RotatedLog.begun(5)))
    await made.until_at(5)
    return made


async def test_a_node_follows_both_rotations_and_keeps_them_over_a_restart(node: Following) -> None:
    log = node.served.log
    log.rotate_log_key("second")
    log.rotate_coordinator("next")
    log.grow(300)
    node.monitor.add_coordinator_head(log.head())
    await node.until(lambda: node.monitor.keys == log.chain)
    await node.until_at(307)
    assert (log.chain, 307) in node.told
    assert node.served.server_keys.get_key(COORDINATOR) == log.id("next")
    again = Following(node.folder, node.served)
    assert again.monitor.keys == read_saved_chain(node.folder, NETWORK) == log.chain
    assert node.served.server_keys.get_key(COORDINATOR) == log.id("next")


async def test_a_node_that_joins_later_has_an_earlier_key_and_finds_the_newest(tmp_path: Path) -> None:
    log = RotatedLog.begun(3)
    log.rotate_log_key("second")
    log.rotate_coordinator("next")
    log.grow(2)
    node = Following(tmp_path, ServedRotations(log))
    await node.until_at(7)
    assert node.monitor.keys == log.chain
    assert read_saved_chain(tmp_path / "elsewhere", NETWORK) is None


@pytest.mark.parametrize("way", ["heartbeat", "gossip", "witness"])
async def test_a_head_of_a_rotated_key_is_refused_and_kept_as_evidence(node: Following, way: str) -> None:
    log = node.served.log
    rotated = log.rotate_log_key("second")
    log.grow(4)
    await node.until(lambda: bool(node.monitor.request_keys() or node.monitor.keys == log.chain))
    stolen = log.head(10, "first")
    if way == "heartbeat":
        node.monitor.add_coordinator_head(stolen)
    elif way == "gossip":
        node.monitor.add_peer_head(HeadSeen(note=stolen))
    else:
        node.monitor.add_head_to_cosign(stolen)
    await node.until(lambda: bool(node.monitor.stolen_heads))
    (name,) = node.monitor.stolen_heads
    evidence = (node.folder / name).read_bytes()
    assert f"rotated at entry {rotated}".encode() in evidence
    assert evidence.endswith(stolen)
    assert node.monitor.latest is not None
    assert (node.monitor.latest.size, node.cosigned) == (5, [])
    assert Following(node.folder, node.served).monitor.stolen_heads == [name], "also after a restart"


async def test_gossip_by_unknown_keys_costs_no_request(node: Following) -> None:
    asked: list[int] = []
    node.monitor.request_keys = lambda: asked.append(1)  # type: ignore[method-assign]
    node.monitor.add_peer_head(HeadSeen(note=node.served.log.head(5, "stranger")))
    node.monitor.add_coordinator_head(b"no note")
    await node.until(lambda: not node.monitor._peer_heads)
    assert asked == []


def make_follower(node: Following) -> KeyFollower:
    source = LogSource(node.served, ServerAddress("http://127.0.0.1:1", COORDINATOR), "/log")  # type: ignore[arg-type]
    return KeyFollower(source, node.folder, network=NETWORK, coordinator=COORDINATOR, log_key=verifier("first"))


async def test_a_rotation_that_is_not_in_the_log_is_refused(node: Following) -> None:
    """The keys are stolen, and the thief shows the rotation to some nodes only."""
    other = node.served.log.fork()
    thief = RotatedLog()
    thief.ledger, thief.leaves, thief.sequences = other.ledger, other.leaves, other.sequences
    thief.rotate_log_key("second")
    log = node.served.log
    log.grow(1)
    node.served.changed = {"keys": thief.key_file.encode(), "checkpoint": log.head(6, "second")}
    with pytest.raises(RemoteError, match="root"):
        await make_follower(node).fetch()
    node.served.changed = {"keys": thief.key_file.encode(), "checkpoint": log.head(5)}
    with pytest.raises(RemoteError, match="name entry 5, the head covers 5"):
        await make_follower(node).fetch()


async def test_keys_that_do_not_continue_ours_are_refused(node: Following) -> None:
    log = node.served.log
    log.rotate_log_key("second")
    follower = make_follower(node)
    follower.accept(await follower.fetch())
    node.served.changed = {"keys": KeyFile((log.leaves[0],)).encode()}
    with pytest.raises(RemoteError, match="do not continue those that this node knows"):
        await follower.fetch()
    elsewhere = RotatedLog()
    elsewhere.coordinator_name = "stranger"
    elsewhere.create_network()
    node.served.changed = {"keys": elsewhere.key_file.encode()}
    with pytest.raises(RemoteError, match="not of the one that this node pinned"):
        await follower.fetch()
    node.served.changed = {"keys": None}
    with pytest.raises(LocalError, match="has no keys yet"):
        await follower.fetch()


async def test_a_new_key_over_another_history_is_a_fork(node: Following) -> None:
    """The thief of both keys tells another history from the start."""
    other = RotatedLog()
    other.create_network()
    other.wait(1)
    other.grow(4)
    other.rotate_log_key("second")
    node.served.log = other
    node.monitor.add_coordinator_head(other.head())
    await node.until(lambda: bool(node.monitor.forks))
    assert node.monitor.keys is not None
    assert node.monitor.keys.log_key == verifier("first")


async def test_without_an_answer_the_known_keys_count_after_a_few_tries(
    node: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a coordinator that withholds its list would never be convicted of an entry by a stranger."""
    monkeypatch.setattr("prime_node.log.tree_heads.KEY_PAUSE_MS", 0)
    node.served.changed = {"keys": None}
    known = node.monitor.keys
    node.told.clear()
    node.monitor.request_keys()
    await node.until(lambda: (known, LOG_ENTRIES_MAX) in node.told)
    assert KEY_TRIES_MAX > 1


async def test_saved_keys_of_another_log_or_damaged_ones_are_ignored(tmp_path: Path) -> None:
    elsewhere = RotatedLog()
    elsewhere.coordinator_name = "stranger"
    elsewhere.create_network()
    for raw in (elsewhere.key_file.encode(), b"damaged"):
        (tmp_path / "keys").write_bytes(raw)
        node = Following(tmp_path, ServedRotations(RotatedLog.begun(2)))
        assert node.monitor.keys is None
        await node.until_at(2)
        assert node.monitor.keys == node.served.log.chain
