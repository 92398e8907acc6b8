"""Why a call did not work, in words that say what to do. Faults of the answer itself are RemoteError."""

import errno
import socket
from dataclasses import dataclass

import aiohttp

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.exchange import Refusal, RefusalCode

NEVER_DONE = frozenset({RefusalCode.RATE_LIMITED, RefusalCode.OVERLOADED, RefusalCode.RESTARTED, RefusalCode.SLOW})
"""The server says that it did not begin, so the request can be sent again, whatever it asks for."""
PERHAPS_DONE = frozenset({RefusalCode.TIMED_OUT, RefusalCode.REPLAYED})
"""Every attempt is sealed anew, so a number that was used before is one of another process with our key."""
UNSIGNED = frozenset(
    {RefusalCode.RATE_LIMITED, RefusalCode.OVERLOADED, RefusalCode.SLOW, RefusalCode.TOO_LARGE, RefusalCode.MALFORMED}
)
"""Codes a server may use before it has read a request; all others must be signed."""


class Unreachable(LocalError):
    """No answer came. The server may be down, or this machine offline."""


class Refused(LocalError):
    """The server answered that it will not do it, and why."""

    def __init__(self, text: str, refusal: Refusal) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed: the error, whether the request may still have been done, and the wait asked for."""

    error: LocalError | RemoteError
    is_repeatable: bool
    """Sending it again cannot hurt, or the endpoint says that doing it twice is fine and this may pass."""
    retry_after_ms: int = 0


def explain_refusal(url: str, refusal: Refusal, *, now_ms: int, is_idempotent: bool) -> Failure:
    """A refusal as an error; a wrong clock is named with its size."""
    what = f"{refusal.field}: {refusal.problem}" if refusal.field else refusal.problem
    text = f"{url} refused it ({refusal.code}): {what}"
    if refusal.code in (RefusalCode.CLOCK, RefusalCode.RESTARTED):
        text += f"; {describe_skew(now_ms - refusal.now_ms)}"
    is_repeatable = refusal.code in NEVER_DONE or (is_idempotent and refusal.code in PERHAPS_DONE)
    return Failure(Refused(text, refusal), is_repeatable, refusal.retry_after_ms)


def describe_skew(skew_ms: int) -> str:
    direction = "ahead of" if skew_ms > 0 else "behind"
    return (
        f"this machine's clock is {abs(skew_ms) / 1000:.1f} s {direction} the server's; set it by NTP if that is much"
    )


def explain_transport(url: str, error: Exception, *, is_idempotent: bool) -> Failure:
    """A fault of the connection as an error. Before the connection stands, nothing can have been done."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return Failure(Unreachable(f"cannot reach {url}: its TLS certificate is not good: {error}"), False)
        case aiohttp.ClientConnectorError():
            return Failure(Unreachable(f"cannot reach {url}: {_connect_problem(error.os_error)}"), True)
        case aiohttp.ConnectionTimeoutError():
            return Failure(Unreachable(f"cannot reach {url}: no connection in time; is a firewall between?"), True)
        case TimeoutError():
            return Failure(Unreachable(f"{url} did not answer in time; it may have done what was asked"), is_idempotent)
        case _:
            problem = f"{url} broke off before it answered ({type(error).__name__}); it may have done what was asked"
            return Failure(Unreachable(problem), is_idempotent)


def _connect_problem(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "connection refused; is the coordinator running?"
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved; is the address right, and this machine online?"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "no route to it; is this machine online?"
    return error.strerror or str(error)
