"""Bringing a file to the coordinator before an entry names it."""

from prime_protocol.ids import RunId
from prime_protocol.messages import UPLOAD, Upload
from prime_runtime.http_client import File, HttpClient, Server


async def send_file(
    client: HttpClient, server: Server, upload: Upload, data: bytes, *, run: RunId, deadline_ms: int | None = None
) -> None:
    """Until the coordinator has it. Sent again it costs one question. A large file on a thin line needs a deadline."""
    assert len(data) == upload.size_bytes, "the upload describes another file"
    place = (await client.call(server, UPLOAD, upload, run=run)).message
    if place.stored:
        return
    if place.url:
        await client.put_elsewhere(place.url, data, deadline_ms)
    else:
        file = File(f"/objects/{upload.digest}", data)
        await client.call(server, UPLOAD, upload, run=run, deadline_ms=deadline_ms, file=file)
