"""An origin names what it has not sent yet; once it has sent everything, everything. Others name all they have."""

from prime_runtime.shardcast.shard_set import choose_advertised


def test_an_origin_names_what_was_never_sent_until_nothing_is_left() -> None:
    assert choose_advertised(0b1111, 0b0000, is_origin=True) == 0b1111
    assert choose_advertised(0b1111, 0b0101, is_origin=True) == 0b1010
    assert choose_advertised(0b1111, 0b1111, is_origin=True) == 0b1111


def test_others_name_all_they_hold() -> None:
    assert choose_advertised(0b0111, 0b0101, is_origin=False) == 0b0111
