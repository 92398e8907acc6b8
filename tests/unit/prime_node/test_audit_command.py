"""Claims about `prime-node audit`: what it says to somebody who names no verdict."""

import pytest

from prime_node.commands.audit import parse_verdict
from prime_node.commands.audit_any import Said, describe_looks, to_verdicts
from prime_protocol.constants import LOOKS, LOOKS_BYTES
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.looks import pack_looks

DIGEST = "0x" + "ab" * 32
ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)


def test_a_digest_names_a_verdict() -> None:
    assert str(parse_verdict(DIGEST)) == DIGEST


@pytest.mark.parametrize("text", ["bundle.bin", DIGEST.upper(), DIGEST[:-1], ""])
def test_anything_else_is_told_where_digests_are_found(text: str) -> None:
    with pytest.raises(LocalError, match=r"names no verdict: a digest must be 0x .* --bundle"):
        parse_verdict(text)


# --- A submission that nobody rejected ------------------------------------------------------------------------------


def test_what_validators_said_is_read_from_the_log_with_their_looks() -> None:
    looks = "0x" + "01" * LOOKS_BYTES
    rows = [
        {"body": {"receipt": {"validator": str(node)}, "outcome": "accept", "looks": text}}
        for node, text in ((ANN, looks), (BOB, "0x"))
    ]
    assert to_verdicts({"rows": rows}) == {
        ANN: Said(outcome="accept", looks=b"\1" * LOOKS_BYTES),
        BOB: Said(outcome="accept", looks=b""),
    }


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (pack_looks([0.5] * LOOKS), pack_looks([0.5] * LOOKS), "read it: off by 0.0000"),
        (pack_looks([0.5] * LOOKS), pack_looks([-0.5] * LOOKS), "did not read it: off by 1.00"),
        (b"", pack_looks([0.5] * LOOKS), "did not read it: its verdict has no looks"),
        (pack_looks([0.5] * LOOKS), b"", "the file needs no model"),
    ],
)
def test_looks_are_told_in_words(said: bytes, found: bytes, words: str) -> None:
    assert describe_looks(said, found) == words
