"""The server of signed HTTP: one POST route per kind of message, an envelope in, an envelope out.

It checks in this order, cheapest first: rate of the address, concurrency, size and deadline, signature, clock, rate of
the sender, replay, message. Then the handler runs; it alone knows what the message means.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from aiohttp import web

from prime_protocol.constants import PROBLEM_CHARS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.versions.upgrades import decode_form, encode_form
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import Envelope, Payload, ReplayGuard, check_time, open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.rpc import REFUSAL_SUFFIX, REPLY_SUFFIX, Endpoint, Refusal, RefusalCode, seal_reply
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.config import ListenConfig, ServerLimits
from prime_runtime.http.listener import FastPath, HttpListener
from prime_runtime.http.messages import (
    ENVELOPE_TYPE,
    HTTP_STATUS,
    REFUSAL_TYPE,
    EnvelopeResponse,
    RefusalError,
    explain_error,
    get_client_address,
    read_body,
    read_envelope_header,
    render_response,
)
from prime_runtime.http.upgrade import AdoptedHandler, TakeOver, UpgradedResponse
from prime_runtime.keys import SequenceCounter
from prime_runtime.metrics import RequestMetrics
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, TokenBuckets, address_group
from prime_runtime.redaction import escape

log = logging.getLogger(__name__)
Q = TypeVar("Q")
R = TypeVar("R")

RATE_KEYS_MAX = 100_000
"""Addresses or senders with a bucket of their own: about 20 MB."""
REPLAY_REFUSALS = {
    "Payload.sequence": (RefusalCode.REPLAYED, 0),
    "Payload.issued_at_ms": (RefusalCode.RESTARTED, 100),
    "Payload.sender": (RefusalCode.RATE_LIMITED, 10_000),
}
"""The field that the replay guard rejects, to the refusal code and the time to retry after."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and the frame that proves it."""

    payload: Payload
    frame: bytes
    digest: Digest
    address: str
    """The client's address as far as it can be known; not authenticated."""

    @property
    def sender(self) -> NodeId:
        return self.payload.sender

    @property
    def run(self) -> RunId | None:
        return self.payload.run


Handler = Callable[[Caller, Q], R | Awaitable[R]]
"""Returns the reply or an awaitable of it; only the awaitable has a deadline."""
BodyHandler = Callable[[Caller, Q, web.Request], Awaitable[R]]
"""Reads the body of the request itself, by `read_body_chunks`."""
UpgradeHandler = Callable[[Caller, Q], tuple[R, TakeOver]]
"""Returns the reply, and the protocol that takes the connection over."""
Response = web.StreamResponse | EnvelopeResponse
RouteHandler = Callable[[web.Request, str], Awaitable[Response | UpgradedResponse]]
"""Takes an admitted request and its address."""


class HttpServer:
    """Routes, limits and life cycle of a server. Add other routes (pages, metrics) to `app` before `start`."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        *,
        clock: Clock,
        limits: ServerLimits,
        metrics: RequestMetrics | None = None,
        sequence: SequenceCounter | None = None,
    ) -> None:
        self.app = web.Application()
        self._key = key
        self._network = network
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._sequence = sequence or SequenceCounter()
        self._guard = ReplayGuard(since_ms=clock.now_ms())
        self._gate = ConcurrencyLimit(total_max=limits.requests_max, key_max=limits.requests_per_address_max)
        self._transfers = ConcurrencyLimit(total_max=limits.transfers_max, key_max=limits.transfers_per_address_max)
        self._waits = ConcurrencyLimit(total_max=limits.waits_max, key_max=limits.waits_per_address_max)
        self._addresses = TokenBuckets(
            RateLimit(per_second=limits.address_rate, burst=limits.address_burst), keys_max=RATE_KEYS_MAX
        )
        self._senders = TokenBuckets(
            RateLimit(per_second=limits.sender_rate, burst=limits.sender_burst), keys_max=RATE_KEYS_MAX
        )
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._fast_path = FastPath(bytes_max=limits.body_bytes_max)
        self._kinds: dict[str, Callable[[web.Request], Awaitable[Any]]] = {}
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        if metrics:
            metrics.watch_open(lambda: self._inside)

    def add(
        self, endpoint: Endpoint[Q, R], handler: Handler[Q, R], *, waits: bool = False, is_fast: bool = False
    ) -> None:
        """Serve one kind of message. `waits`: the handler is a long poll, counted apart from other requests.

        `is_fast`: the message is frequent and mostly answered at once, so it takes the fast path of the listener.
        """
        if is_fast:
            self._fast_path.add(endpoint.path, partial(self._answer_now, endpoint, handler))
        limits = self._limits

        async def exchange(request: web.Request, address: str) -> Response:
            try:
                frame = await read_body(
                    request, bytes_max=limits.body_bytes_max, read_ms=limits.read_ms, clock=self._clock
                )
            except RefusalError as refuse:
                response = self._refuse_unsigned(refuse)
                response.force_close()
                return response
            return await self._respond(endpoint, handler, frame, address, limits.handle_ms)

        self._add_route("POST", endpoint.path, endpoint.kind, self._waits if waits else self._gate, exchange)

    def add_upload(self, path: str, endpoint: Endpoint[Q, R], handler: BodyHandler[Q, R], *, handle_ms: int) -> None:
        """Serve PUT of a file; the envelope that authenticates it is in a header."""

        async def exchange(request: web.Request, address: str) -> Response:
            async def handle(caller: Caller, message: Q) -> R:
                return await handler(caller, message, request)

            try:
                frame = read_envelope_header(request)
            except RefusalError as refuse:
                return self._refuse_unsigned(refuse)
            return await self._respond(endpoint, handle, frame, address, handle_ms)

        self._add_route("PUT", path, endpoint.kind, self._transfers, exchange)

    def add_upgrade(self, path: str, endpoint: Endpoint[Q, R], handler: UpgradeHandler[Q, R]) -> None:
        """Serve GET of a connection that another protocol takes over; the envelope in a header authenticates it."""

        async def exchange(request: web.Request, address: str) -> Response | UpgradedResponse:
            frame = b""
            try:
                frame = read_envelope_header(request)
                envelope = self._open(endpoint, frame)
                message = decode_form(endpoint.request, envelope.payload.version, envelope.payload.body)
                reply, take_over = handler(Caller(envelope.payload, frame, envelope.digest, address), message)
            except RemoteError as error:
                refuse = explain_error(error, endpoint.kind, self._limits.handle_ms)
                return self._refuse(endpoint, frame, refuse) if frame else self._refuse_unsigned(refuse)
            sealed = self._seal(endpoint.kind + REPLY_SUFFIX, encode(reply), envelope.digest)
            return UpgradedResponse(sealed, take_over)

        self._add_route("GET", path, endpoint.kind, self._transfers, exchange)

    def add_page(self, path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        """Serve GET of a public resource, within the limits on addresses and transfers."""

        async def exchange(request: web.Request, address: str) -> Response:
            return await handler(request)

        self._add_route("GET", path, "page", self._transfers, exchange)

    def _add_route(self, method: str, path: str, kind: str, gate: ConcurrencyLimit, exchange: RouteHandler) -> None:
        answer = partial(self._answer, kind, gate, exchange)
        self.app.router.add_route(method, path, answer)
        if method == "POST":
            self._kinds[path] = answer

    async def start(self, listen: ListenConfig) -> int:
        """Bind and serve; returns the port."""
        runner = await self._set_up()
        try:
            self._listener = HttpListener(runner, listen, self._fast_path, connections_max=self._limits.connections_max)
            await self._listener.start()
        except LocalError:
            await runner.cleanup()
            raise
        log.info("listening on %s", self._listener.name, extra={"port": self._listener.port})
        return self._listener.port

    async def start_without_port(self) -> None:
        """Serve only the connections that `adopt` brings."""
        await self._set_up()

    def make_handler(self) -> AdoptedHandler:
        """Serves a connection that this program opened."""
        assert self._runner is not None, "a connection came before the start"
        server = self._runner.server
        assert server is not None, "the runner is set up"
        return AdoptedHandler(server, loop=asyncio.get_running_loop(), **server._kwargs)

    def adopt(self, transport: asyncio.Transport, first: bytes = b"") -> AdoptedHandler:
        """Serve requests on a connection that another protocol had. `first`: bytes that arrived already."""
        handler = self.make_handler()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if first:
            handler.data_received(first)
        return handler

    async def _set_up(self) -> web.AppRunner:
        self._runner = web.AppRunner(
            self.app,
            handle_signals=False,
            access_log=None,
            auto_decompress=False,  # a small body must not expand to a large one
            keepalive_timeout=self._limits.idle_ms / 1000,
            lingering_time=1.0,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        self._take_shortcut(self._runner)
        return self._runner

    def _take_shortcut(self, runner: web.AppRunner) -> None:
        """Look kinds up in a table instead of the router, which costs a tenth of a heartbeat. Pages use the router."""
        server = runner.server
        assert server is not None, "the runner is set up"
        general, kinds = server.request_handler, self._kinds

        async def dispatch(request: Any) -> Any:
            answer = kinds.get(request.raw_path) if request.method == "POST" else None
            if answer is None or "Expect" in request.headers:
                return await general(request)
            return await answer(request)

        server.request_handler = dispatch

    async def stop(self) -> None:
        """Refuse new requests, let open ones end, then close. A second call does nothing."""
        if self._is_draining:
            return
        self._is_draining = True
        assert self._runner is not None, "stopped before it started"
        if self._listener is not None:
            await self._listener.stop()
        try:
            async with asyncio.timeout(self._limits.drain_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            log.warning("stopping with %d requests still open", self._inside)
        await self._runner.cleanup()

    async def _answer(self, kind: str, gate: ConcurrencyLimit, exchange: RouteHandler, request: web.Request) -> Any:
        started_ms = self._clock.monotonic_ms()
        address = get_client_address(request, self._limits.trusted_proxies)
        origin = address_group(address)
        response: Response | UpgradedResponse
        try:
            self._admit(gate, origin, started_ms)
        except RefusalError as refuse:
            response = self._refuse_unsigned(refuse)
        else:
            try:
                response = await exchange(request, address)
            finally:
                self._leave(gate, origin)
        self._observe(kind, response, started_ms)
        return response

    def _answer_now(
        self, endpoint: Endpoint[Q, R], handler: Handler[Q, R], address: str, frame: bytes
    ) -> bytes | Awaitable[bytes]:
        """Like `_answer`, for a request on the fast path."""
        started_ms, origin = self._clock.monotonic_ms(), address_group(address)
        response: Response | Awaitable[Response]
        try:
            self._admit(self._gate, origin, started_ms)
        except RefusalError as refuse:
            response = self._refuse_unsigned(refuse)
        else:
            response = self._respond_now(endpoint, handler, frame, address, self._limits.handle_ms)
            if not isinstance(response, web.StreamResponse | EnvelopeResponse):
                return self._answer_later(endpoint.kind, origin, started_ms, response)
            self._leave(self._gate, origin)
        self._observe(endpoint.kind, response, started_ms)
        return render_response(response)

    async def _answer_later(self, kind: str, origin: str, started_ms: int, later: Awaitable[Response]) -> bytes:
        try:
            response = await later
        finally:
            self._leave(self._gate, origin)
        self._observe(kind, response, started_ms)
        return render_response(response)

    def _observe(self, kind: str, response: Response | UpgradedResponse, started_ms: int) -> None:
        if self._metrics:
            self._metrics.observe(kind, response.status, self._clock.monotonic_ms() - started_ms)

    def _admit(self, gate: ConcurrencyLimit, origin: str, now_ms: int) -> None:
        if self._is_draining:
            raise RefusalError(RefusalCode.OVERLOADED, "", "this server is stopping", retry_after_ms=1000)
        if wait_ms := self._addresses.take(origin, now_ms):
            problem = "too many requests from your address"
            raise RefusalError(RefusalCode.RATE_LIMITED, "", problem, retry_after_ms=wait_ms)
        if not gate.enter(origin):
            raise RefusalError(RefusalCode.OVERLOADED, "", "too many concurrent requests", retry_after_ms=1000)
        self._idle.clear()

    def _leave(self, gate: ConcurrencyLimit, origin: str) -> None:
        gate.leave(origin)
        if not gate and not self._inside:
            self._idle.set()

    @property
    def _inside(self) -> int:
        return len(self._gate) + len(self._transfers) + len(self._waits)

    async def _respond(
        self, endpoint: Endpoint[Q, R], handler: Handler[Q, R], frame: bytes, address: str, handle_ms: int
    ) -> Response:
        response = self._respond_now(endpoint, handler, frame, address, handle_ms)
        return response if isinstance(response, web.StreamResponse | EnvelopeResponse) else await response

    def _respond_now(
        self, endpoint: Endpoint[Q, R], handler: Handler[Q, R], frame: bytes, address: str, handle_ms: int
    ) -> Response | Awaitable[Response]:
        try:
            envelope = self._open(endpoint, frame)
            message = decode_form(endpoint.request, envelope.payload.version, envelope.payload.body)
            reply: Any = handler(Caller(envelope.payload, frame, envelope.digest, address), message)
            if not isinstance(reply, endpoint.reply):
                return self._respond_later(endpoint, frame, envelope, reply, handle_ms)
            return self._reply(endpoint, envelope, reply)
        except Exception as error:  # boundary: a bug in one handler must not stop the server or show its internals
            return self._refuse(endpoint, frame, explain_error(error, endpoint.kind, handle_ms))

    async def _respond_later(
        self, endpoint: Endpoint[Q, R], frame: bytes, envelope: Envelope, later: Awaitable[R], handle_ms: int
    ) -> Response:
        try:
            async with asyncio.timeout(handle_ms / 1000):
                reply = await later
            return self._reply(endpoint, envelope, reply)
        except Exception as error:  # boundary: as above
            return self._refuse(endpoint, frame, explain_error(error, endpoint.kind, handle_ms))

    def _reply(self, endpoint: Endpoint[Q, R], envelope: Envelope, reply: R) -> EnvelopeResponse:
        assert isinstance(reply, endpoint.reply), f"{endpoint.kind} answers {endpoint.reply.__name__}"
        # In the form that the caller knows, which may be an older program.
        body = encode_form(reply, envelope.payload.version)
        return EnvelopeResponse(self._seal(endpoint.kind + REPLY_SUFFIX, body, envelope.digest))

    def _open(self, endpoint: Endpoint[Any, Any], frame: bytes) -> Envelope:
        """Decode an envelope and check that it is authentic, for this route, in time, and not a replay."""
        now_ms = self._clock.now_ms()
        try:
            envelope = open_envelope(frame, network=self._network)
        except RemoteError as error:
            is_foreign = error.field in ("signature", "Payload.sender", "Payload.network")
            code = RefusalCode.UNAUTHENTIC if is_foreign else RefusalCode.MALFORMED
            raise RefusalError(code, error.field, error.problem) from None
        payload = envelope.payload
        if payload.kind != endpoint.kind:
            raise RefusalError(RefusalCode.MALFORMED, "Payload.kind", f"is {payload.kind}, this is {endpoint.path}")
        try:
            check_time(payload, now_ms)
        except RemoteError as error:
            raise RefusalError(RefusalCode.CLOCK, error.field, error.problem) from None
        if wait_ms := self._senders.take(payload.sender, self._clock.monotonic_ms()):
            raise RefusalError(RefusalCode.RATE_LIMITED, "", "too many requests from your key", retry_after_ms=wait_ms)
        self._remember(envelope, now_ms)
        return envelope

    def _remember(self, envelope: Envelope, now_ms: int) -> None:
        try:
            self._guard.admit(envelope.payload, now_ms)
        except RemoteError as error:
            code, retry_after_ms = REPLAY_REFUSALS[error.field]
            raise RefusalError(code, error.field, error.problem, retry_after_ms=retry_after_ms) from None

    def _refuse(self, endpoint: Endpoint[Any, Any], frame: bytes, refuse: RefusalError) -> web.Response:
        """Refuse a request that was read completely: signed, and bound to the request."""
        body, request = encode(self._refusal(refuse)), Digest(sha256(frame).digest())
        frame = self._seal(endpoint.kind + REFUSAL_SUFFIX, body, request)
        response = web.Response(status=HTTP_STATUS[refuse.code], body=frame, content_type=ENVELOPE_TYPE)
        _set_retry_after(response, refuse)
        return response

    def _refuse_unsigned(self, refuse: RefusalError) -> web.Response:
        """Refuse before the request was read: there is nothing to bind a signature to, and it must be cheap."""
        body = encode(self._refusal(refuse))
        response = web.Response(status=HTTP_STATUS[refuse.code], body=body, content_type=REFUSAL_TYPE)
        _set_retry_after(response, refuse)
        return response

    def _refusal(self, refuse: RefusalError) -> Refusal:
        return Refusal(
            code=refuse.code,
            field=escape(refuse.field)[:PROBLEM_CHARS_MAX],
            problem=escape(refuse.problem)[:PROBLEM_CHARS_MAX] or refuse.code,
            retry_after_ms=refuse.retry_after_ms,
            now_ms=self._clock.now_ms(),
        )

    def _seal(self, kind: str, body: bytes, request: Digest) -> bytes:
        now_ms = self._clock.now_ms()
        return seal_reply(
            self._key,
            kind=kind,
            body=body,
            request=request,
            network=self._network,
            run=None,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
        )


def _set_retry_after(response: web.Response, refuse: RefusalError) -> None:
    if refuse.retry_after_ms:
        response.headers["Retry-After"] = str(-(-refuse.retry_after_ms // 1000))
