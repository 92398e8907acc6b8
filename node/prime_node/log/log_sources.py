"""Fetches tiles and entry bundles of the log from a coordinator or a mirror. Nothing of it is trusted: callers verify.

A mirror is a folder of static files (c2sp.org/tlog-tiles) under a URL; a coordinator serves its own at /log.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError
from prime_protocol.log.tiles import LENGTH_BYTES, EntryBundle, Tile, decode_bundle
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress

BUNDLE_BYTES_MAX = TILE_HASHES * (LENGTH_BYTES + LOG_ENTRY_BYTES_MAX)
TILE_BYTES_MAX = TILE_HASHES * DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class LogSource:
    """One server of the log's files."""

    client: HttpClient
    server: ServerAddress
    prefix: str = ""
    """Path of the log on the server."""

    @property
    def url(self) -> str:
        return self.server.url.rstrip("/") + self.prefix

    async def fetch_tile(self, tile: Tile) -> bytes:
        raw = await self._get_first((tile.path, Tile(tile.level, tile.index, TILE_HASHES).path), TILE_BYTES_MAX)
        return raw[: tile.width * DIGEST_BYTES]

    async def fetch_tiles(self, tiles: Iterable[Tile]) -> dict[Tile, bytes]:
        return {tile: await self.fetch_tile(tile) for tile in tiles}

    async def fetch_entries(self, bundle: EntryBundle) -> tuple[list[bytes], int]:
        """The entries of a bundle, and how many bytes were read. RemoteError: it is no bundle."""
        for each in dict.fromkeys((bundle, EntryBundle(bundle.index, TILE_HASHES))):
            raw = await self.client.get(self.server, f"{self.prefix}/{each.path}", bytes_max=BUNDLE_BYTES_MAX)
            if raw is not None:
                return decode_bundle(each, raw)[: bundle.width], len(raw)
        raise LocalError(f"{self.url} has no {bundle.path}")

    async def fetch_file(self, path: str, bytes_max: int) -> bytes | None:
        """A file beside the tiles; None if there is none."""
        return await self.client.get(self.server, f"{self.prefix}/{path}", bytes_max=bytes_max)

    async def _get_first(self, paths: Iterable[str], bytes_max: int) -> bytes:
        """A log may drop a partial file once the full one exists, which begins with the same hashes."""
        for path in dict.fromkeys(paths):
            raw = await self.client.get(self.server, f"{self.prefix}/{path}", bytes_max=bytes_max)
            if raw is not None:
                return raw
        raise LocalError(f"{self.url} has no {next(iter(paths))}")
