"""Redaction: no control character, no secret, no private key leaves, whatever the text."""

import time

from hypothesis import given
from hypothesis import strategies as st

from prime_protocol.wire.ids import Digest
from prime_runtime.redaction import PUBLIC_MARK, Redactor, Secret, escape, truncate

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
PLAIN = Redactor([])


@given(st.text())
def test_escaped_text_can_always_be_printed(text: str) -> None:
    assert escape(text).isprintable()


def test_escapes_are_visible() -> None:
    assert escape("a\nb\r\t\x1b[2J\x9b\u202e\u2028\U000e0001\ud800é") == (
        "a\\nb\\r\\t\\x1b[2J\\x9b\\u202e\\u2028\\U000e0001\\ud800é"
    )


def test_a_private_key_becomes_a_fingerprint_in_every_spelling() -> None:
    marks = {PLAIN.clean(text, 500) for text in (KEY, KEY.upper(), f"0x{KEY}", f"0X{KEY}")}
    assert len(marks) == 1
    assert KEY[:8] not in marks.pop()
    for text in (f"key={KEY}", f"'{KEY}'", f"({KEY}, 1)", f"\x1b{KEY}\n", f"{KEY},{KEY}"):
        assert KEY not in PLAIN.clean(text, 500)


def test_other_hex_stays() -> None:
    address, signature = "0x" + "ab" * 20, "cd" * 65
    assert PLAIN.clean(f"{address} {signature}", 500) == f"{address} {signature}"


def test_a_marked_digest_stays_whole() -> None:
    digest = Digest(bytes.fromhex(KEY))
    assert PLAIN.clean(f"shard {PUBLIC_MARK}{digest}!", 500) == f"shard {digest}!"


def test_secrets_are_blotted_out_the_longer_first() -> None:
    redactor = Redactor([Secret("horse"), Secret("horse battery"), Secret("a.c"), Secret("")])
    assert redactor.clean("horse battery horse abc a.c", 500) == "*** *** abc ***"


def test_a_secret_across_the_end_of_what_is_searched_does_not_show() -> None:
    secret = "correct horse battery staple"
    redactor = Redactor([Secret(secret), Secret("x" * 1000)])
    for shift in range(len(secret) + 1):
        # Long secrets shrink when they are blotted out, which pulls the end of the searched text into view.
        text = "x" * 1000 + "y" * (16_000 - 1000 - shift) + secret * 3
        assert "corr" not in redactor.clean(text, 1000)


def test_megabytes_cost_no_more_than_pages() -> None:
    redactor = Redactor([Secret("correct horse")])
    started = time.perf_counter()
    assert len(redactor.clean("0123456789abcdef" * 2_000_000, 4096)) < 5000
    assert time.perf_counter() - started < 1


def test_a_cut_tells_how_much_is_missing() -> None:
    assert truncate("abcdef", 6) == "abcdef"
    assert truncate("abcdef", 4) == "abcd… and 2 more"
