"""Ids: one text for each value, and nothing else parses."""

import pytest

from prime_protocol.constants import NAME_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Ticker

DIGEST = Digest(bytes(range(32)))


def test_an_id_prints_as_lower_case_hex_and_parses_back() -> None:
    assert str(DIGEST) == "0x" + bytes(range(32)).hex()
    assert Digest.parse(str(DIGEST)) == DIGEST
    assert repr(NodeId(b"\xab" * 20)) == "NodeId(0x" + "ab" * 20 + ")"


def test_an_id_is_its_bytes() -> None:
    assert bytes(range(32)) == DIGEST
    assert {DIGEST: 1}[Digest(bytes(range(32)))] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "ab" * 32,
        "0x" + "AB" * 32,
        "0X" + "ab" * 32,
        "0x" + "ab" * 31,
        "0x" + "ab" * 33,
        "0x" + "ab" * 32 + "\n",
        " 0x" + "ab" * 32,
        "0x" + "zz" * 32,
        "0x" + "\u0661" * 64,
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteError, match=r"^Digest: must be 0x and 64 lower-case hex digits$"):
        Digest.parse(text)


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(RemoteError, match=r"^NodeId: is 32 bytes, expected 20$"):
        NodeId(bytes(32))


@pytest.mark.parametrize("text", ["a", "0", "main", "run-1", "a--b", "x" * NAME_CHARS_MAX])
def test_a_name_is_lower_case_letters_digits_and_inner_dashes(text: str) -> None:
    assert RunId(text) == text
    assert type(NetworkId(text)) is NetworkId


@pytest.mark.parametrize(
    "text",
    ["", "-", "-a", "a-", "A", "a b", "a/b", "..", "a.b", "a_b", "é", "a\n", "\u0661", "x" * (NAME_CHARS_MAX + 1)],
)
def test_any_other_name_is_refused(text: str) -> None:
    with pytest.raises(RemoteError, match=r"^RunId: must be 1 to 40 characters"):
        RunId(text)


def test_a_ticker_is_upper_case_letters_and_digits() -> None:
    assert [Ticker(text) for text in ("P", "PRIME", "X2", "A" * 12)] == ["P", "PRIME", "X2", "A" * 12]
    for text in ("", "prime", "A B", "A-B", "A" * 13, "PRIME\n"):
        with pytest.raises(RemoteError, match=r"^Ticker: must be 1 to 12 characters of A-Z and 0-9$"):
            Ticker(text)
