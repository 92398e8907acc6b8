"""The config sections of HTTP servers and clients: address, limits, deadlines."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX, FRAME_BYTES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId
from prime_runtime.settings.schema import Between, ConfigError, settings_class

CLIENT_IDLE_MS = 15_000
"""How long a client keeps an idle connection: shorter than a server, or a request could meet a closing connection."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The URL of a server, and the key that must sign its replies."""

    url: str
    node: NodeId

    def __post_init__(self) -> None:
        from yarl import URL

        try:
            parsed = URL(self.url)
        except ValueError:
            raise LocalError(f"{self.url!r} is not a URL; write http://host:port or https://host") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise LocalError(f"{self.url!r} is not the URL of a server; write http://host:port or https://host")
        if parsed.user or parsed.password or parsed.query_string or parsed.fragment:
            raise LocalError("the URL of a server must have no user name, password, query or fragment")


@settings_class
class ListenConfig:
    """The section [listen] of a program that serves HTTP."""

    host: str = "127.0.0.1"
    """Address to bind. The default accepts connections from this machine only."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port to bind; 0 takes a free port."""
    tls_certificate: Path | None = None
    """PEM file with the certificate chain; together with tls_key it enables TLS."""
    tls_key: Path | None = None
    """PEM file with the private key of the certificate."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key must be set together; one of them is missing")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@settings_class
class ServerLimits:
    """The section [limits] of a program that serves HTTP."""

    body_bytes_max: Annotated[int, Between(1024, FRAME_BYTES_MAX)] = FRAME_BYTES_MAX
    """Maximum size of a request."""
    read_ms: Annotated[int, Between(1, 600_000)] = 10_000
    """Time to receive the body of a request."""
    handle_ms: Annotated[int, Between(1, 600_000)] = 30_000
    """Time for a handler to answer."""
    idle_ms: Annotated[int, Between(10, 600_000)] = 30_000
    """Time until an idle connection is closed. Keep it above the clients' 15 s."""
    drain_ms: Annotated[int, Between(0, 600_000)] = 10_000
    """Time for open requests to end when the server stops."""
    connections_max: Annotated[int, Between(1, 100_000)] = 2_000
    """Open connections; further ones are closed."""
    requests_max: Annotated[int, Between(1, 100_000)] = 256
    """Concurrent requests; further ones are told to retry."""
    requests_per_address_max: Annotated[int, Between(1, 100_000)] = 32
    """Concurrent requests from one address."""
    transfers_max: Annotated[int, Between(1, 100_000)] = 128
    """Concurrent uploads and downloads; counted apart from requests, so that slow transfers do not block them."""
    transfers_per_address_max: Annotated[int, Between(1, 100_000)] = 16
    """Concurrent uploads and downloads from one address."""
    waits_max: Annotated[int, Between(1, 100_000)] = 20_000
    """Concurrent long polls; counted apart from requests, because they are idle. Each needs a connection: see
    connections_max."""
    waits_per_address_max: Annotated[int, Between(1, 100_000)] = 64
    """Concurrent long polls from one address."""
    address_rate: Annotated[float, Between(0.01, 1e6)] = 100.0
    """Sustained requests per second from one address."""
    address_burst: Annotated[int, Between(1, 10**6)] = 400
    """Requests in a burst from one address after a pause."""
    sender_rate: Annotated[float, Between(0.01, 1e6)] = 20.0
    """Sustained requests per second from one key."""
    sender_burst: Annotated[int, Between(1, 10**6)] = 100
    """Requests in a burst from one key after a pause."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of your own proxies, whose X-Forwarded-For header is trusted."""


@settings_class
class ClientLimits:
    """The section [client] of a program that calls others."""

    deadline_ms: Annotated[int, Between(1, 3_600_000)] = 30_000
    """Time for one call, including retries."""
    connect_ms: Annotated[int, Between(1, 600_000)] = 5_000
    """Time to open a connection."""
    attempts_max: Annotated[int, Between(1, 100)] = 5
    """Attempts of one call."""
    backoff_ms: Annotated[int, Between(1, 600_000)] = 200
    """Maximum wait before the second attempt; it doubles with each attempt."""
    backoff_ms_max: Annotated[int, Between(1, 600_000)] = 10_000
    """Maximum wait before any attempt."""
    retry_after_ms_max: Annotated[int, Between(0, 3_600_000)] = 15_000
    """Maximum wait that a server may ask for; beyond it the call fails."""
    reply_bytes_max: Annotated[int, Between(1024, FRAME_BYTES_MAX)] = FRAME_BYTES_MAX
    """Maximum size of a reply."""
    life_ms: Annotated[int, Between(1, ENVELOPE_LIFE_MS_MAX)] = 60_000
    """Lifetime of the envelope of a request."""


assert ServerLimits.idle_ms > CLIENT_IDLE_MS, "the client closes idle connections first"
