"""The section [upload] of a program that serves shards: what its owner gives to those who fetch."""

from dataclasses import dataclass
from typing import Annotated

from prime_runtime.settings_schema import Between, ConfigError
from prime_runtime.shardcast.slots import SLOTS, UploadLimits, choose_slots


@dataclass(frozen=True, kw_only=True)
class UploadConfig:
    """The section [upload]: what the owner gives to nodes that fetch from this one."""

    slots: Annotated[int, Between(0, 1000)] = 0
    """Uploads at once. Few, so that each is fast and what was sent can be passed on soon. 0 chooses: six, or by
    bytes_per_s where that is set."""
    address_slots: Annotated[int, Between(1, 1000)] = 2
    """Uploads at once to one address."""
    bytes_per_s: Annotated[int, Between(0, 10**12)] = 0
    """Upload rate over all slots; 0 is as fast as the line."""
    bytes_per_day: Annotated[int, Between(0, 10**15)] = 0
    """Most bytes sent in a day of UTC; 0 is no cap."""

    def __post_init__(self) -> None:
        if self.slots and self.address_slots > self.slots:
            raise ConfigError("upload.address_slots is above upload.slots")

    def limits(self) -> UploadLimits:
        slots = self.slots or (choose_slots(self.bytes_per_s) if self.bytes_per_s else SLOTS)
        return UploadLimits(
            slots=max(slots, self.address_slots),
            address_slots=self.address_slots,
            bytes_per_s=self.bytes_per_s or None,
            day_bytes=self.bytes_per_day or None,
        )
