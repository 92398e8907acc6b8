"""Files that the coordinator hands out by their digest: what comes is what was asked for, or it is an error."""

import asyncio
from hashlib import sha256

from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest
from prime_runtime.http_client import HttpClient, Server
from prime_runtime.json_client import NotKnown

FETCH_MS = 600_000
"""Time for a file to arrive."""


async def fetch_file(client: HttpClient, server: Server, path: str, digest: Digest, *, bytes_max: int) -> bytes:
    """NotKnown: it is not there. LocalError: not within the time. RemoteError: it is another file."""
    data = await client.get(server, path, bytes_max=bytes_max, deadline_ms=FETCH_MS, redirects_max=1)
    if data is None:
        raise NotKnown(f"the coordinator has no {path}")
    if await asyncio.to_thread(lambda: sha256(data).digest()) != digest:
        raise RemoteError(path, "is not what its digest says")
    return data
