"""Asks servers to connect to this node, and notices whether they do. What follows is decided in reachability.py."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from random import Random

from aiohttp import web

from prime_node.reverse.reachability import Reachability, ReachabilityVotes
from prime_node.weights.connection import choose_address
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.dial_back import DIAL_BACK, REACHED_PATH, SECRET_BYTES, DialBack
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.dial_back import is_global
from prime_runtime.http.messages import get_client_address
from prime_runtime.http.server import HttpServer
from prime_runtime.rate_limits import network_group

log = logging.getLogger(__name__)

UPDATE_MS = 1_000
CALL_MS = 15_000
SECRETS_MAX = 16


class DialBackClient:
    """The question, again and again."""

    def __init__(
        self,
        client: HttpClient,
        http: HttpServer,
        coordinator: ServerAddress,
        *,
        clock: Clock,
        rng: Random,
        allow_private: bool,
        trusted_proxies: tuple[str, ...],
        list_servers: Callable[[], Mapping[NodeId, tuple[str, ...]]],
        get_url: Callable[[], str],
    ) -> None:
        """`get_url`: where others should reach this node; empty: nowhere, so nothing is asked."""
        self._client = client
        self._coordinator = coordinator
        self._clock = clock
        self._allow_private = allow_private
        self._trusted_proxies = trusted_proxies
        self._list_servers = list_servers
        self._get_url = get_url
        self._votes = ReachabilityVotes(rng)
        self._secrets: OrderedDict[Digest, bytes] = OrderedDict()
        self._arrived: dict[Digest, bool] = {}
        """Proofs for which a request came, and whether one came from outside."""
        self.state = Reachability.UNKNOWN
        http.add_page(REACHED_PATH + "/{digest}", self.answer)

    @property
    def problem(self) -> str:
        return self._votes.problem

    @property
    def false_claims(self) -> int:
        return self._votes.false_claims

    async def run(self) -> None:
        while True:
            if self._get_url():
                await self.update()
            await self._clock.sleep_ms(UPDATE_MS)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The secret of a proof, for the server that was asked."""
        try:
            proof = Digest.parse(request.match_info["digest"])
        except RemoteError:
            return web.Response(status=404)
        secret = self._secrets.get(proof)
        if secret is None:
            return web.Response(status=404)
        address = get_client_address(request, self._trusted_proxies)
        # A request from the own network proves nothing about the router, but its sender does not lie.
        self._arrived[proof] = self._arrived.get(proof, False) or self._allow_private or is_global(address)
        return web.Response(body=secret, content_type="application/octet-stream")

    async def update(self) -> None:
        """Ask one server, if it is time."""
        servers = {**self._list_servers(), self._coordinator.node: (self._coordinator.url,)}
        now_ms = self._clock.monotonic_ms()
        chosen = self._votes.choose(servers.keys(), now_ms)
        if chosen is not None:
            await self._ask(chosen, servers[chosen])
        state = self._votes.judge(servers.keys(), self._clock.monotonic_ms())
        if state is not self.state:
            log.info(
                "others can connect to %s: %s%s", self._get_url(), state, f" ({self.problem})" * bool(self.problem)
            )
        self.state = state

    async def _ask(self, node: NodeId, urls: tuple[str, ...]) -> None:
        secret = secrets.token_bytes(SECRET_BYTES)
        proof = Digest(sha256(secret).digest())
        self._secrets[proof] = secret
        while len(self._secrets) > SECRETS_MAX:
            self._arrived.pop(self._secrets.popitem(last=False)[0], None)
        try:
            server, group = await self._find_server(node, urls)
            question = DialBack(url=self._get_url(), proof=proof)
            reply = (await self._client.call(server, DIAL_BACK, question, deadline_ms=CALL_MS)).message
        except (LocalError, RemoteError, OSError) as error:
            log.debug("%s was not asked whether it can connect: %s", node, error)
            return
        has_arrived = self._arrived.get(proof, False)
        if proof in self._arrived and not has_arrived:
            log.debug("%s connected from a private address, which says nothing about the port", node)
            return
        self._votes.add(
            node,
            group,
            claims=reply.is_reached,
            has_arrived=has_arrived,
            problem=reply.problem,
            now_ms=self._clock.monotonic_ms(),
        )

    async def _find_server(self, node: NodeId, urls: tuple[str, ...]) -> tuple[ServerAddress, str]:
        """A peer's address is resolved here, so that its name cannot lead into our own network."""
        if node == self._coordinator.node:
            return self._coordinator, "coordinator"
        problem: Exception = RemoteError("urls", "has no plain HTTP")
        for url in (each for each in map(ServerUrl.parse, urls) if each.scheme == "http"):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=1)
                address = choose_address([str(each[4][0]) for each in found], allow_private=self._allow_private)
            except (OSError, RemoteError) as error:
                problem = error
                continue
            plain = ServerUrl(scheme="http", host=address, port=url.port)
            return ServerAddress(str(plain), node), network_group(address)
        raise problem
