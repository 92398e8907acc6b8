"""A mirror of a log over HTTP, as anybody may have it: signed head, tiles and bundles, as they lie in its folder."""

from pathlib import Path

from aiohttp import web

from prime_protocol.errors import RemoteError
from prime_protocol.tiles import CHECKPOINT_PATH, parse_path

FOREVER = "public, max-age=31536000, immutable"
"""For what is named by its content or its place in an append-only log."""
CHECKPOINT_TYPE = "text/plain; charset=utf-8"


async def send_checkpoint(mirror: Path) -> web.StreamResponse:
    path = mirror / CHECKPOINT_PATH
    if not path.is_file():
        return web.Response(status=404, text="no head was signed yet\n")
    return web.FileResponse(path, headers={"Content-Type": CHECKPOINT_TYPE, "Cache-Control": "no-cache"})


async def send_tile(mirror: Path, name: str) -> web.StreamResponse:
    """`name` is what follows `tile/`."""
    try:
        path = mirror / parse_path(f"tile/{name}").path
    except RemoteError as error:
        return web.Response(status=404, text=f"{error}\n")
    if not path.is_file():
        return web.Response(status=404, text="there is no such tile yet\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Cache-Control": FOREVER})
