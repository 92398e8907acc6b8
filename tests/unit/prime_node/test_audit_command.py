"""Claims about `prime-node audit`: what it says to somebody who names no verdict."""

import pytest

from prime_node.commands.audit import parse_verdict
from prime_protocol.errors import LocalError

DIGEST = "0x" + "ab" * 32


def test_a_digest_names_a_verdict() -> None:
    assert str(parse_verdict(DIGEST)) == DIGEST


@pytest.mark.parametrize("text", ["bundle.bin", DIGEST.upper(), DIGEST[:-1], ""])
def test_anything_else_is_told_where_digests_are_found(text: str) -> None:
    with pytest.raises(LocalError, match=r"names no verdict: a digest must be 0x .* --bundle"):
        parse_verdict(text)
