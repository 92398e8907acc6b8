"""Draws are the same everywhere, and even."""

from collections import Counter
from hashlib import sha256

import pytest

from prime_protocol.tasks.characters import HashRandom


def test_first_word_is_the_documented_hash() -> None:
    block = b"prime task 1" + b"\x00\x04sort" + (7).to_bytes(8, "big") + (9).to_bytes(8, "big") + bytes(8)
    assert HashRandom("sort", 7, 9).word() == int.from_bytes(sha256(block).digest()[:8], "big")


def test_words_go_on_into_the_next_block() -> None:
    dice = HashRandom("a", 0, 0)
    words = [dice.word() for _ in range(9)]
    assert len(set(words)) == 9


def test_another_name_seed_or_index_gives_other_words() -> None:
    firsts = {HashRandom(name, seed, index).word() for name in "ab" for seed in (0, 1) for index in (0, 1)}
    assert len(firsts) == 8


def test_words_that_would_favour_small_numbers_are_drawn_again() -> None:
    bound = 2**63 + 1
    draws = [HashRandom("even", 0, index).below(bound) for index in range(200)]
    words = [HashRandom("even", 0, index).word() for index in range(200)]
    assert any(word >= bound for word in words)
    assert all(draw < bound for draw in draws)


def test_a_small_bound_is_drawn_evenly() -> None:
    counts = Counter(HashRandom("die", 0, index).below(6) for index in range(6000))
    assert set(counts) == set(range(6))
    assert all(850 < count < 1150 for count in counts.values()), counts


def test_a_bound_of_nothing_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        HashRandom("a", 0, 0).below(0)
