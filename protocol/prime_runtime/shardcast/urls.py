"""The URLs under which a shard server is announced: as the owner wrote them, with the port that was bound."""

from collections.abc import Iterable

from prime_protocol.addresses import ServerUrl
from prime_protocol.constants import ADDRESSES_MAX
from prime_protocol.errors import RemoteError
from prime_runtime.settings_schema import ConfigError

ANY_PORT = ":0"


def check_urls(setting: str, urls: tuple[str, ...]) -> None:
    """ConfigError where other nodes would refuse one. Port 0 stands for the port that will be bound."""
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
