"""Tree heads of one history fit, those of two convict the log, and tiles that prove nothing prove nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_node.log.log_sources import LogSource
from prime_node.log.signed_heads import HeadRelation, compare_sizes, compare_with_tiles, list_proof_tiles
from prime_node.log.tree_heads import HeadMonitor
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import HeadSeen
from prime_protocol.ledger.entries import LogRecord, NetworkCreated
from prime_protocol.log.tiles import EntryBundle, Tile
from prime_protocol.log.tree_head import (
    SignatureKind,
    VerifierKey,
    derive_witness_key,
    is_cosigned,
    open_cosigned_tree_head,
)
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import Cosigned
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.config import ServerAddress
from support.gossip_examples import NETWORK, NOW_MS, key_of
from support.ledger_network import RANDOMNESS
from support.served_log import VKEY, ServedLog, run_monitor_until


def leaves_of(size: int, story: str = "") -> list[bytes]:
    return [entry_zero(), *(f"entry {number}{story if number > 300 else ''}".encode() for number in range(1, size))]


def entry_zero(name: str = "coordinator", kind: str = "NetworkCreated") -> bytes:
    created = NetworkCreated(log_key=str(VKEY), chain_id=0, contract=NodeId(bytes(20)), unbonding_ms=1, **RANDOMNESS)
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


LONG, FORKED = ServedLog(leaves_of(700)), ServedLog(leaves_of(700, " told otherwise"))


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


async def test_a_partial_tile_or_bundle_that_was_dropped_is_cut_from_the_full_one() -> None:
    source = LogSource(LONG, ServerAddress("http://127.0.0.1:1", key_of("coordinator").node), "/log")  # type: ignore[arg-type]
    tile, bundle = Tile(0, 1, 44), EntryBundle(1, 44)
    assert f"/log/{tile.path}" not in LONG.files()
    assert await source.fetch_tile(tile) == LONG.read_tile(tile)
    leaves, read_bytes = await source.fetch_entries(bundle)
    assert (leaves, read_bytes) == (LONG.leaves[256:300], len(LONG.files()["/log/tile/entries/001"]))
    with pytest.raises(LocalError, match="has no tile/0/009"):
        await source.fetch_tile(Tile(0, 9, 256))
    with pytest.raises(LocalError, match="has no tile/entries/009"):
        await source.fetch_entries(EntryBundle(9, 7))


async def test_the_logs_key_is_taken_only_from_a_first_entry_that_the_coordinator_signed(tmp_path: Path) -> None:
    wrong = {"are of a log of": entry_zero("stranger"), "must be NetworkCreated": entry_zero(kind="Deposited")}
    for problem, leaf in wrong.items():
        keeper = Keeper(tmp_path, ServedLog([leaf]))
        with pytest.raises(RemoteError, match=problem):
            await keeper.monitor.run()


class Keeper:
    """A head keeper over a log, stepped by hand."""

    def __init__(self, folder: Path, served: ServedLog, clock: Clock | None = None) -> None:
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
            clock=clock or SystemClock(),
            publish=publish,
            count_nodes=lambda: 0,
            witness=key_of("witness"),
        )
        self.monitor.on_verified = self.verified.append

    async def until(self, holds: Callable[[], bool]) -> None:
        await run_monitor_until(self.monitor, holds)


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
    monitor.monitor.add_peer_head(HeadSeen(note=ServedLog(leaves_of(701)).note(701)))
    monitor.monitor.add_peer_head(HeadSeen(note=FORKED.note(700)))
    await monitor.until(lambda: monitor.monitor.unproven == 2)
    assert monitor.monitor.forks == []


async def test_a_witness_cosigns_a_head_of_the_history_it_knows_and_no_other(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", LONG)
    cosigned: list[Cosigned] = []
    monitor.monitor.on_cosigned = cosigned.append
    monitor.monitor.add_coordinator_head(LONG.note(600))
    await monitor.until(lambda: monitor.verified == [600])
    monitor.monitor.add_head_to_cosign(FORKED.note(700))
    await monitor.until(lambda: monitor.monitor.unproven == 1)
    assert cosigned == []
    monitor.monitor.add_head_to_cosign(LONG.note(700))
    await monitor.until(lambda: bool(cosigned))
    (made,) = cosigned
    key = derive_witness_key(key_of("witness")).public_key().public_bytes_raw()
    assert made.head_size == 700
    assert is_cosigned(LONG.seen(700).head, key, made.time_s, made.signature)
    assert not is_cosigned(LONG.seen(700).head, key, made.time_s + 1, made.signature)
    witness = VerifierKey(str(key_of("witness").node), SignatureKind.COSIGNATURE, key)
    assert monitor.monitor.cosigned is not None
    head, found = open_cosigned_tree_head(monitor.monitor.cosigned.note, [VKEY, witness])
    assert (head.size, [each.time_s for each in found]) == (700, [made.time_s]), "what it gossips carries it"


class StoppedClock(SystemClock):
    """No pause ends."""

    def monotonic_ms(self) -> int:
        return 1

    async def sleep_ms(self, span_ms: int) -> None:
        await asyncio.Event().wait()


async def test_a_cosignature_does_not_wait_for_the_pause_between_heads_of_other_nodes(tmp_path: Path) -> None:
    monitor = Keeper(tmp_path / "heads", LONG, StoppedClock())
    cosigned: list[Cosigned] = []
    monitor.monitor.on_cosigned = cosigned.append
    monitor.monitor.add_coordinator_head(LONG.note(700))
    for size in (300, 512):
        monitor.monitor.add_peer_head(HeadSeen(note=LONG.note(size)))

    asked: list[int] = []

    def ask_in_the_pause() -> bool:
        if monitor.monitor.compared == 1 and not asked:
            asked.append(700)
            monitor.monitor.add_head_to_cosign(LONG.note(700))
        return bool(cosigned)

    await monitor.until(ask_in_the_pause)
    assert monitor.monitor.compared == 1, "the pause between the others lasts"
