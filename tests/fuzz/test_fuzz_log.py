"""Hostile bytes into every parser of the log: notes, tree heads, keys, paths, tiles, bundles and proofs."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fuzz.harness import assert_survives
from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.log.merkle import (
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.log.tiles import (
    EntryBundle,
    Tile,
    check_tile,
    decode_bundle,
    encode_bundle,
    make_node_reader,
    parse_tile_path,
)
from prime_protocol.log.tree_head import (
    SignatureKind,
    SignedNote,
    TreeHead,
    VerifierKey,
    cosign_tree_head,
    open_cosigned_tree_head,
    sign_tree_head,
)
from prime_protocol.wire.ids import Digest
from support.ledger_network import NETWORK
from support.rotated_log import RotatedLog

pytestmark = pytest.mark.fuzz

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
LOG, WITNESS = VerifierKey.of("log.example", KEY), VerifierKey.of("w", KEY, SignatureKind.COSIGNATURE)
TREE = MerkleTree(compute_leaf_hash(bytes([number])) for number in range(200))
HEADS = [TreeHead("log.example", size, TREE.root()) for size in (1, 200, LOG_ENTRIES_MAX)]
NOTES = [cosign_tree_head(sign_tree_head(head, KEY), "w", KEY, time_s=head.size) for head in HEADS]


def text_of(raw: bytes) -> str:
    """Also strings that no honest decoder gives: a parser of text must survive them too."""
    return raw.decode("utf-8", "surrogateescape")


def test_notes_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        assert SignedNote.parse(raw).encode() == raw

    assert_survives(parse, NOTES)


def test_lists_of_keys_survive_and_what_parses_prints_the_same() -> None:
    log = RotatedLog.begun(2)
    log.rotate_log_key("second")
    log.rotate_coordinator("next")

    def parse(raw: bytes) -> None:
        keys = KeyFile.parse(raw)
        assert keys.encode() == raw
        KeyChain.of_leaves(keys.leaves, NETWORK)

    assert_survives(parse, [log.key_file.encode()])
    assert_survives(log.chain.find_rotated_signer, [log.head(), log.head(4, "first")])


def test_signed_heads_survive() -> None:
    assert_survives(lambda raw: open_cosigned_tree_head(raw, [LOG, WITNESS]), NOTES)


def test_head_texts_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        assert TreeHead.parse(text_of(raw)).text == text_of(raw)

    assert_survives(parse, [head.text.encode() for head in HEADS])


def test_keys_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        assert str(VerifierKey.parse(text_of(raw))) == text_of(raw)

    assert_survives(parse, [str(LOG).encode(), str(WITNESS).encode()])


def test_paths_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        assert parse_tile_path(text_of(raw)).path == text_of(raw)

    places = [Tile(0, 0, 256), Tile(3, 1_234_067, 5), EntryBundle(0, 255), EntryBundle(1_234_067, 256)]
    assert_survives(parse, [place.path.encode() for place in places])


def test_tiles_survive() -> None:
    tile = Tile(0, 0, 200)

    def parse(raw: bytes) -> None:
        check_tile(tile, raw)
        make_node_reader(200, lambda _: raw)(3, 7)

    assert_survives(parse, [b"".join(TREE.get_node(0, index) for index in range(200))])


def test_bundles_survive_and_what_parses_prints_the_same() -> None:
    def parse(raw: bytes) -> None:
        assert encode_bundle(decode_bundle(EntryBundle(0, 5), raw)) == raw

    assert_survives(parse, [encode_bundle([b"", b"a", b"bb" * 100, b"\x00" * 50, b"end"])])


def test_proofs_survive_and_only_the_honest_ones_verify() -> None:
    honest = {
        b"".join(build_inclusion_proof(77, 200, TREE.get_node)),
        b"".join(build_consistency_proof(77, 200, TREE.get_node)),
    }
    old = MerkleTree(TREE.get_node(0, index) for index in range(77)).root()
    sizes = {"old_size": 77, "old_root": old, "new_size": 200, "new_root": TREE.root()}

    def parse(raw: bytes) -> None:
        proof = [Digest(raw[at : at + DIGEST_BYTES]) for at in range(0, len(raw), DIGEST_BYTES)]
        try:
            verify_inclusion(TREE.get_node(0, 77), proof, index=77, size=200, root=TREE.root())
        except RemoteError:
            verify_consistency(proof, **sizes)
        assert raw in honest

    assert_survives(parse, sorted(honest))
