"""Binding a server to an address: TLS, a bound on connections, the port that was given, errors in plain words."""

import asyncio
import errno
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from aiohttp import web

from prime_protocol.errors import LocalError
from prime_runtime.http_express import ExpressHandler, ExpressLane
from prime_runtime.settings_schema import Between, ConfigError


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """The section [listen] of a program that serves HTTP."""

    host: str = "127.0.0.1"
    """Address to bind. The default is reached from this machine only."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port to bind; 0 takes a free one."""
    tls_certificate: Path | None = None
    """PEM file with the certificate chain; with tls_key it turns TLS on."""
    tls_key: Path | None = None
    """PEM file with the certificate's private key."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key go together; one of them is missing")


class Listener(web.BaseSite):
    """A listening socket that takes at most so many connections at once and drops the rest at once."""

    def __init__(self, runner: web.AppRunner, config: ListenConfig, lane: ExpressLane, *, connections_max: int) -> None:
        super().__init__(runner, ssl_context=_tls_context(config))
        self._config = config
        self._lane = lane
        self._connections_max = connections_max

    @property
    def name(self) -> str:
        port = self.port if self._server else self._config.port
        return f"{'https' if self._ssl_context else 'http'}://{self._config.host}:{port}"

    @property
    def port(self) -> int:
        """The port that was bound, also when any was asked for."""
        server = cast(asyncio.Server, self._server)
        return int(server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None, "the runner is set up before its listener"

        loop = asyncio.get_running_loop()

        def accept() -> asyncio.BaseProtocol:
            if len(server.connections) >= self._connections_max:
                return _Full()
            return ExpressHandler(server, self._lane, loop=loop, **server._kwargs)

        try:
            self._server = await loop.create_server(
                accept, self._config.host, self._config.port, ssl=self._ssl_context, backlog=self._backlog
            )
        except OSError as error:
            raise LocalError(f"cannot listen on {self.name}: {_advice(error)}") from None


class _Full(asyncio.Protocol):
    """Hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


def _tls_context(config: ListenConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise LocalError(
            f"cannot use the TLS certificate {config.tls_certificate} with the key {config.tls_key}: {error}"
        ) from None
    return context


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is taken; is another copy running? Choose another port"
    if error.errno == errno.EACCES:
        return "this user may not bind that port; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return str(error.strerror or error)
