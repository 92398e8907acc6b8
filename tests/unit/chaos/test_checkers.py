"""The checkers of the chaos runs see each kind of loss, and see none in a log that has none."""

from dataclasses import replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chaos.checkers import Told, list_faults, list_forks, read
from prime_protocol.ledger.entries import LeaseGranted, Outcome
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, open_tree_head, sign_tree_head
from prime_protocol.wire.ids import Digest, NodeId, Slot, Step
from support.ledger_network import World

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME, OTHER = Digest(bytes([1] * 32)), Digest(bytes([2] * 32))


def make_told() -> Told:
    """Two submissions, accepted and credited."""

    def lease(number: int, first: int) -> LeaseGranted:
        return LeaseGranted(
            lease=number,
            node=NodeId(bytes([number] * 20)),
            step=Step(0),
            checkpoint_step=Step(0),
            first_slot=Slot(first),
            slots=2,
            deadline_ms=1,
            speculative=False,
        )

    told = Told(leases={1: lease(1, 0), 2: lease(2, 2)}, submitted={NAME: 1, OTHER: 2}, steps=[0, 1])
    for name in (NAME, OTHER):
        told.settled[name] = [Outcome.ACCEPT]
        told.credited[name] = 1
    return told


def complaints(told: Told, *acknowledged: Digest, steps_min: int = 2) -> str:
    return "\n".join(list_faults(told, set(acknowledged), steps_min=steps_min))


def test_nothing_is_said_of_a_log_that_holds() -> None:
    assert complaints(make_told(), NAME, OTHER) == ""


def test_each_loss_is_seen() -> None:
    told = make_told()
    assert "is not in the log" in complaints(told, Digest(bytes(32)))
    assert "should have made 3" in complaints(told, steps_min=3)
    told.settled[NAME] = []
    assert "settled 0 times" in complaints(told)
    told = make_told()
    told.settled[NAME].append(Outcome.INVALID)
    assert "settled 2 times" in complaints(told)
    told = make_told()
    told.credited[NAME] = 2
    assert "credited 2 times" in complaints(told)
    told = make_told()
    told.leases[2] = replace(told.leases[2], first_slot=told.leases[1].first_slot)
    assert "was credited for" in complaints(told)
    told = make_told()
    told.slashed[NAME] = told.leases[1].node
    assert "honest node" in complaints(told)
    told = make_told()
    told.steps = [0, 2]
    assert "not one after the other" in complaints(told)


def test_a_head_that_was_taken_back_or_tells_another_history_is_seen() -> None:
    origin = ORIGIN_PREFIX + "devnet"
    open_head = partial(open_tree_head, trusted=[VerifierKey.of(origin, KEY)])
    leaves = [b"a", b"b", b"c"]

    def head(*entries: bytes) -> bytes:
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in entries])
        return sign_tree_head(TreeHead(origin, len(entries), compute_root(len(entries), tree.get_node)), KEY)

    assert list(list_forks(leaves, [head(b"a"), head(*leaves)], open_head)) == []
    assert "3 are left" in "".join(list_forks(leaves, [head(*leaves, b"d")], open_head))
    assert "not of this log" in "".join(list_forks(leaves, [head(b"a", b"x")], open_head))


def test_the_log_is_read_as_the_ledger_reads_it() -> None:
    world = World.started()
    accepted = world.settled("ann", Outcome.ACCEPT, slots=2)
    told = read(world.leaves)
    assert told.settled == {accepted: [Outcome.ACCEPT]}
    assert complaints(told, accepted, steps_min=1) == ""
    waiting = world.submit(world.lease("bob", 2, 2))
    assert f"{waiting} was settled 0 times" in complaints(read(world.leaves), waiting, steps_min=1)
