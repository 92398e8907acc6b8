"""What a grown coordinator leans on, as processes that can be taken away and given back: PostgreSQL, and a bucket.

The bucket is moto behind a small proxy of ours, since moto forgets everything with its process: what goes away is the
way to it, or it answers 503 as S3 does when it is overrun.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from support.processes.postgres import find_binary, free_port, unprivileged

OVERRUN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Postgres:
    """One server in a folder of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._who = unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="prime-pg-"))
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None

    async def open(self) -> str:
        """The URL of an empty database."""
        if self._who:
            os.chown(self._folder, self._who["user"], self._who["group"])
        initdb = find_binary("initdb")
        assert initdb, "initdb is not on this machine; install the package postgresql"
        made = [initdb, "-D", str(self._folder / "data"), "-U", "prime", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run([*made, "--no-locale"], check=True, stdout=subprocess.DEVNULL, **self._quiet)
        with (self._folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all prime 10.78.0.0/16 trust\n")
        await self.start()
        return f"postgresql://prime@{self._address}:{self._port}/postgres"

    @property
    def _quiet(self) -> dict[str, Any]:
        return {"cwd": self._folder, "stdin": subprocess.DEVNULL, "env": {"PATH": "/usr/bin:/bin"}, **self._who}

    async def start(self) -> None:
        postgres = find_binary("postgres")
        assert postgres, "postgres is not on this machine; install the package postgresql"
        options = ["-c", f"listen_addresses={self._address}", "-c", f"unix_socket_directories={self._folder}"]
        command = [postgres, "-D", str(self._folder / "data"), "-p", str(self._port), *options]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, **self._quiet)
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(self._address, self._port)
                writer.close()
                return
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """At once, with everybody's connections, as the power would."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
            self._server = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class Bucket:
    """An S3 service, and the way to it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._behind = free_port()
        self._front = free_port()
        self._moto: subprocess.Popen[bytes] | None = None
        self._proxy: asyncio.Server | None = None
        self._is_overrun = False

    async def open(self) -> str:
        """Its URL, with a bucket `chaos`."""
        command = [sys.executable, "-m", "moto.server", "-H", self._address, "-p", str(self._behind)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._moto = subprocess.Popen(command, **quiet)
        await self.come_back()
        url = f"http://{self._address}:{self._front}"
        async with aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.put(f"{url}/chaos") as made:
                        if made.status == 200:
                            return url
                await asyncio.sleep(0.1)

    async def go_away(self, *, overrun: bool) -> None:
        self._is_overrun = overrun
        if not overrun and self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    async def come_back(self) -> None:
        self._is_overrun = False
        if self._proxy is None:
            self._proxy = await asyncio.start_server(self._pass, self._address, self._front)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if self._is_overrun:
                writer.write(OVERRUN)
                await writer.drain()
            else:
                behind = await asyncio.open_connection(self._address, self._behind)
                await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer))
        writer.close()

    async def close(self) -> None:
        await self.go_away(overrun=False)
        if self._moto is not None:
            self._moto.kill()
            self._moto.wait()


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()
