"""Tree heads of one history fit, those of two convict the log, and tiles that prove nothing prove nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_node.log.tree_heads import (
    HeadMonitor,
    HeadRelation,
    SignedHead,
    compare_sizes,
    compare_with_tiles,
    cut_tile,
    full_tile,
    list_proof_tiles,
    read_log_key,
)
from prime_protocol.constants import TILE_HASHES
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import HeadSeen
from prime_protocol.ledger.entries import LogRecord, NetworkCreated
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tiles import Tile, encode_bundle, encode_tile, list_new_bundles, list_new_tiles
from prime_protocol.log.tree_head import TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NodeId
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from support.gossip_examples import NETWORK, NOW_MS, key_of

LOG_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
ORIGIN = "prime-swarm/testnet"
VKEY = VerifierKey.of(ORIGIN, LOG_KEY)


def leaves_of(size: int, story: str = "") -> list[bytes]:
    return [entry_zero(), *(f"entry {number}{story if number > 300 else ''}".encode() for number in range(1, size))]


def entry_zero(name: str = "coordinator", kind: str = "NetworkCreated") -> bytes:
    created = NetworkCreated(log_key=str(VKEY), chain_id=0, contract=NodeId(bytes(20)), unbonding_ms=1)
    frame = seal_envelope(
        key_of(name),
        kind=kind,
        body=encode(created),
        network=NETWORK,
        run=None,
        sequence=0,
        issued_at_ms=NOW_MS,
        life_ms=1000,
    )
    return encode(LogRecord(at_ms=NOW_MS, frame=frame))


class Log:
    """A log that grows, and the files that its coordinator would serve."""

    def __init__(self, size: int, story: str = "") -> None:
        self.leaves = leaves_of(size, story)
        self.tree = MerkleTree([compute_leaf_hash(leaf) for leaf in self.leaves])
        self.asked = 0

    def note(self, size: int, key: Ed25519PrivateKey = LOG_KEY) -> bytes:
        return sign_tree_head(TreeHead(ORIGIN, size, compute_root(size, self.tree.get_node)), key)

    def seen(self, size: int) -> SignedHead:
        return SignedHead.open(self.note(size), VKEY)

    def read_tile(self, tile: Tile) -> bytes:
        return encode_tile(tile, self.tree.get_node)

    def files(self) -> dict[str, bytes]:
        size = len(self.leaves)
        files = {f"/log/{tile.path}": self.read_tile(tile) for tile in list_new_tiles(0, size)}
        for bundle in list_new_bundles(0, size):
            first = bundle.index * TILE_HASHES
            files[f"/log/{bundle.path}"] = encode_bundle(self.leaves[first : first + bundle.width])
        return files | {"/log/checkpoint": self.note(size)}

    async def get(self, server: ServerAddress, path: str, *, bytes_max: int) -> bytes | None:
        """As HttpClient.get."""
        self.asked += 1
        return self.files().get(path)


LONG, FORKED = Log(700), Log(700, " told otherwise")


@pytest.mark.parametrize(("old", "new"), [(1, 2), (5, 300), (256, 257), (300, 700), (512, 700)])
def test_two_heads_of_one_history_fit(old: int, new: int) -> None:
    one, other = LONG.seen(old), LONG.seen(new)
    assert compare_with_tiles(one, other, LONG.read_tile) is HeadRelation.SAME
    assert compare_with_tiles(other, one, LONG.read_tile) is HeadRelation.SAME
    assert list_proof_tiles(one, other) == list_proof_tiles(other, one)


def test_heads_of_two_histories_convict_the_log_and_wrong_tiles_do_not() -> None:
    assert compare_sizes(LONG.seen(700), FORKED.seen(700)) is HeadRelation.FORK
    assert compare_sizes(LONG.seen(700), LONG.seen(700)) is HeadRelation.SAME
    assert compare_sizes(LONG.seen(1), LONG.seen(700)) is HeadRelation.UNKNOWN
    assert compare_with_tiles(FORKED.seen(600), LONG.seen(700), LONG.read_tile) is HeadRelation.FORK
    assert compare_with_tiles(LONG.seen(600), FORKED.seen(700), LONG.read_tile) is HeadRelation.UNKNOWN
    assert compare_with_tiles(LONG.seen(600), LONG.seen(700), lambda tile: b"short") is HeadRelation.UNKNOWN
    assert compare_with_tiles(LONG.seen(300), FORKED.seen(300), LONG.read_tile) is HeadRelation.SAME, (
        "the story parts later"
    )


def test_a_full_tile_begins_with_the_hashes_of_a_partial_one() -> None:
    tile = Tile(0, 1, 44)
    assert full_tile(tile) == Tile(0, 1, 256)
    assert cut_tile(tile, LONG.read_tile(full_tile(tile))) == LONG.read_tile(tile)


def test_the_logs_key_is_taken_only_from_a_first_entry_that_the_coordinator_signed() -> None:
    coordinator = key_of("coordinator").node
    assert read_log_key(entry_zero(), network=NETWORK, coordinator=coordinator) == VKEY
    with pytest.raises(RemoteError, match="the coordinator is"):
        read_log_key(entry_zero("stranger"), network=NETWORK, coordinator=coordinator)
    with pytest.raises(RemoteError, match="the first entry is"):
        read_log_key(entry_zero(kind="Deposited"), network=NETWORK, coordinator=coordinator)


class Keeper:
    """A head keeper over a log, stepped by hand."""

    def __init__(self, folder: Path, served: Log) -> None:
        self.published: list[HeadSeen] = []
        self.verified: list[int] = []
        self.served = served
        server = ServerAddress("http://127.0.0.1:1", key_of("coordinator").node)

        async def publish(seen: HeadSeen) -> None:
            self.published.append(seen)

        self.monitor = HeadMonitor(
            served,  # type: ignore[arg-type]
            server,
            NETWORK,
            folder,
            log_key=None,
            clock=SystemClock(),
            publish=publish,
            count_nodes=lambda: 0,
        )
        self.monitor.on_verified = self.verified.append

    async def until(self, holds: Callable[[], bool]) -> None:
        task = asyncio.create_task(self.monitor.run())
        try:
            async with asyncio.timeout(30):
                while not holds():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_monitor_learns_the_key_saves_verified_heads_and_gossips_them(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", LONG)
    monitor.monitor.add_coordinator_head(LONG.note(300))
    await monitor.until(lambda: monitor.verified == [300])
    monitor.monitor.add_coordinator_head(LONG.note(700))
    await monitor.until(lambda: monitor.verified[-1] == 700)
    assert (tmp_path / "heads" / "checkpoint").read_bytes() == LONG.note(700)
    monitor.monitor.add_peer_head(HeadSeen(note=LONG.note(512)))
    await monitor.until(lambda: monitor.monitor.compared == 1)
    assert [seen.head.size for seen in monitor.published][:1] == [300]
    assert monitor.monitor.forks == []

    again = Keeper(tmp_path / "heads", LONG)
    await again.until(lambda: again.verified == [700])
    assert again.monitor.latest == LONG.seen(700)


async def test_a_head_of_another_history_is_kept_as_evidence_for_ever(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", LONG)
    monitor.monitor.add_coordinator_head(LONG.note(700))
    await monitor.until(lambda: monitor.verified == [700])
    monitor.monitor.add_peer_head(HeadSeen(note=FORKED.note(600)))
    await monitor.until(lambda: bool(monitor.monitor.forks))
    (name,) = monitor.monitor.forks
    evidence = (tmp_path / "heads" / name).read_text()
    assert LONG.note(700).decode() in evidence
    assert FORKED.note(600).decode() in evidence
    assert Keeper(tmp_path / "heads", LONG).monitor.forks == [name], "also after a restart"


async def test_a_coordinator_that_shows_us_two_histories_is_convicted_and_not_followed(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", FORKED)
    monitor.monitor.add_coordinator_head(LONG.note(600))
    await monitor.until(lambda: monitor.verified == [600])
    monitor.monitor.add_coordinator_head(FORKED.note(700))
    await monitor.until(lambda: bool(monitor.monitor.forks))
    assert set(monitor.verified) == {600}


async def test_unsigned_or_unproven_heads_are_no_fork(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", LONG)
    stranger = Ed25519PrivateKey.from_private_bytes(b"\x08" * 32)
    monitor.monitor.add_coordinator_head(LONG.note(300, stranger))
    monitor.monitor.add_peer_head(HeadSeen(note=LONG.note(300, stranger)))
    monitor.monitor.add_coordinator_head(LONG.note(300))
    await monitor.until(lambda: monitor.verified == [300])
    monitor.monitor.add_peer_head(HeadSeen(note=Log(701).note(701)))
    monitor.monitor.add_peer_head(HeadSeen(note=FORKED.note(700)))
    await monitor.until(lambda: monitor.monitor.unproven == 2)
    assert monitor.monitor.forks == []
