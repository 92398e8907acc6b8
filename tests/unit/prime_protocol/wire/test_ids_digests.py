"""Fields that become one digest."""

from hashlib import sha256

from prime_protocol.wire.ids import digest_fields, frame_fields


def test_frame_is_domain_then_fields_each_behind_its_length() -> None:
    framed = frame_fields("d", b"", b"xy")
    assert framed == b"\0\0\0\x0dprime-swarm/d" + b"\0\0\0\0" + b"\0\0\0\x02xy"
    assert digest_fields("d", b"", b"xy") == sha256(framed).digest()


def test_moving_a_byte_between_fields_changes_the_digest() -> None:
    assert digest_fields("d", b"ab", b"c") != digest_fields("d", b"a", b"bc")
    assert digest_fields("d", b"abc") != digest_fields("d", b"ab", b"c")
    assert digest_fields("d", b"") != digest_fields("d")


def test_equal_fields_in_two_domains_have_two_digests() -> None:
    assert digest_fields("a/1", b"x") != digest_fields("b/1", b"x")
