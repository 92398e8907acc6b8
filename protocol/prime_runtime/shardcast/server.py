"""A piece of a file as an HTTP response: by sendfile, at the owner's pace, and not for ever.

A reader that takes its bytes too slowly is cut off, so that it cannot hold an upload slot. How slow that is while
somebody else waits for the slot is decided in slots.py.

The routes of a shard server: shards by digest, bitmaps of what is here, signed manifests. Anybody may ask.

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
from pathlib import Path
from typing import Any, BinaryIO

from aiohttp import web

from prime_protocol.constants import CHILD_RECORD_BYTES_MAX, CHILDREN_LISTED_MAX, GOSSIP_MANIFESTS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.weights.transfer import ShardAvailability, ShardServerFull, ShardServerHint
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.clock import Clock
from prime_runtime.http.messages import get_client_address
from prime_runtime.http.server import HttpServer
from prime_runtime.shardcast.checkpoint_files import open_no_follow
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.shard_set import ShardSet
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadRefused as Refusal
from prime_runtime.shardcast.upload_slots import UploadSlots, UploadTicket

log = logging.getLogger(__name__)


PIECE_BYTES = 2**20
"""Sent between two looks at pace and time."""
WAIT_PART_MS = 250
PIECE_MS_MAX = 30_000
"""A reader that needs longer for a piece, 35 kB/s, had better ask someone nearer."""


class ShardResponse(web.StreamResponse):
    """Sends when it is prepared, like aiohttp's own FileResponse, but a range of a file that the caller chose."""

    def __init__(
        self,
        path: Path,
        offset: int,
        length: int,
        *,
        status: int,
        slots: UploadSlots,
        ticket: UploadTicket,
        clock: Clock,
    ) -> None:
        super().__init__(status=status)
        self._path = path
        self._offset = offset
        self._length_bytes = length
        self._slots = slots
        self._ticket = ticket
        self._clock = clock
        self._piece: asyncio.Timeout | None = None
        """Of the piece that the reader is just taking."""
        self.sent_bytes = 0
        self.content_type = "application/octet-stream"
        self.content_length = length

    async def prepare(self, request: web.BaseRequest) -> Any:
        if self.prepared:
            return None  # aiohttp prepares again what a handler returns; it has been sent
        # Opened here and not by the caller: a version removed in between is a plain error of this request.
        with open_no_follow(self._path, "rb") as file:
            writer = None
            try:
                writer = await super().prepare(request)
                await self._send(request, file)
            except (TimeoutError, ConnectionError) as error:
                log.info("upload to %s ended early: %s", request.remote, type(error).__name__)
                if request.transport is not None:
                    request.transport.abort()
                return writer
        await super().write_eof()
        return writer

    def cut_off(self) -> None:
        """Wait no longer for the reader: somebody else is to have the slot."""
        if self._piece is not None:
            self._piece.reschedule(0)

    async def _send(self, request: web.BaseRequest, file: BinaryIO) -> None:
        while self.sent_bytes < self._length_bytes:
            piece = min(PIECE_BYTES, self._length_bytes - self.sent_bytes)
            await self._wait(request, self._slots.compute_wait_ms(self._clock.now_ms(), piece))
            if request.transport is None:
                raise ConnectionResetError
            self._slots.begin_piece(self._ticket, self._clock.now_ms())
            taken = await self._send_piece(request.transport, file, piece)
            self._slots.end_piece(self._ticket, taken, self._clock.now_ms())
            self.sent_bytes += taken

    async def _send_piece(self, transport: asyncio.WriteTransport, file: BinaryIO, piece: int) -> int:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PIECE_MS_MAX / 1000) as self._piece:
                return await loop.sendfile(transport, file, self._offset + self.sent_bytes, piece, fallback=True)
        finally:
            self._piece = None

    async def _wait(self, request: web.BaseRequest, wait_ms: int) -> None:
        """In small parts: a child that has hung up must not keep its slot until the owner's pace allows the rest."""
        while wait_ms > 0:
            part_ms = min(wait_ms, WAIT_PART_MS)
            await self._clock.sleep_ms(part_ms)
            wait_ms -= part_ms
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError


NODE_HEADER = "Prime-Node"
"""Who asks. A claim: it decides only whom other children are sent to, and those check every byte."""
WAIT_HEADER = "Prime-Wait-Ms"
WAIT_MS_MAX = 30_000
"""Longest wait for a shard that is arriving, or for news. Shorter than a fetcher waits for its first byte."""
SPACING_MS = 20
"""Changes within this time are told together."""
CACHE_FOREVER = "public, max-age=31536000, immutable"
RANGE = re.compile(r"bytes=([0-9]{1,12})-([0-9]{0,12})")
WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ServingOffer:
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
        directory: ServerDirectory | None = None,
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
        for stock in self.store.shard_sets.values():
            stock.wake()

    def add_routes(self, http: HttpServer) -> None:
        http.add_page("/shards/{digest}", self.get_shard)
        http.add_page("/have/{digest}", self.get_have)
        http.add_page("/manifests/{digest}", self.get_manifest)

    def offer(self) -> ServingOffer:
        """Every manifest of which anything is here or on its way, newest first."""
        stocks = [stock for stock in self.store.newest_first() if stock.held or stock.coming][:GOSSIP_MANIFESTS_MAX]
        depth = min((stock.depth for stock in stocks), default=0)
        free = self.slots.slots_free(self._clock.now_ms())
        parents = stocks[0].parents if stocks else ()
        return ServingOffer(depth, free, tuple(stock.digest for stock in stocks), parents)

    # --- Manifests and bitmaps --------------------------------------------------------------------------------------

    async def get_manifest(self, request: web.Request) -> web.StreamResponse:
        stock = self._find_stock(request)
        if stock is None:
            return _not_found("no manifest of that name is served here")
        headers = {"Cache-Control": CACHE_FOREVER}
        return web.Response(body=stock.signed.frame, content_type="application/octet-stream", headers=headers)

    async def get_have(self, request: web.Request) -> web.StreamResponse:
        stock = self._find_stock(request)
        if stock is None:
            return _not_found("no manifest of that name is served here")
        seen = _read_number(request.query.get("seen", ""))
        if seen == stock.version:
            await self._wait(lambda: stock.version != seen, stock, _read_wait(request))
            await self._clock.sleep_ms(SPACING_MS)
        held, coming = stock.bitmaps()
        free = self.slots.slots_free(self._clock.now_ms())
        have = ShardAvailability(version=stock.version, held=held, coming=coming, slots_free=free, depth=stock.depth)
        return web.Response(body=encode(have), content_type="application/octet-stream")

    # --- Shards -----------------------------------------------------------------------------------------------------

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        digest = _read_digest(request)
        found = self.store.find(digest) if digest is not None else None
        if found is None:
            return _not_found("no manifest served here names that shard")
        stock, index = found
        if not (stock.held | stock.coming) >> index & 1:
            return _not_found("that shard is neither here nor on its way")
        cut = _read_range(request, stock.manifest.shards[index].length)
        if cut is None:
            return web.Response(status=416, text="one range of the form bytes=a-b inside the shard\n")
        child, address = _read_node(request), get_client_address(request, self._trusted_proxies)
        decision = self.slots.request_slot(child, address, stock.digest, self._clock.now_ms())
        if isinstance(decision, Refusal):
            self.refused += 1
            return self._refuse(decision)
        ticket, response = decision.ticket, None
        try:
            await self._wait(lambda: not stock.coming >> index & 1, stock, _read_wait(request))
            if stock.held >> index & 1 and not await stock.verify_once(index):
                log.error("shard %d of step %d is damaged on this disk and not sent", index, stock.manifest.step)
                return _not_found("that shard was damaged here")
            response = self._make_response(ticket, stock, index, *cut)
            await response.prepare(request)
        except FileNotFoundError:
            return _not_found("that version was removed a moment ago")
        finally:
            sent_bytes = response.sent_bytes if isinstance(response, ShardResponse) else 0
            self.sent_bytes += sent_bytes
            self.sent_shards += sent_bytes == stock.manifest.shards[index].length
            self._sending.pop(ticket.number, None)
            self.slots.finish(ticket, sent_bytes, self._clock.now_ms())
        return response

    def _make_response(
        self, ticket: UploadTicket, stock: ShardSet, index: int, offset: int, length: int
    ) -> web.StreamResponse:
        if not stock.held >> index & 1:
            return web.Response(status=504, text="that shard did not arrive here in time\n")
        stock.mark_sent(index)
        path, start, whole = stock.locate(index)
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
        children = tuple(self._describe(child) for child in full.children[:CHILDREN_LISTED_MAX])
        body = encode(ShardServerFull(retry_ms=full.retry_ms, children=children))
        headers = {"Retry-After": str(-(-full.retry_ms // 1000))}
        return web.Response(status=503, body=body, content_type="application/octet-stream", headers=headers)

    def _describe(self, child: NodeId) -> ShardServerHint:
        server = self._directory.get(child) if self._directory is not None else None
        if server is None:
            return ShardServerHint(node=child, depth=1, record=b"")
        record = server.frame if len(server.frame) <= CHILD_RECORD_BYTES_MAX else b""
        return ShardServerHint(node=child, depth=server.serving.depth, record=record)

    async def _wait(self, is_over: Callable[[], bool], stock: ShardSet, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not is_over() and stock.digest in self.store.shard_sets and not self._is_closed:
                    await stock.wait()
        except TimeoutError:
            pass

    def _find_stock(self, request: web.Request) -> ShardSet | None:
        digest = _read_digest(request)
        return self.store.shard_sets.get(digest) if digest is not None else None


def _not_found(text: str) -> web.Response:
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
