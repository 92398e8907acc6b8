"""An accusation carries its own proof that the entry is in the log, and convicts alone only where one leaf can."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import Accusation, AccusationProof, BrokenRule, judge_accusation
from prime_protocol.keys.chain import CoordinatorPeriod, KeyChain, LogKeyPeriod
from prime_protocol.ledger import entries as e
from prime_protocol.log.merkle import MerkleTree, build_inclusion_proof, compute_leaf_hash
from prime_protocol.log.tree_head import TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest
from support.ledger_network import NETWORK, RUN, World

LOG_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
ORIGIN = "prime-swarm/testnet"
VKEY = VerifierKey.of(ORIGIN, LOG_KEY)
WORLD = World.started()
COORDINATOR = WORLD.id("coordinator")
NOTED = e.HeadNoted(root=Digest(bytes(32)))


def accuse(leaf: bytes, *, sends_leaf: bool = True) -> Accusation:
    leaves = [*WORLD.leaves, leaf, b"what came after"]
    tree, index = MerkleTree([compute_leaf_hash(each) for each in leaves]), len(WORLD.leaves)
    return Accusation(
        note=sign_tree_head(TreeHead(ORIGIN, len(leaves), tree.root()), LOG_KEY),
        index=index,
        leaf_hash=compute_leaf_hash(leaf),
        leaf=leaf if sends_leaf else b"",
        proof=build_inclusion_proof(index, len(leaves), tree.get_node),
        rule=BrokenRule.LEDGER,
        problem="breaks a rule",
    )


def judge(accusation: Accusation, log_key: VerifierKey = VKEY, known_size: int = 10**6) -> AccusationProof:
    keys = KeyChain(NETWORK, (LogKeyPeriod(0, log_key),), (CoordinatorPeriod(0, COORDINATOR),))
    return judge_accusation(accusation, keys, known_size=known_size)


def late(leaf: bytes) -> bytes:
    record = decode(e.LogRecord, leaf)
    return encode(replace(record, at_ms=record.at_ms + 10**9))


BROKEN_ALONE = {
    "no record": b"not an entry",
    "another signature": encode(e.LogRecord(WORLD.now_ms, bytes(65) + WORLD.leaves[3][80:])),
    "not the coordinator": WORLD.seal("ann", NOTED),
    "no such kind": WORLD.seal("coordinator", NOTED, kind="Invented"),
    "a body of another kind": WORLD.seal("coordinator", NOTED, body=b"\x80"),
    "a run where none belongs": WORLD.seal("coordinator", NOTED, RUN),
    "after its envelope expired": late(WORLD.seal("coordinator", NOTED)),
    "another network": WORLD.seal("coordinator", NOTED, network="other"),
}


@pytest.mark.parametrize("name", BROKEN_ALONE)
def test_a_leaf_that_breaks_a_rule_by_itself_convicts(name: str) -> None:
    assert judge(accuse(BROKEN_ALONE[name])) is AccusationProof.CONVICTS


def test_a_wrong_author_convicts_only_where_all_keys_of_the_log_are_known() -> None:
    """The entry may be honest, and its author the coordinator's key after a rotation that the receiver missed."""
    index = len(WORLD.leaves)
    for name, leaf in BROKEN_ALONE.items():
        is_author = name == "not the coordinator"
        expected = AccusationProof.UNKNOWN_AUTHOR if is_author else AccusationProof.CONVICTS
        assert judge(accuse(leaf), known_size=index) is expected
        assert judge(accuse(leaf), known_size=index + 1) is AccusationProof.CONVICTS


def test_where_the_state_decides_or_the_leaf_is_not_sent_it_is_a_claim() -> None:
    assert judge(accuse(WORLD.seal("coordinator", NOTED))) is AccusationProof.CLAIM
    assert judge(accuse(BROKEN_ALONE["not the coordinator"], sends_leaf=False)) is AccusationProof.CLAIM


def test_an_entry_of_a_newer_version_does_not_convict() -> None:
    newer = WORLD.seal("coordinator", NOTED, kind="Invented", version=PROTOCOL_VERSION + 1)
    assert judge(accuse(newer)) is AccusationProof.CLAIM


def test_a_head_that_the_log_did_not_sign_says_nothing_about_it() -> None:
    other = VerifierKey.of(ORIGIN, Ed25519PrivateKey.from_private_bytes(b"\x08" * 32))
    with pytest.raises(RemoteError):
        judge(accuse(b"not an entry"), other)


def test_an_accusation_without_a_valid_proof_cannot_be_made_or_decoded() -> None:
    good = accuse(WORLD.seal("coordinator", NOTED))
    assert decode(Accusation, encode(good)) == good
    with pytest.raises(RemoteError, match="does not show that the entry is in the log"):
        replace(good, index=good.index - 1)
    with pytest.raises(RemoteError, match="does not show that the entry is in the log"):
        replace(good, note=b"no note")
    with pytest.raises(RemoteError, match="not the hash of the leaf"):
        replace(good, leaf=b"another")
    assert good.head.size == len(WORLD.leaves) + 2
