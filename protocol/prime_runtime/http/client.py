"""The client of signed HTTP: one call gives one reply signed by the expected server, or an error that says what to do.

Each attempt gets a new envelope. The client repeats a request only if the server cannot have carried it out, or if the
endpoint is idempotent. A reply that breaks the protocol is a RemoteError.
"""

import base64
import errno
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
from yarl import URL

from prime_protocol.constants import KEY_FILE_BYTES_MAX, PROTOCOL_VERSION
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.versions.upgrades import decode_form, encode_form
from prime_protocol.log.tiles import KEYS_PATH
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.rpc import (
    REFUSAL_SUFFIX,
    REPLY_SUFFIX,
    Endpoint,
    Refusal,
    RefusalCode,
    UnexpectedServer,
    open_versioned_reply,
)
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.formatting import format_time
from prime_runtime.http.config import CLIENT_IDLE_MS, ClientLimits, ServerAddress
from prime_runtime.http.messages import ENVELOPE_HEADER, ENVELOPE_TYPE, EXPIRED_HEADER, REFUSAL_TYPE, parse_expiry
from prime_runtime.http.server_keys import ServerKeys
from prime_runtime.keys import SequenceCounter
from prime_runtime.objects.store import make_checksum_header

Q = TypeVar("Q")
R = TypeVar("R")

RETRY_ALWAYS = frozenset({RefusalCode.RATE_LIMITED, RefusalCode.OVERLOADED, RefusalCode.RESTARTED, RefusalCode.SLOW})
"""The server says that it did not start, so any request can be sent again."""
RETRY_IF_IDEMPOTENT = frozenset({RefusalCode.TIMED_OUT, RefusalCode.REPLAYED})
"""The server may have carried the request out. REPLAYED is among them: each attempt has a new sequence number, so a
number that was used before belongs to another process with our key."""
UNSIGNED_CODES = frozenset(
    {RefusalCode.RATE_LIMITED, RefusalCode.OVERLOADED, RefusalCode.SLOW, RefusalCode.TOO_LARGE, RefusalCode.MALFORMED}
)
"""Codes that a server may send before it has read a request; all others must be signed."""


class Unreachable(LocalError):
    """No answer arrived. The server may be down, or this machine offline."""


class CallRefused(LocalError):
    """The server refused the request and said why."""

    def __init__(self, text: str, refusal: Refusal) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The error of one attempt, whether to repeat the request, and the wait that the server asks for."""

    error: LocalError | RemoteError
    is_retryable: bool
    """The request was not carried out, or it is idempotent and the error may be temporary."""
    retry_after_ms: int = 0


def explain_refusal(url: str, refusal: Refusal, *, now_ms: int, is_idempotent: bool) -> FailedAttempt:
    """Turn a refusal into an error. For a wrong clock the text says by how much."""
    what = f"{refusal.field}: {refusal.problem}" if refusal.field else refusal.problem
    text = f"{url} refused the request ({refusal.code}): {what}"
    if refusal.code in (RefusalCode.CLOCK, RefusalCode.RESTARTED):
        text += f"; {describe_skew(now_ms - refusal.now_ms)}"
    is_repeatable = refusal.code in RETRY_ALWAYS or (is_idempotent and refusal.code in RETRY_IF_IDEMPOTENT)
    return FailedAttempt(CallRefused(text, refusal), is_repeatable, refusal.retry_after_ms)


def describe_skew(skew_ms: int) -> str:
    direction = "ahead of" if skew_ms > 0 else "behind"
    return f"the clock of this machine is {abs(skew_ms) / 1000:.1f} s {direction} the server's; check NTP"


def explain_transport_error(url: str, error: Exception, *, is_idempotent: bool) -> FailedAttempt:
    """Turn an error of the connection into ours. Before the connection is open the server cannot have done anything."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return FailedAttempt(Unreachable(f"cannot reach {url}: its TLS certificate is invalid: {error}"), False)
        case aiohttp.ClientConnectorError():
            return FailedAttempt(Unreachable(f"cannot reach {url}: {_connect_problem(error.os_error)}"), True)
        case aiohttp.ConnectionTimeoutError():
            return FailedAttempt(
                Unreachable(f"cannot reach {url}: the connection timed out; is there a firewall?"), True
            )
        case TimeoutError():
            return FailedAttempt(
                Unreachable(f"{url} did not answer in time; it may have carried out the request"), is_idempotent
            )
        case _:
            problem = f"{url} closed the connection ({type(error).__name__}); it may have carried out the request"
            return FailedAttempt(Unreachable(problem), is_idempotent)


def _connect_problem(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "connection refused; is the coordinator running?"
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved; is the address right, and this machine online?"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "no route to it; is this machine online?"
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class SignedReply(Generic[R]):
    """A reply and both frames: together they prove what the server answered to this request."""

    message: R
    request: bytes
    reply: bytes


@dataclass(frozen=True, slots=True)
class UploadBody:
    """A PUT body that is a file, and the path it is sent to."""

    path: str
    data: bytes


class HttpClient:
    """Calls servers with one key and one session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        key: WalletKey,
        network: NetworkId,
        clock: Clock,
        rng: random.Random,
        limits: ClientLimits,
        sequence: SequenceCounter | None = None,
    ) -> None:
        self._session = session
        self._key = key
        self._network = network
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._sequence = sequence or SequenceCounter.shared()
        self.server_keys = ServerKeys(network, clock)

    async def call(
        self,
        server: ServerAddress,
        endpoint: Endpoint[Q, R],
        message: Q,
        *,
        run: RunId | None = None,
        deadline_ms: int | None = None,
        file: UploadBody | None = None,
        version: int = PROTOCOL_VERSION,
    ) -> SignedReply[R]:
        """The reply; else CallRefused, Unreachable, or RemoteError if the reply breaks the protocol.

        With a file the body is the file, and the envelope travels in a header. `version` is for an entry whose form
        depends on the log's rules: see `choose_version` in ledger/versions/upgrades.py.
        """
        limits = self._limits
        end_ms = self._clock.monotonic_ms() + (deadline_ms or limits.deadline_ms)
        body = encode_form(message, version)
        for attempt in range(1, limits.attempts_max + 1):
            left_ms = end_ms - self._clock.monotonic_ms()
            try:
                outcome = await self._attempt(server, endpoint, body, run, left_ms, file, version)
            except UnexpectedServer as error:
                if not await self._follow_keys(server, error.signer):
                    raise
                problem = f"the key of {server.url} was rotated; it may have carried out the request"
                outcome = FailedAttempt(Unreachable(problem), endpoint.is_idempotent)
            if isinstance(outcome, SignedReply):
                return outcome
            wait_ms = self._compute_wait_ms(outcome, attempt)
            is_last = attempt == limits.attempts_max or self._clock.monotonic_ms() + wait_ms >= end_ms
            if is_last or not outcome.is_retryable or outcome.retry_after_ms > limits.retry_after_ms_max:
                raise outcome.error
            await self._clock.sleep_ms(wait_ms)
        raise AssertionError("the last attempt returns or raises")

    def _compute_wait_ms(self, failure: FailedAttempt, attempt: int) -> int:
        """Exponential backoff with full jitter, so that clients that failed together do not retry together."""
        span_ms = min(self._limits.backoff_ms_max, self._limits.backoff_ms * 2 ** (attempt - 1))
        return failure.retry_after_ms + int(self._rng.uniform(0, span_ms))

    async def _attempt(
        self,
        server: ServerAddress,
        endpoint: Endpoint[Q, R],
        body: bytes,
        run: RunId | None,
        left_ms: int,
        file: UploadBody | None,
        version: int,
    ) -> SignedReply[R] | FailedAttempt:
        frame = self._seal(endpoint, body, run, version)
        if file is None:
            method, path, data, headers = "POST", endpoint.path, frame, {"Content-Type": ENVELOPE_TYPE}
        else:
            method, path, data = "PUT", file.path, file.data
            headers = {ENVELOPE_HEADER: base64.b64encode(frame).decode()}
        url = server.url.rstrip("/") + path
        timeout = aiohttp.ClientTimeout(total=max(1, left_ms) / 1000, connect=self._limits.connect_ms / 1000)
        try:
            async with self._session.request(
                method, url, data=data, timeout=timeout, allow_redirects=False, headers=headers
            ) as response:
                raw = await read_response(response, "reply", self._limits.reply_bytes_max)
                status, content_type = response.status, response.content_type
        except (aiohttp.ClientError, OSError) as error:
            return explain_transport_error(server.url, error, is_idempotent=endpoint.is_idempotent)
        return self._parse_reply(server, endpoint, frame, version, status, content_type, raw)

    def _seal(self, endpoint: Endpoint[Any, Any], body: bytes, run: RunId | None, version: int) -> bytes:
        now_ms = self._clock.now_ms()
        return seal_envelope(
            self._key,
            kind=endpoint.kind,
            body=body,
            network=self._network,
            run=run,
            sequence=self._sequence.next(now_ms),
            issued_at_ms=now_ms,
            life_ms=self._limits.life_ms,
            version=version,
        )

    def _parse_reply(
        self,
        server: ServerAddress,
        endpoint: Endpoint[Q, R],
        frame: bytes,
        version: int,
        status: int,
        content_type: str,
        raw: bytes,
    ) -> SignedReply[R] | FailedAttempt:
        """Decide by content type. The HTTP status is not signed, so it decides nothing that a signature covers."""
        if content_type == ENVELOPE_TYPE and status == 200:
            written, body = self._open(server, endpoint.kind + REPLY_SUFFIX, frame, raw)
            return SignedReply(decode_form(endpoint.reply, min(version, written), body), frame, raw)
        if content_type == ENVELOPE_TYPE:
            refusal = decode(Refusal, self._open(server, endpoint.kind + REFUSAL_SUFFIX, frame, raw)[1])
        elif content_type == REFUSAL_TYPE:
            refusal = decode(Refusal, raw)
            if refusal.code not in UNSIGNED_CODES:
                raise RemoteError("Refusal.code", f"{refusal.code} needs a signature")
        else:
            return _explain_foreign_reply(server.url, status, is_idempotent=endpoint.is_idempotent)
        return explain_refusal(server.url, refusal, now_ms=self._clock.now_ms(), is_idempotent=endpoint.is_idempotent)

    def _open(self, server: ServerAddress, kind: str, frame: bytes, raw: bytes) -> tuple[int, bytes]:
        """The version that the server wrote with, and the body of its reply."""
        request = Digest(sha256(frame).digest())
        key = self.server_keys.get_key(server.node)
        return open_versioned_reply(raw, kind=kind, request=request, server=key, network=self._network)

    async def _follow_keys(self, server: ServerAddress, signer: NodeId) -> bool:
        return await self.server_keys.follow(
            server.node, signer, lambda: self.get(server, f"/log/{KEYS_PATH}", bytes_max=KEY_FILE_BYTES_MAX)
        )

    async def get(
        self,
        server: ServerAddress,
        path: str,
        *,
        bytes_max: int,
        deadline_ms: int | None = None,
        redirects_max: int = 0,
    ) -> bytes | None:
        """A public resource, or None if it does not exist. It is not signed; the caller verifies the content.

        A coordinator redirects requests for files to its bucket, hence `redirects_max`.
        """
        timeout, url = self._timeout(deadline_ms), server.url.rstrip("/") + path
        try:
            async with self._session.get(
                url, timeout=timeout, allow_redirects=redirects_max > 0, max_redirects=redirects_max + 1
            ) as response:
                raw, status = await read_response(response, path, bytes_max), response.status
                expired = response.headers.get(EXPIRED_HEADER, "")
        except (aiohttp.ClientError, OSError) as error:
            raise explain_transport_error(server.url, error, is_idempotent=True).error from None
        if status == 404:
            return None
        if status == 410:
            raise FileExpired(f"{server.url} no longer keeps {path}: {explain_expiry(expired)}")
        if status != 200:
            raise Unreachable(f"{server.url} answers HTTP {status} to {path}")
        return raw

    def _timeout(self, deadline_ms: int | None) -> aiohttp.ClientTimeout:
        total_ms = deadline_ms or self._limits.deadline_ms
        return aiohttp.ClientTimeout(total=total_ms / 1000, connect=self._limits.connect_ms / 1000)

    async def put_presigned(self, url: str, data: bytes, digest: Digest, deadline_ms: int | None = None) -> None:
        """Upload by a presigned URL, whose signature covers the digest. LocalError: the bucket refuses the file."""
        target, timeout, headers = URL(url, encoded=True), self._timeout(deadline_ms), make_checksum_header(digest)
        try:
            async with self._session.put(
                target, data=data, timeout=timeout, headers=headers, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            raise explain_transport_error(target.host or "the bucket", error, is_idempotent=True).error from None
        if status not in (200, 201, 204):
            raise LocalError(f"the bucket at {target.host} refused the file: HTTP {status}")


class FileExpired(LocalError):
    """The coordinator has deleted a file, because the time is over that the run's terms demand."""


def explain_expiry(header: str) -> str:
    """From the header EXPIRED_HEADER, which a server may have made up."""
    at_ms = parse_expiry(header)
    when = f" on {format_time(at_ms)} UTC" if at_ms is not None else ""
    return f"it expired{when}, as the run's terms allow"


async def read_response(response: aiohttp.ClientResponse, name: str, bytes_max: int) -> bytes:
    """The body of a response. RemoteError: it is longer than `bytes_max`."""
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > bytes_max:
            raise RemoteError(name, f"is longer than {bytes_max} bytes")
    return bytes(raw)


def _explain_foreign_reply(url: str, status: int, *, is_idempotent: bool) -> FailedAttempt:
    """An answer outside our protocol: from a proxy, or from another program."""
    if status in (429, 503):
        return FailedAttempt(Unreachable(f"{url} is temporarily unavailable (HTTP {status} from a proxy)"), True)
    if status in (502, 504):
        return FailedAttempt(Unreachable(f"the proxy in front of {url} cannot reach it (HTTP {status})"), is_idempotent)
    raise RemoteError("reply", f"of {url} is HTTP {status} without an envelope; is the address right?")


def open_session(**options: Any) -> aiohttp.ClientSession:
    """A session without cookies, proxies from the environment or decompression: it reads exactly what was sent."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False, **options)


@asynccontextmanager
async def open_client(
    *,
    key: WalletKey,
    network: NetworkId,
    clock: Clock,
    limits: ClientLimits,
    authority: Path | None = None,
) -> AsyncIterator[HttpClient]:
    """A client with its own session, closed at the end. `authority` is the PEM file of a private TLS authority."""
    connector = aiohttp.TCPConnector(
        limit=100,
        limit_per_host=32,
        keepalive_timeout=CLIENT_IDLE_MS / 1000,
        ssl=load_tls_authority(authority) if authority else True,
    )
    async with open_session(connector=connector) as session:
        yield HttpClient(session, key=key, network=network, clock=clock, rng=random.Random(), limits=limits)


def load_tls_authority(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise LocalError(f"cannot use the TLS authority {authority}: {error}") from None
