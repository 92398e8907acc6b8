"""The shard server: shards by digest, bitmaps of what is held, signed manifests. Public, over plain HTTP.

GET /shards/<digest>      the shard or a range of it; waits for a shard that is arriving
GET /have/<manifest>      which shards are held; waits for a change since ?seen=<version>
GET /manifests/<digest>   the signed frame

A path is a digest that the store knows, or the answer is 404; nothing else is reachable. upload_slots.py decides who is
served. A shard is sent by sendfile at the owner's rate. A reader that is too slow is cut off, so that it cannot occupy
an upload slot.
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
from prime_runtime.shardcast.upload_slots import UploadRefused, UploadSlots, UploadTicket

log = logging.getLogger(__name__)


PIECE_BYTES = 2**20
"""Bytes sent between two checks of rate and time."""
WAIT_PART_MS = 250
PIECE_MS_MAX = 30_000
"""A reader that needs longer for a piece (35 kB/s) should use another server."""


class ShardResponse(web.StreamResponse):
    """Sends a range of a file when it is prepared, like aiohttp's FileResponse."""

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
        """Timeout of the piece that is being sent."""
        self.sent_bytes = 0
        self.content_type = "application/octet-stream"
        self.content_length = length

    async def prepare(self, request: web.BaseRequest) -> Any:
        if self.prepared:
            return None  # aiohttp prepares the response again after the handler returns it
        # Opened here, not by the caller: a version that was removed meanwhile is an error of this request only.
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
        """Stop waiting for the reader: another node gets the slot."""
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
        """Wait in small parts: a child that disconnected must not keep its slot while the rate limit delays us."""
        while wait_ms > 0:
            part_ms = min(wait_ms, WAIT_PART_MS)
            await self._clock.sleep_ms(part_ms)
            wait_ms -= part_ms
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError


NODE_HEADER = "Prime-Node"
"""The node that asks. Not authenticated: it only decides where other children are sent, and those verify every byte."""
WAIT_HEADER = "Prime-Wait-Ms"
WAIT_MS_MAX = 30_000
"""Maximum wait for an arriving shard or for a change. Shorter than a fetcher waits for its first byte."""
SPACING_MS = 20
"""Changes within this time are reported together."""
CACHE_FOREVER = "public, max-age=31536000, immutable"
RANGE = re.compile(r"bytes=([0-9]{1,12})-([0-9]{0,12})")
WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ServingOffer:
    """What the serving record of this server says."""

    depth: int
    slots_free: int
    manifests: tuple[Digest, ...]
    parents: tuple[NodeId, ...]
    """Parents of the newest manifest."""


class ShardServer:
    """Serves one store. The directory knows the addresses of children."""

    def __init__(
        self,
        store: ShardStore,
        slots: UploadSlots,
        *,
        clock: Clock,
        trusted_proxies: tuple[str, ...] = (),
        directory: ServerDirectory | None = None,
        sending: "dict[int, ShardResponse] | None" = None,
    ) -> None:
        """`sending`: the running uploads of all servers that share `slots`, by ticket number."""
        self.store = store
        self.slots = slots
        self._clock = clock
        self._trusted_proxies = trusted_proxies
        self._directory = directory
        self.sent_bytes = 0
        self.sent_shards = 0
        self.refused = 0
        self._sending = {} if sending is None else sending
        self.note_sent: Callable[[web.BaseRequest, int], None] = lambda request, count: None
        """Called with each request for a shard when it has ended, and the bytes sent."""
        self._is_closed = False

    def close(self) -> None:
        """Answer all waiting requests, so that the server can stop at once."""
        self._is_closed = True
        for shard_set in self.store.shard_sets.values():
            shard_set.wake()

    def add_routes(self, http: HttpServer) -> None:
        http.add_page("/shards/{digest}", self.get_shard)
        http.add_page("/have/{digest}", self.get_have)
        http.add_page("/manifests/{digest}", self.get_manifest)

    def offer(self) -> ServingOffer:
        """The manifests with shards held or arriving, newest first."""
        shard_sets = [shard_set for shard_set in self.store.newest_first() if shard_set.held or shard_set.coming][
            :GOSSIP_MANIFESTS_MAX
        ]
        depth = min((shard_set.depth for shard_set in shard_sets), default=0)
        free = self.slots.slots_free(self._clock.now_ms())
        parents = shard_sets[0].parents if shard_sets else ()
        return ServingOffer(depth, free, tuple(shard_set.digest for shard_set in shard_sets), parents)

    # --- Manifests and bitmaps --------------------------------------------------------------------------------------

    async def get_manifest(self, request: web.Request) -> web.StreamResponse:
        shard_set = self._find_shard_set(request)
        if shard_set is None:
            return _not_found("that manifest is not served here")
        headers = {"Cache-Control": CACHE_FOREVER}
        return web.Response(body=shard_set.signed.frame, content_type="application/octet-stream", headers=headers)

    async def get_have(self, request: web.Request) -> web.StreamResponse:
        shard_set = self._find_shard_set(request)
        if shard_set is None:
            return _not_found("that manifest is not served here")
        seen = _read_number(request.query.get("seen", ""))
        if seen == shard_set.version:
            await self._wait(lambda: shard_set.version != seen, shard_set, _read_wait(request))
            await self._clock.sleep_ms(SPACING_MS)
        held, coming = shard_set.bitmaps()
        free = self.slots.slots_free(self._clock.now_ms())
        have = ShardAvailability(
            version=shard_set.version, held=held, coming=coming, slots_free=free, depth=shard_set.depth
        )
        return web.Response(body=encode(have), content_type="application/octet-stream")

    # --- Shards -----------------------------------------------------------------------------------------------------

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        digest = _read_digest(request)
        found = self.store.find(digest) if digest is not None else None
        if found is None:
            return _not_found("no manifest served here contains that shard")
        shard_set, index = found
        if not (shard_set.held | shard_set.coming) >> index & 1:
            return _not_found("that shard is neither held nor arriving")
        cut = _read_range(request, shard_set.manifest.shards[index].length)
        if cut is None:
            return web.Response(status=416, text="use one range of the form bytes=a-b inside the shard\n")
        child, address = _read_node(request), get_client_address(request, self._trusted_proxies)
        decision = self.slots.request_slot(child, address, shard_set.digest, self._clock.now_ms())
        if isinstance(decision, UploadRefused):
            self.refused += 1
            return self._refuse(decision)
        ticket, response = decision.ticket, None
        try:
            await self._wait(lambda: not shard_set.coming >> index & 1, shard_set, _read_wait(request))
            if shard_set.held >> index & 1 and not await shard_set.verify_once(index):
                log.error("shard %d of step %d is damaged on disk and is not sent", index, shard_set.manifest.step)
                return _not_found("that shard was damaged here")
            response = self._make_response(ticket, shard_set, index, *cut)
            await response.prepare(request)
        except FileNotFoundError:
            return _not_found("that version was just removed")
        finally:
            sent_bytes = response.sent_bytes if isinstance(response, ShardResponse) else 0
            self.sent_bytes += sent_bytes
            self.sent_shards += sent_bytes == shard_set.manifest.shards[index].length
            self.note_sent(request, sent_bytes)
            self._sending.pop(ticket.number, None)
            self.slots.finish(ticket, sent_bytes, self._clock.now_ms())
        return response

    def _make_response(
        self, ticket: UploadTicket, shard_set: ShardSet, index: int, offset: int, length: int
    ) -> web.StreamResponse:
        if not shard_set.held >> index & 1:
            return web.Response(status=504, text="that shard did not arrive here in time\n")
        shard_set.mark_sent(index)
        path, start, whole = shard_set.locate(index)
        status = 200 if length == whole else 206
        response = self._sending[ticket.number] = ShardResponse(
            path, start + offset, length, status=status, slots=self.slots, ticket=ticket, clock=self._clock
        )
        if status == 206:
            response.headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{whole}"
        return response

    def _refuse(self, full: UploadRefused) -> web.Response:
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

    async def _wait(self, is_over: Callable[[], bool], shard_set: ShardSet, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not is_over() and shard_set.digest in self.store.shard_sets and not self._is_closed:
                    await shard_set.wait()
        except TimeoutError:
            pass

    def _find_shard_set(self, request: web.Request) -> ShardSet | None:
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
    """Offset and length of the requested range; None if it is invalid."""
    text = request.headers.get("Range")
    if text is None:
        return 0, length
    match = RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), min(int(match[2] or length - 1), length - 1)
    return (first, last - first + 1) if first <= last else None
