"""The routes of a shard server: shards by digest, bitmaps of what is here, signed manifests. Anybody may ask.

GET /shards/<digest>      the shard, or a range of it; waits for one that is still arriving
GET /have/<manifest>      which shards are here; waits for news since ?seen=<version>
GET /manifests/<digest>   the signed frame

Nothing else can be reached: a path is a digest that the store knows, or 404. What is asked for is checked, counted and
timed here; who is served is decided in slots.py.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from prime_protocol.codec import encode
from prime_protocol.constants import CHILD_RECORD_BYTES_MAX, CHILDREN_TOLD_MAX, GOSSIP_MANIFESTS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.shard_messages import Child, Full, Have
from prime_runtime.clock import Clock
from prime_runtime.http_body import get_address
from prime_runtime.http_server import HttpServer
from prime_runtime.shardcast.directory import Directory
from prime_runtime.shardcast.sending import ShardResponse
from prime_runtime.shardcast.slots import Full as Refusal
from prime_runtime.shardcast.slots import Ticket, UploadSlots
from prime_runtime.shardcast.stock import Stock
from prime_runtime.shardcast.store import ShardStore

log = logging.getLogger(__name__)

NODE_HEADER = "Prime-Node"
"""Who asks. A claim: it decides only whom other children are sent to, and those check every byte."""
WAIT_HEADER = "Prime-Wait-Ms"
WAIT_MS_MAX = 30_000
"""Longest wait for a shard that is arriving, or for news. Shorter than a fetcher waits for its first byte."""
SPACING_MS = 20
"""Changes within this time are told together."""
FOREVER = "public, max-age=31536000, immutable"
RANGE = re.compile(r"bytes=([0-9]{1,12})-([0-9]{0,12})")
WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Offer:
    """What this server's record says of it."""

    depth: int
    slots_free: int
    manifests: tuple[Digest, ...]
    parents: tuple[NodeId, ...]
    """Of the newest."""


class ShardServer:
    """Serves one store. The directory tells where children can be found."""

    def __init__(
        self,
        store: ShardStore,
        slots: UploadSlots,
        *,
        clock: Clock,
        trusted_proxies: tuple[str, ...] = (),
        directory: Directory | None = None,
    ) -> None:
        self.store = store
        self.slots = slots
        self._clock = clock
        self._trusted_proxies = trusted_proxies
        self._directory = directory
        self.sent_bytes = 0
        self.sent_shards = 0
        self.refused = 0
        self._sending: dict[int, ShardResponse] = {}
        """By the ticket's number."""
        self._is_closed = False

    def close(self) -> None:
        """Answer everybody who waits, so that the server can stop at once."""
        self._is_closed = True
        for stock in self.store.stocks.values():
            stock.wake()

    def add_routes(self, http: HttpServer) -> None:
        http.add_page("/shards/{digest}", self.get_shard)
        http.add_page("/have/{digest}", self.get_have)
        http.add_page("/manifests/{digest}", self.get_manifest)

    def offer(self) -> Offer:
        """Every manifest of which anything is here or on its way, newest first."""
        stocks = [stock for stock in self.store.newest_first() if stock.held or stock.coming][:GOSSIP_MANIFESTS_MAX]
        depth = min((stock.depth for stock in stocks), default=0)
        free = self.slots.slots_free(self._clock.now_ms())
        parents = stocks[0].parents if stocks else ()
        return Offer(depth, free, tuple(stock.digest for stock in stocks), parents)

    # --- Manifests and bitmaps --------------------------------------------------------------------------------------

    async def get_manifest(self, request: web.Request) -> web.StreamResponse:
        stock = self._find_stock(request)
        if stock is None:
            return _missing("no manifest of that name is served here")
        headers = {"Cache-Control": FOREVER}
        return web.Response(body=stock.signed.frame, content_type="application/octet-stream", headers=headers)

    async def get_have(self, request: web.Request) -> web.StreamResponse:
        stock = self._find_stock(request)
        if stock is None:
            return _missing("no manifest of that name is served here")
        seen = _read_number(request.query.get("seen", ""))
        if seen == stock.version:
            await self._wait(lambda: stock.version != seen, stock, _read_wait(request))
            await self._clock.sleep_ms(SPACING_MS)
        held, coming = stock.bitmaps()
        free = self.slots.slots_free(self._clock.now_ms())
        have = Have(version=stock.version, held=held, coming=coming, slots_free=free, depth=stock.depth)
        return web.Response(body=encode(have), content_type="application/octet-stream")

    # --- Shards -----------------------------------------------------------------------------------------------------

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        digest = _read_digest(request)
        found = self.store.find(digest) if digest is not None else None
        if found is None:
            return _missing("no manifest served here names that shard")
        stock, index = found
        if not (stock.held | stock.coming) >> index & 1:
            return _missing("that shard is neither here nor on its way")
        cut = _read_range(request, stock.manifest.shards[index].length)
        if cut is None:
            return web.Response(status=416, text="one range of the form bytes=a-b inside the shard\n")
        child, address = _read_node(request), get_address(request, self._trusted_proxies)
        decision = self.slots.ask(child, address, stock.digest, self._clock.now_ms())
        if isinstance(decision, Refusal):
            self.refused += 1
            return self._refuse(decision)
        ticket, response = decision.ticket, None
        try:
            await self._wait(lambda: not stock.coming >> index & 1, stock, _read_wait(request))
            if stock.held >> index & 1 and not await stock.is_sound(index):
                log.error("shard %d of step %d is damaged on this disk and not sent", index, stock.manifest.step)
                return _missing("that shard was damaged here")
            response = self._make_response(ticket, stock, index, *cut)
            await response.prepare(request)
        except FileNotFoundError:
            return _missing("that version was removed a moment ago")
        finally:
            sent_bytes = response.sent_bytes if isinstance(response, ShardResponse) else 0
            self.sent_bytes += sent_bytes
            self.sent_shards += sent_bytes == stock.manifest.shards[index].length
            self._sending.pop(ticket.number, None)
            self.slots.finish(ticket, sent_bytes, self._clock.now_ms())
        return response

    def _make_response(self, ticket: Ticket, stock: Stock, index: int, offset: int, length: int) -> web.StreamResponse:
        if not stock.held >> index & 1:
            return web.Response(status=504, text="that shard did not arrive here in time\n")
        stock.mark_sent(index)
        path, start, whole = stock.place(index)
        status = 200 if length == whole else 206
        response = self._sending[ticket.number] = ShardResponse(
            path, start + offset, length, status=status, slots=self.slots, ticket=ticket, clock=self._clock
        )
        if status == 206:
            response.headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{whole}"
        return response

    def _refuse(self, full: Refusal) -> web.Response:
        if full.cut is not None and full.cut.number in self._sending:
            self._sending[full.cut.number].cut_off()
        children = tuple(self._describe(child) for child in full.children[:CHILDREN_TOLD_MAX])
        body = encode(Full(retry_ms=full.retry_ms, children=children))
        headers = {"Retry-After": str(-(-full.retry_ms // 1000))}
        return web.Response(status=503, body=body, content_type="application/octet-stream", headers=headers)

    def _describe(self, child: NodeId) -> Child:
        server = self._directory.get(child) if self._directory is not None else None
        if server is None:
            return Child(node=child, depth=1, record=b"")
        record = server.frame if len(server.frame) <= CHILD_RECORD_BYTES_MAX else b""
        return Child(node=child, depth=server.serving.depth, record=record)

    async def _wait(self, is_over: Callable[[], bool], stock: Stock, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not is_over() and stock.digest in self.store.stocks and not self._is_closed:
                    await stock.wait()
        except TimeoutError:
            pass

    def _find_stock(self, request: web.Request) -> Stock | None:
        digest = _read_digest(request)
        return self.store.stocks.get(digest) if digest is not None else None


def _missing(text: str) -> web.Response:
    return web.Response(status=404, text=text + "\n")


def _read_digest(request: web.Request) -> Digest | None:
    try:
        return Digest.parse(request.match_info["digest"])
    except RemoteError:
        return None


def _read_node(request: web.Request) -> NodeId | None:
    try:
        return NodeId.parse(request.headers.get(NODE_HEADER, ""))
    except RemoteError:
        return None


def _read_number(text: str) -> int:
    return int(text) if WHOLE_NUMBER.fullmatch(text) else 0


def _read_wait(request: web.Request) -> int:
    return min(WAIT_MS_MAX, _read_number(request.headers.get(WAIT_HEADER, "")))


def _read_range(request: web.Request, length: int) -> tuple[int, int] | None:
    """Offset and length of what is asked for; None where that is nonsense."""
    text = request.headers.get("Range")
    if text is None:
        return 0, length
    match = RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), min(int(match[2] or length - 1), length - 1)
    return (first, last - first + 1) if first <= last else None
