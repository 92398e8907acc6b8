"""Batches, heads, the mirror and the start after any end: what is told to others is on disk, and stays told."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.log.store import StoredHead, open_log_store
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, verify_consistency, verify_inclusion
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, open_tree_head, sign_tree_head
from prime_protocol.wire.ids import Digest, NodeId
from support.ledger_network import NETWORK
from support.log_store import LOG_KEY, VERIFIER, Rig, make_leaves, make_rig, recovered


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield make_rig(store, tmp_path / "mirror")
    store.close()


def check_mirror(mirror: Path) -> int:
    checked = verify_log(mirror, VerifyOptions(key=VERIFIER))
    return checked.head.size


# --- Batches --------------------------------------------------------------------------------------------------------


async def test_a_caller_waits_until_its_entry_is_on_disk(rig: Rig) -> None:
    leaves = make_leaves(3)
    rig.writer.enqueue(leaves[:2])
    waiting = asyncio.create_task(rig.writer.wait_for_size(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    await rig.writer.flush()
    await waiting
    assert await rig.store.size() == 2
    await rig.writer.wait_for_size(1)  # no need to wait


async def test_entries_that_come_together_are_one_transaction_up_to_a_bound(rig: Rig) -> None:
    batches: list[int] = []
    append = rig.store.append

    async def count(first: int, leaves, cards, changes) -> None:  # type: ignore[no-untyped-def]
        batches.append(len(leaves))
        await append(first, leaves, cards, changes)

    rig.store.append = count  # type: ignore[method-assign]
    rig.writer = make_rig(rig.store, rig.mirror, batch_entries_max=4).writer
    rig.writer.enqueue(make_leaves(10))
    await rig.writer.flush()
    assert batches == [4, 4, 2]


async def test_a_failed_write_reaches_every_waiter(rig: Rig) -> None:
    async def refuse(*_: object) -> None:
        raise LocalError("the disk is full")

    rig.store.append = refuse  # type: ignore[method-assign, assignment]
    rig.writer.enqueue(make_leaves(1))
    waiting = asyncio.create_task(rig.writer.wait_for_size(1))
    with pytest.raises(LocalError, match="disk is full"):
        await rig.writer.write_batches()
    for waiter in (waiting, rig.writer.wait_for_size(1)):
        with pytest.raises(LocalError, match="disk is full"):
            await waiter
    assert rig.writer.failure is not None


async def test_a_writer_that_another_process_has_overtaken_finds_it_before_its_next_write(rig: Rig) -> None:
    leaves = make_leaves(3)
    rig.writer.enqueue(leaves[:2])
    await rig.writer.flush()
    await rig.writer.check_is_only_writer()
    await rig.store.append(2, leaves[2:], [compute_entry_keys(leaves[2])])
    with pytest.raises(LocalError, match="is another coordinator using it"):
        await rig.writer.check_is_only_writer()
    assert rig.writer.failure is not None, "/healthz answers 503"


# --- Heads and the mirror -------------------------------------------------------------------------------------------


async def test_the_mirror_follows_head_by_head_and_always_holds(rig: Rig) -> None:
    leaves = make_leaves(600)
    for start, stop in ((0, 1), (1, 255), (255, 257), (257, 520), (520, 600)):
        rig.writer.enqueue(leaves[start:stop])
        await rig.writer.flush()
        await rig.writer.sign_head()
        assert check_mirror(rig.mirror) == stop
    heads = [open_tree_head(note, [VERIFIER]) for note, _ in rig.shown]
    assert [head.size for head in heads] == [1, 255, 257, 520, 600]
    for old, new in itertools.pairwise(heads):
        proof = rig.writer.consistency_proof(old.size, new.size)
        verify_consistency(proof, old_size=old.size, old_root=old.root, new_size=new.size, new_root=new.root)
    proof = rig.writer.inclusion_proof(300, 600)
    verify_inclusion(compute_leaf_hash(leaves[300]), proof, index=300, size=600, root=heads[-1].root)
    partials = list(rig.mirror.glob("tile/0/000.p/*"))
    assert not partials, "the first tile has long been full"


async def test_many_entries_bring_a_head_before_its_time(rig: Rig) -> None:
    rig = make_rig(rig.store, rig.mirror, head_ms=60_000, head_entries_max=10)
    signing = asyncio.create_task(rig.writer.sign_heads())
    rig.writer.enqueue(make_leaves(10))
    await rig.writer.flush()
    while not rig.shown:
        await asyncio.sleep(0.001)
    assert rig.shown[0][1] == 10
    signing.cancel()


async def test_the_mirror_is_repaired_at_start(rig: Rig) -> None:
    rig.writer.enqueue(make_leaves(300))
    await rig.writer.flush()
    await rig.writer.sign_head()
    for path in sorted((rig.mirror / "tile").rglob("*[0-9]")):
        if path.is_dir():
            continue
        whole = path.read_bytes()
        for damage in (None, b"", whole[:-1], bytes(len(whole))):
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            _, tree = await recovered(rig)
            again = make_rig(rig.store, rig.mirror, tree)
            await again.writer.open_mirror()
            await again.writer.scrub()
            assert path.read_bytes() == whole, f"{path} was not repaired"
    assert check_mirror(rig.mirror) == 300


def damage_partials(mirror: Path) -> list[Path]:
    """Flip a bit of every partial file."""
    paths = sorted(path for path in (mirror / "tile").rglob("*.p/*"))
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    return paths


@pytest.mark.parametrize("is_head_lost", [False, True])
async def test_damaged_partial_files_that_are_superseded_heal_at_start(rig: Rig, is_head_lost: bool) -> None:
    leaves = make_leaves(300)
    for start, stop in ((0, 109), (109, 200), (200, 270), (270, 290)):
        rig.writer.enqueue(leaves[start:stop])
        await rig.writer.flush()
        await rig.writer.sign_head()
    before = {path: path.read_bytes() for path in (rig.mirror / "tile").rglob("*.p/*")}
    damaged = damage_partials(rig.mirror)
    assert [path for path in damaged if path.match("entries/000.p/109")]
    if is_head_lost:
        (rig.mirror / "checkpoint").unlink()
    _, tree = await recovered(rig)
    again = make_rig(rig.store, rig.mirror, tree)
    await again.writer.open_mirror()
    left = {path: path.read_bytes() for path in (rig.mirror / "tile").rglob("*.p/*")}
    assert left == {path: data for path, data in before.items() if "000.p" not in str(path) or "/1/" in str(path)}
    again.writer.enqueue(leaves[290:])
    await again.writer.flush()
    await again.writer.sign_head()
    assert check_mirror(rig.mirror) == 300


async def test_the_scrub_removes_superseded_partial_files_that_a_crash_left(rig: Rig) -> None:
    rig.writer.enqueue(make_leaves(600))
    await rig.writer.flush()
    await rig.writer.sign_head()
    for name in ("tile/entries/000.p", "tile/0/000.p"):
        (rig.mirror / name).mkdir()
        (rig.mirror / name / "9").write_bytes(b"damaged")
    await rig.writer.scrub()
    assert not list(rig.mirror.rglob("000.p/9"))
    assert check_mirror(rig.mirror) == 600


# --- Recovery -------------------------------------------------------------------------------------------------------


async def test_a_start_finds_exactly_what_was_written(rig: Rig) -> None:
    leaves = make_leaves(40)
    rig.writer.enqueue(leaves[:30])
    await rig.writer.flush()
    await rig.writer.sign_head()
    rig.writer.enqueue(leaves[30:])
    await rig.writer.flush()
    ledger, tree = await recovered(rig)
    world = Ledger(NETWORK)
    for leaf in leaves:
        world.apply(leaf)
    assert ledger.state == world.state
    assert (tree.size, tree.root()) == (40, world.state.frontier.root())


async def test_an_empty_database_is_no_log(rig: Rig) -> None:
    with pytest.raises(LocalError, match="prime-coordinator restore"):
        await recovered(rig)


async def test_a_log_of_another_key_is_refused(rig: Rig) -> None:
    await rig.store.append(0, make_leaves(1), [compute_entry_keys(leaf) for leaf in make_leaves(1)])
    with pytest.raises(LocalError, match="the key to"):
        await recovered(rig, NodeId(bytes(20)))


async def test_a_database_older_than_a_published_head_is_refused(rig: Rig) -> None:
    """As after a restore from an old backup: to go on would tell two histories."""
    leaves = make_leaves(20)
    rig.writer.enqueue(leaves)
    await rig.writer.flush()
    await rig.writer.sign_head()
    old = open_log_store(f"sqlite:///{rig.mirror.parent / 'old.db'}")
    try:
        await old.append(0, leaves[:15], [compute_entry_keys(leaf) for leaf in leaves[:15]])
        with pytest.raises(LocalError, match="would fork the log"):
            await recovered(make_rig(old, rig.mirror))
    finally:
        old.close()


@pytest.mark.parametrize("damage", [b"", b"not a note\n", bytes(10_000_000)])
async def test_a_damaged_head_in_the_mirror_is_signed_again(rig: Rig, damage: bytes) -> None:
    rig.writer.enqueue(make_leaves(300))
    await rig.writer.flush()
    await rig.writer.sign_head()
    (rig.mirror / "checkpoint").write_bytes(damage)
    _, tree = await recovered(rig)
    again = make_rig(rig.store, rig.mirror, tree)
    await again.writer.open_mirror()
    assert check_mirror(rig.mirror) == 300


@pytest.mark.parametrize(("signed", "left"), [(20, 15), (300, 255), (300, 256), (600, 20)])
async def test_a_database_that_lost_entries_is_refused_even_if_no_head_is_left(
    rig: Rig, signed: int, left: int
) -> None:
    leaves = make_leaves(signed)
    rig.writer.enqueue(leaves)
    await rig.writer.flush()
    await rig.writer.sign_head()
    (rig.mirror / "checkpoint").write_bytes(b"damaged")
    old = open_log_store(f"sqlite:///{rig.mirror.parent / 'old.db'}")
    try:
        await old.append(0, leaves[:left], [compute_entry_keys(leaf) for leaf in leaves[:left]])
        with pytest.raises(LocalError, match="would fork the log"):
            await recovered(make_rig(old, rig.mirror))
    finally:
        old.close()


async def test_an_entry_that_changed_on_disk_is_found(rig: Rig) -> None:
    leaves = make_leaves(20)
    forged = [*leaves[:10], *make_leaves(21)[11:]]
    await rig.store.append(0, forged, [compute_entry_keys(leaf) for leaf in forged])
    root = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves]).root()
    note = sign_tree_head(TreeHead(ORIGIN_PREFIX + NETWORK, 20, root), LOG_KEY)
    await rig.store.add_head(StoredHead(20, 0, note))
    with pytest.raises(LocalError, match="is damaged"):
        await recovered(rig)


async def test_a_head_by_another_key_is_refused(rig: Rig) -> None:
    leaves = make_leaves(2)
    await rig.store.append(0, leaves, [compute_entry_keys(leaf) for leaf in leaves])
    other = Ed25519PrivateKey.from_private_bytes(b"\x09" * 32)
    note = sign_tree_head(TreeHead(ORIGIN_PREFIX + NETWORK, 2, Digest(bytes(32))), other)
    await rig.store.add_head(StoredHead(2, 0, note))
    with pytest.raises(LocalError, match="not signed by this folder's log key"):
        await recovered(rig)
