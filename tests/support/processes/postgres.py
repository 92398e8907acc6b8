"""A real PostgreSQL for tests: the machine's own binaries, a folder of its own, loopback only, gone afterwards."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import psycopg

USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; the first of these that exists runs it then."""


def find_binary(name: str) -> str | None:
    found = shutil.which(name)
    return found or next(iter(sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


def unprivileged() -> dict[str, Any]:
    """How to start a process as somebody else, where this one is root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = next(known[name] for name in USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a fresh server, without a database name at its end."""
    initdb, postgres = find_binary("initdb"), find_binary("postgres")
    assert initdb, "initdb is not on this machine; install the package postgresql"
    assert postgres, "postgres is not on this machine; install the package postgresql"
    folder, who = Path(tempfile.mkdtemp(prefix="prime-pg-")), unprivileged()
    try:
        if who:
            os.chown(folder, who["user"], who["group"])
        data = folder / "data"
        quiet: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "env": {"PATH": "/usr/bin:/bin"}, **who}
        made = [initdb, "-D", str(data), "-U", "prime", "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **quiet)
        port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
        command = [postgres, "-D", str(data), "-p", str(port), *options]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **quiet)
        try:
            wait_until_ready(server)
            yield f"postgresql://prime@127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(server: subprocess.Popen[str]) -> None:
    assert server.stderr is not None
    seen = []
    for line in server.stderr:
        seen.append(line)
        if "ready to accept connections" in line:
            return
    raise AssertionError("PostgreSQL did not start:\n" + "".join(seen))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_database(url: str, name: str) -> str:
    """A fresh database; its URL."""
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"
