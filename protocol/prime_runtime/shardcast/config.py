"""Settings of programs that keep and serve weights: the section [upload], retention, and the announced URLs.

What follows from them while requests arrive is decided in upload_slots.py and store.py.
"""

from collections.abc import Iterable
from typing import Annotated

from prime_protocol.constants import ADDRESSES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import ServerUrl
from prime_runtime.settings.schema import Between, ConfigError, settings_class
from prime_runtime.shardcast.upload_slots import SLOTS, UploadLimits, choose_slots

VERSIONS_KEPT = 5
"""Steps kept. With the default lag no run accepts work for older ones."""
ANY_PORT = ":0"


@settings_class
class UploadConfig:
    """The section [upload]: what this node gives to nodes that fetch from it."""

    slots: Annotated[int, Between(0, 1000)] = 0
    """Concurrent uploads. Few, so that each is fast and its shard can be forwarded soon. 0 chooses: six, or by
    bytes_per_s if that is set."""
    address_slots: Annotated[int, Between(1, 1000)] = 2
    """Concurrent uploads to one address."""
    bytes_per_s: Annotated[int, Between(0, 10**12)] = 0
    """Upload rate over all slots; 0 is unlimited."""
    bytes_per_day: Annotated[int, Between(0, 10**15)] = 0
    """Maximum bytes sent per UTC day; 0 is unlimited."""

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


def check_urls(setting: str, urls: tuple[str, ...]) -> None:
    """ConfigError if other nodes would refuse a URL. Port 0 stands for the bound port."""
    if len(urls) > ADDRESSES_MAX:
        raise ConfigError(f"{setting} names {len(urls)} URLs, allowed are {ADDRESSES_MAX}")
    for url in urls:
        try:
            ServerUrl.parse(with_port(url, 1))
        except RemoteError as error:
            raise ConfigError(f"{setting}: {url!r} {error.problem}") from None


def with_port(url: str, port: int) -> str:
    return f"{url.removesuffix(ANY_PORT)}:{port}" if url.endswith(ANY_PORT) else url


def with_ports(urls: Iterable[str], port: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(with_port(url, port) for url in urls))
