"""How much of everything the HTTP server and client take: config sections, each with its bound and unit."""

from typing import Annotated

from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX, FRAME_BYTES_MAX
from prime_runtime.settings.schema import Between, settings_class

CLIENT_IDLE_MS = 15_000
"""How long a client keeps an idle connection. Shorter than a server does, or a request could meet a closing one."""


@settings_class
class ServerLimits:
    """The section [limits] of a program that serves HTTP."""

    body_bytes_max: Annotated[int, Between(1024, FRAME_BYTES_MAX)] = FRAME_BYTES_MAX
    """Longest request."""
    read_ms: Annotated[int, Between(1, 600_000)] = 10_000
    """Time for a request's body to arrive."""
    handle_ms: Annotated[int, Between(1, 600_000)] = 30_000
    """Time for a handler to answer."""
    idle_ms: Annotated[int, Between(10, 600_000)] = 30_000
    """Time for a connection to send its next request's head. Keep it above CLIENT_IDLE_MS."""
    drain_ms: Annotated[int, Between(0, 600_000)] = 10_000
    """Time for open requests to end when the server stops."""
    connections_max: Annotated[int, Between(1, 100_000)] = 2_000
    """Open connections; the next one is dropped."""
    requests_max: Annotated[int, Between(1, 100_000)] = 256
    """Requests inside at once; the next one is told to come back."""
    requests_per_address_max: Annotated[int, Between(1, 100_000)] = 32
    """Requests inside at once from one address."""
    transfers_max: Annotated[int, Between(1, 100_000)] = 128
    """Uploads and downloads at once; apart from requests, so that slow ones keep nobody from asking."""
    transfers_per_address_max: Annotated[int, Between(1, 100_000)] = 16
    """Uploads and downloads at once from one address."""
    waits_max: Annotated[int, Between(1, 100_000)] = 20_000
    """Questions that wait for news at once; apart from requests, since they do nothing meanwhile. Each needs a
    connection: see connections_max."""
    waits_per_address_max: Annotated[int, Between(1, 100_000)] = 64
    """Questions that wait for news at once from one address."""
    address_rate: Annotated[float, Between(0.01, 1e6)] = 100.0
    """Requests a second from one address, for ever."""
    address_burst: Annotated[int, Between(1, 10**6)] = 400
    """Requests at once from one address after a pause."""
    sender_rate: Annotated[float, Between(0.01, 1e6)] = 20.0
    """Requests a second from one key, for ever."""
    sender_burst: Annotated[int, Between(1, 10**6)] = 100
    """Requests at once from one key after a pause."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies of our own, whose X-Forwarded-For is believed."""


@settings_class
class ClientLimits:
    """The section [client] of a program that calls others."""

    deadline_ms: Annotated[int, Between(1, 3_600_000)] = 30_000
    """Time for one call in all, retries included."""
    connect_ms: Annotated[int, Between(1, 600_000)] = 5_000
    """Time for a connection to stand."""
    attempts_max: Annotated[int, Between(1, 100)] = 5
    """How often one call is tried."""
    backoff_ms: Annotated[int, Between(1, 600_000)] = 200
    """Longest wait before the second attempt; it doubles with each."""
    backoff_ms_max: Annotated[int, Between(1, 600_000)] = 10_000
    """Longest wait before any attempt."""
    retry_after_ms_max: Annotated[int, Between(0, 3_600_000)] = 15_000
    """Longest wait a server can ask for; past it the call fails."""
    reply_bytes_max: Annotated[int, Between(1024, FRAME_BYTES_MAX)] = FRAME_BYTES_MAX
    """Longest reply."""
    life_ms: Annotated[int, Between(1, ENVELOPE_LIFE_MS_MAX)] = 60_000
    """Life of each request's envelope."""


assert ServerLimits.idle_ms > CLIENT_IDLE_MS, "the client lets go first"
