"""Claims about `prime-node audit`: what it says to somebody who names no verdict."""

import pytest

from prime_node.cli.audit import LoggedVerdict, describe_read_proof, parse_verdict_id, parse_verdicts
from prime_protocol.constants import READ_PROOF_BYTES, READ_PROOF_PROBES
from prime_protocol.errors import LocalError
from prime_protocol.proofs.read_proofs import encode_read_proof
from prime_protocol.wire.ids import NodeId

DIGEST = "0x" + "ab" * 32
ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)


def test_a_digest_names_a_verdict() -> None:
    assert str(parse_verdict_id(DIGEST)) == DIGEST


@pytest.mark.parametrize("text", ["bundle.bin", DIGEST.upper(), DIGEST[:-1], ""])
def test_anything_else_is_told_where_digests_are_found(text: str) -> None:
    with pytest.raises(LocalError, match=r"names no verdict: a digest must be 0x .* --bundle"):
        parse_verdict_id(text)


# --- A submission that nobody rejected ------------------------------------------------------------------------------


def test_what_validators_said_is_read_from_the_log_with_their_read_proofs() -> None:
    looks = "0x" + "01" * READ_PROOF_BYTES
    rows = [
        {"body": {"receipt": {"validator": str(node)}, "outcome": "accept", "read_proof": text, "blocks_read": 2}}
        for node, text in ((ANN, looks), (BOB, "0x"))
    ]
    assert parse_verdicts(rows) == {
        ANN: LoggedVerdict(outcome="accept", read_proof=b"\1" * READ_PROOF_BYTES, blocks_read=2),
        BOB: LoggedVerdict(outcome="accept", read_proof=b"", blocks_read=2),
    }


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (
            encode_read_proof([0.5] * READ_PROOF_PROBES),
            encode_read_proof([0.5] * READ_PROOF_PROBES),
            "ran the model: error 0.0000",
        ),
        (
            encode_read_proof([0.5] * READ_PROOF_PROBES),
            encode_read_proof([-0.5] * READ_PROOF_PROBES),
            "did not run the model: error 1.00",
        ),
        (b"", encode_read_proof([0.5] * READ_PROOF_PROBES), "did not run the model: its verdict has no read proof"),
        (encode_read_proof([0.5] * READ_PROOF_PROBES), b"", "the file needs no model"),
    ],
)
def test_a_read_proof_is_described_in_words(said: bytes, found: bytes, words: str) -> None:
    assert describe_read_proof(said, found) == words
