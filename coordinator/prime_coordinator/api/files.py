"""Public files over plain HTTP: the mirror of the log, files that the log names, and the problem files of runs."""

from pathlib import Path

from aiohttp import web

from prime_coordinator.intake.uploads import DATASETS_PREFIX
from prime_coordinator.log.store import LogStore
from prime_coordinator.retention.file_rows import ExpiredFile
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.schedule import FileReason
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest
from prime_runtime.formatting import format_time
from prime_runtime.http.messages import EXPIRED_HEADER
from prime_runtime.http.server import HttpServer
from prime_runtime.log_files import CACHE_FOREVER, serve_keys, serve_snapshot, serve_tile, serve_tree_head
from prime_runtime.objects.store import ObjectMissing, ObjectStore, content_key

PRESIGNED_LIFE_S = 600


KEPT_BY = {
    FileReason.ROLLOUTS: "rollouts_kept_ms",
    FileReason.EVIDENCE: "evidence_kept_ms",
    FileReason.MANIFESTS: "checkpoints_kept_ms",
    FileReason.SLASHES: "slash_evidence_kept_ms",
}
"""The term of the run that says how long a file is kept."""


def add_file_routes(
    server: HttpServer, *, mirror: Path, objects: ObjectStore, store: LogStore, files: FileTable
) -> None:
    """`/log/…`, `/objects/…` and `/datasets/…`."""

    async def get_checkpoint(request: web.Request) -> web.StreamResponse:
        return await serve_tree_head(mirror)

    async def get_keys(request: web.Request) -> web.StreamResponse:
        return await serve_keys(mirror)

    async def get_tile(request: web.Request) -> web.StreamResponse:
        return await serve_tile(mirror, request.match_info["path"])

    async def get_snapshot(request: web.Request) -> web.StreamResponse:
        return await serve_snapshot(mirror, request.match_info["size"])

    async def get_object(request: web.Request) -> web.StreamResponse:
        try:
            digest = Digest.parse(request.match_info["digest"])
        except RemoteError as error:
            return web.Response(status=404, text=f"{error}\n")
        if not await store.is_subject(digest):
            return web.Response(status=404, text="no entry of the log names this file\n")
        found = await files.find_or_rebuild(digest)
        if isinstance(found, ExpiredFile):
            return tell_expired(found)
        try:
            if found is not None:
                return await send_object(objects, found.key)
        except ObjectMissing:
            pass
        return web.Response(status=404, text="the log names this file, but it is not here\n")

    async def get_dataset(request: web.Request) -> web.StreamResponse:
        try:
            return await send_object(objects, content_key(DATASETS_PREFIX, Digest.parse(request.match_info["digest"])))
        except RemoteError as error:
            return web.Response(status=404, text=f"{error}\n")
        except ObjectMissing:
            return web.Response(status=404, text="there is no such problem file\n")

    server.add_page("/log/checkpoint", get_checkpoint)
    server.add_page("/log/keys", get_keys)
    server.add_page("/log/tile/{path:.+}", get_tile)
    server.add_page("/log/snapshot/{size}", get_snapshot)
    server.add_page("/objects/{digest}", get_object)
    server.add_page("/datasets/{digest}", get_dataset)


def tell_expired(file: ExpiredFile) -> web.Response:
    """410, and when and why it was deleted: for a person in the text, for a program in the header."""
    term = KEPT_BY.get(file.reason)
    why = f"the run's terms say how long it is kept ({term})" if term else "no entry named it in time"
    text = f"this file expired on {format_time(file.at_ms)}: {why}\n"
    return web.Response(status=410, text=text, headers={EXPIRED_HEADER: str(file.at_ms)})


async def send_object(objects: ObjectStore, key: str) -> web.StreamResponse:
    """Sendfile from a folder, redirect to a bucket."""
    # Strangers wrote these bytes, and the explorer's pages share this origin: a browser must never render them.
    headers = {
        "Content-Type": "application/octet-stream",
        "Cache-Control": CACHE_FOREVER,
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    path = objects.local_path(key)
    if path is not None:
        if not path.is_file():
            raise ObjectMissing(f"there is no {key}")
        return web.FileResponse(path, headers=headers)
    if not await objects.exists(key):
        raise ObjectMissing(f"there is no {key}")
    url = await objects.presign_get(key, expires_s=PRESIGNED_LIFE_S)
    assert url is not None, "a store without files presigns"
    return web.Response(status=302, headers={"Location": url, "Cache-Control": "no-store"})
