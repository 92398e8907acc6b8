"""What an owner gives, from the section [upload]."""

import pytest

from prime_runtime.settings.schema import ConfigError
from prime_runtime.shardcast.config import UploadConfig
from prime_runtime.shardcast.upload_slots import SLOTS


def test_slots_are_chosen_where_the_owner_does_not_say() -> None:
    assert UploadConfig().limits().slots == SLOTS
    assert UploadConfig(bytes_per_s=125_000_000).limits().slots == 32
    assert UploadConfig(bytes_per_s=1_000, address_slots=4).limits().slots == 4
    assert UploadConfig(slots=9).limits().slots == 9


def test_zero_is_no_cap() -> None:
    limits = UploadConfig().limits()
    assert (limits.bytes_per_s, limits.day_bytes) == (None, None)


def test_one_address_cannot_have_more_than_all() -> None:
    with pytest.raises(ConfigError, match="address_slots"):
        UploadConfig(slots=2, address_slots=3)
