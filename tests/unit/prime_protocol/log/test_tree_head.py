"""Tree heads: the text, who signed it, who cosigned it."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import EMPTY_ROOT
from prime_protocol.log.tree_head import (
    ORIGIN_PREFIX,
    Cosignature,
    SignatureKind,
    SignedNote,
    TreeHead,
    VerifierKey,
    cosign_tree_head,
    open_cosigned_tree_head,
    open_tree_head,
    parse_origin,
    sign_note,
    sign_tree_head,
)
from prime_protocol.wire.ids import Digest

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "treehead.json").read_text())["tree_head"]
ORIGIN = "prime.example/log"
KEY, WITNESS_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2))
LOG = VerifierKey.of(ORIGIN, KEY)
WITNESS = VerifierKey.of("witness.example/w", WITNESS_KEY, SignatureKind.COSIGNATURE)
HEAD = TreeHead(ORIGIN, 42, Digest(b"r" * 32))


def test_a_public_cosigned_checkpoint_opens() -> None:
    log, witness = VerifierKey.parse(VECTOR["log_key"]), VerifierKey.parse(VECTOR["witness_key"])
    head, cosignatures = open_cosigned_tree_head(VECTOR["signed"].encode(), [log, witness])
    assert (head.origin, head.size, head.root.hex()) == (VECTOR["origin"], VECTOR["size"], VECTOR["root"])
    assert cosignatures == (Cosignature(witness, VECTOR["time_s"]),)


def test_a_signed_head_opens_to_the_same_head() -> None:
    signed = sign_tree_head(HEAD, KEY)
    assert open_tree_head(signed, [LOG]) == HEAD
    assert SignedNote.parse(signed).text == HEAD.text == "prime.example/log\n42\n" + "cnJy" * 10 + "cnI=\n"


def test_signing_is_deterministic() -> None:
    assert sign_tree_head(HEAD, KEY) == sign_tree_head(HEAD, KEY)


def test_a_head_without_a_trusted_signature_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^note\.signatures: has none by a trusted key$"):
        open_tree_head(sign_tree_head(HEAD, WITNESS_KEY), [LOG])


def test_a_cosigned_head_that_the_log_did_not_sign_is_refused() -> None:
    forged = cosign_tree_head(sign_tree_head(HEAD, WITNESS_KEY), WITNESS.name, WITNESS_KEY, time_s=5)
    with pytest.raises(RemoteError, match=r"of the log prime\.example/log"):
        open_tree_head(forged, [LOG, WITNESS])


def test_a_witness_named_like_the_log_does_not_sign_for_it() -> None:
    namesake = VerifierKey.of(ORIGIN, WITNESS_KEY, SignatureKind.COSIGNATURE)
    forged = cosign_tree_head(sign_tree_head(HEAD, WITNESS_KEY), ORIGIN, WITNESS_KEY, time_s=5)
    with pytest.raises(RemoteError, match=r"of the log prime\.example/log"):
        open_tree_head(forged, [LOG, namesake])


def test_a_trusted_log_cannot_sign_for_another_log() -> None:
    text = TreeHead("other.example/log", 42, HEAD.root).text
    with pytest.raises(RemoteError, match=r"of the log other\.example/log"):
        open_tree_head(SignedNote(text, (sign_note(text, ORIGIN, KEY),)).encode(), [LOG])


def test_cosignatures_are_reported_once_with_the_latest_time() -> None:
    signed = sign_tree_head(HEAD, KEY)
    for time_s in (5, 9, 7):
        signed = cosign_tree_head(signed, WITNESS.name, WITNESS_KEY, time_s=time_s)
    assert open_cosigned_tree_head(signed, [LOG, WITNESS]) == (HEAD, (Cosignature(WITNESS, 9),))
    assert open_cosigned_tree_head(signed, [LOG]) == (HEAD, ())


def test_a_text_that_is_no_head_is_not_cosigned() -> None:
    note = SignedNote("hello\n", (sign_note("hello\n", ORIGIN, KEY),)).encode()
    with pytest.raises(RemoteError, match=r"^tree_head:"):
        cosign_tree_head(note, WITNESS.name, WITNESS_KEY, time_s=5)


ROOT = HEAD.text.split("\n")[2]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"o\n42\n{ROOT}", "tree_head"),
        (f"o\n42\n{ROOT}\nextension\n", "tree_head"),
        (f"\n42\n{ROOT}\n", "tree_head.origin"),
        (f"a b\n42\n{ROOT}\n", "tree_head.origin"),
        (f"o\n042\n{ROOT}\n", "tree_head.size"),
        (f"o\n-1\n{ROOT}\n", "tree_head.size"),
        (f"o\n\n{ROOT}\n", "tree_head.size"),
        (f"o\n٤٢\n{ROOT}\n", "tree_head.size"),
        (f"o\n{LOG_ENTRIES_MAX + 1}\n{ROOT}\n", "tree_head.size"),
        (f"o\n{'9' * 5000}\n{ROOT}\n", "tree_head.size"),
        (f"o\n42\n{ROOT[:-1]}\n", "tree_head.root"),
        (f"o\n42\n{ROOT[:-2]}J=\n", "tree_head.root"),
        ("o\n42\ncnJy\n", "tree_head.root"),
        (f"o\n0\n{ROOT}\n", "tree_head.root"),
    ],
)
def test_a_bad_head_is_refused_by_field(text: str, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        TreeHead.parse(text)
    assert caught.value.field == field


def test_the_smallest_and_the_largest_head_parse() -> None:
    for head in (TreeHead("o", 0, EMPTY_ROOT), TreeHead("o", LOG_ENTRIES_MAX, HEAD.root)):
        assert TreeHead.parse(head.text) == head


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^tree_head\.size"):
        TreeHead("o", -1, EMPTY_ROOT)


def test_a_networks_log_is_named_after_it() -> None:
    assert parse_origin(ORIGIN_PREFIX + "testnet") == "testnet"
    for origin, field in (("testnet", "tree_head.origin"), (ORIGIN_PREFIX + "no name", "NetworkId")):
        with pytest.raises(RemoteError) as caught:
            parse_origin(origin)
        assert caught.value.field == field
