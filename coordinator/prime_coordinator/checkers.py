"""The coordinator's side of the checking processes: a few of them, one job each, killed and replaced when they hang."""

import asyncio
import json
import logging
import pickle
import sys

from prime_coordinator.checker import LENGTH_BYTES, CheckJob
from prime_protocol.errors import RemoteError

log = logging.getLogger(__name__)
ANSWER_BYTES_MAX = 64 * 1024


class Checkers:
    """Hands jobs to processes. A process that dies or takes too long fails its file, never the coordinator."""

    def __init__(self, *, count: int, check_ms: int, memory_mb: int) -> None:
        self._check_ms = check_ms
        self._memory_mb = memory_mb
        self._idle: asyncio.LifoQueue[asyncio.subprocess.Process | None] = asyncio.LifoQueue()
        self._all: set[asyncio.subprocess.Process] = set()
        for _ in range(count):
            self._idle.put_nowait(None)

    async def check(self, job: CheckJob) -> None:
        """Return when the file is good; RemoteError names what is wrong with it, also when no check could end."""
        process = await self._idle.get()
        is_whole = False
        try:
            process = process or await self._start()
            async with asyncio.timeout(self._check_ms / 1000):
                found = await self._ask(process, job)
            is_whole = True
        except TimeoutError:
            raise RemoteError("file", f"could not be checked within {self._check_ms} ms") from None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            raise RemoteError("file", "could not be checked: the checking process died over it") from None
        finally:
            if not is_whole and process is not None:
                log.warning("the checking process %d did not end its job and is replaced", process.pid)
                self._end(process)
            self._idle.put_nowait(process if is_whole else None)
        if found:
            raise RemoteError(str(found.get("field", "file")), str(found.get("problem", "is bad")))

    async def close(self) -> None:
        """End every process."""
        for process in list(self._all):
            self._end(process)
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "prime_coordinator.checker",
            str(self._memory_mb),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
        )
        self._all = {known for known in self._all if known.returncode is None} | {process}
        return process

    async def _ask(self, process: asyncio.subprocess.Process, job: CheckJob) -> dict[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        raw = pickle.dumps(job)
        process.stdin.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
        await process.stdin.drain()
        found = json.loads(await process.stdout.readuntil(b"\n"))
        assert isinstance(found, dict)
        return found

    def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
