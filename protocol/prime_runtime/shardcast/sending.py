"""A piece of a file as an HTTP response: by sendfile, at the owner's pace, and not for ever.

A reader that takes its bytes too slowly is cut off, so that it cannot hold an upload slot. How slow that is while
somebody else waits for the slot is decided in slots.py.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, BinaryIO

from aiohttp import web

from prime_runtime.clock import Clock
from prime_runtime.shardcast.room import open_plain
from prime_runtime.shardcast.slots import Ticket, UploadSlots

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
        ticket: Ticket,
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
        with open_plain(self._path, "rb") as file:
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
            await self._wait(request, self._slots.pace(self._clock.now_ms(), piece))
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
