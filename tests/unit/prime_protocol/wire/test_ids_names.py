"""A node's name for people: always the same one, easy to type, and spread evenly enough to tell nodes apart."""

import re
from collections import Counter
from hashlib import sha256

import pytest

from prime_protocol.wire.ids import ADJECTIVES, ANIMALS, COLOURS, NodeId, friendly_name


def node(number: int) -> NodeId:
    return NodeId(sha256(str(number).encode()).digest()[:20])


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0x" + "00" * 20, "ideal-emerald-impala"),
        ("0x" + "11" * 20, "civil-pink-bison"),
        ("0x" + "ff" * 20, "loud-silver-gull"),
    ],
)
def test_an_address_has_the_same_name_for_ever(address: str, name: str) -> None:
    assert friendly_name(NodeId.parse(address)) == name


def test_a_name_is_three_plain_words() -> None:
    for number in range(1000):
        assert re.fullmatch(r"[a-z]{3,9}-[a-z]{3,9}-[a-z]{3,9}", friendly_name(node(number)))


def test_every_word_is_used_and_few_names_are_shared() -> None:
    names = [friendly_name(node(number)) for number in range(5000)]
    for place, words in enumerate((ADJECTIVES, COLOURS, ANIMALS)):
        assert {name.split("-")[place] for name in names} == set(words)
    assert sum(count - 1 for count in Counter(names).values()) < 40, "12 are to be expected among 5,000 of 2^20"
