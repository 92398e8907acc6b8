"""The response that carries a reply's envelope: short, never compressed, its head written in one piece.

aiohttp's own way builds the head from a table of headers, which costs a quarter of a heartbeat. Where anything is not as
usual (an old client, a connection that closes, further headers) that way is taken.
"""

from http import HTTPStatus

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

from prime_runtime.http_body import ENVELOPE_TYPE, STATUS

ENVELOPE_HEADERS = {"Content-Type": ENVELOPE_TYPE}
HEADS = {
    code: f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: {ENVELOPE_TYPE}\r\n"
    for code in (200, *STATUS.values())
}


class EnvelopeResponse(web.Response):
    """One sealed reply."""

    def __init__(self, status: int, frame: bytes) -> None:
        super().__init__(status=status, body=frame, headers=ENVELOPE_HEADERS)
        self._frame = frame

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        transport = request.transport
        is_usual = request.version == HttpVersion11 and request.keep_alive and self._keep_alive is None
        if not is_usual or transport is None or len(self.headers) > len(ENVELOPE_HEADERS) or self.prepared:
            return await super().prepare(request)
        self._keep_alive, self._eof_sent = True, True
        head = f"{HEADS[self.status]}Content-Length: {len(self._frame)}\r\nDate: {rfc822_formatted_time()}\r\n\r\n"
        transport.write(head.encode() + self._frame)
        # Waits while the other side does not read; else it costs nothing.
        await request.writer.drain()
        return None
