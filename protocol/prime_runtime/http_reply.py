"""The response that carries a sealed reply: its head is written in one piece.

aiohttp builds a response from a table of headers, which costs as much as reading a heartbeat. Where anything is not as
usual (an old client, a connection that is to close) this hands over to it.
"""

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from prime_runtime.http_body import ENVELOPE_TYPE

HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {ENVELOPE_TYPE}\r\nContent-Length: "


class EnvelopeReply:
    """What aiohttp asks of a response, and no more."""

    __slots__ = ("_frame", "_general", "keep_alive")
    status = 200

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._general: web.Response | None = None
        self.keep_alive: bool | None = True

    async def prepare(self, request: web.BaseRequest) -> None:
        transport = request.transport
        if transport is None or request.version != HttpVersion11 or not request.keep_alive:
            self._general = web.Response(body=self._frame, headers={"Content-Type": ENVELOPE_TYPE})
            await self._general.prepare(request)
            return
        transport.write(self.render())
        # Waits while the other side does not read; else it costs nothing.
        await request.writer.drain()

    def render(self) -> bytes:
        """The whole response."""
        return f"{HEAD}{len(self._frame)}\r\nDate: {rfc822_formatted_time()}\r\n\r\n".encode() + self._frame

    async def write_eof(self) -> None:
        if self._general is not None:
            await self._general.write_eof()
            self.keep_alive = self._general.keep_alive


def render(response: web.StreamResponse | EnvelopeReply) -> bytes:
    """A reply, or a refusal, as the bytes of a response that leaves the connection open."""
    if isinstance(response, EnvelopeReply):
        return response.render()
    assert isinstance(response, web.Response)
    body = response.body
    assert isinstance(body, bytes)
    told = {**response.headers, "Content-Length": str(len(body)), "Date": rfc822_formatted_time()}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {response.status} {response.reason}\r\n{head}\r\n".encode() + body
