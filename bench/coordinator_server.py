"""The server's side of bench/coordinator.py, a process of its own: `coordinator_server.py bare|real NODES FOLDER CORE`.

It prints its URL and its address, and after each line on its standard input the CPU seconds it has used so far.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import msgpack
from aiohttp import web

from prime_coordinator.app import CoordinatorServer, tune_garbage_collector
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import database_url, load_key, load_log_key, lock_home, read_lock
from prime_coordinator.log.store import open_log_store
from prime_protocol.constants import PROTOCOL_VERSION, SIGNATURE_BYTES
from prime_protocol.ledger.entries import Role
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import NodeActivity
from prime_runtime.cli import collect_less_often
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerLimits
from support.processes.coordinator import RUN, key_of, make_folder

SENDERS = 1_000
"""Nodes whose keys the clients have; the others only are there."""
REPLY = bytes(500)
"""About as long as a heartbeat's reply."""
UNLIMITED = ServerLimits(
    address_rate=1e6,
    address_burst=10**6,
    sender_rate=1e6,
    sender_burst=10**6,
    requests_max=10_000,
    requests_per_address_max=10_000,
    transfers_max=10_000,
    transfers_per_address_max=10_000,
)


async def tell_times(stop: asyncio.Event) -> None:
    """Until the driver closes the pipe."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while await reader.readline():
        print(time.process_time(), flush=True)
    stop.set()


async def serve_bare() -> None:
    async def handle(request: web.Request) -> web.Response:
        msgpack.unpackb((await request.read())[SIGNATURE_BYTES:])
        return web.Response(body=REPLY, content_type="application/x-prime-envelope")

    app, stop = web.Application(), asyncio.Event()
    app.router.add_post("/api/heartbeat", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", NodeId(bytes(20)), flush=True)
    await tell_times(stop)
    await runner.cleanup()


async def serve_real(nodes: int, folder: Path) -> None:
    config = await make_folder(folder, stake_min_nano=0, slash_nano=0, slots_per_step=4096)
    config = CoordinatorConfig(folder=folder, network=config.network, password=config.password, limits=UNLIMITED)
    store = open_log_store(database_url(config))
    server = await CoordinatorServer.open(config, load_key(config), load_log_key(config), store, SystemClock())
    fill(server, nodes)
    collect_less_often()
    tune_garbage_collector()
    stop = asyncio.Event()
    with lock_home(folder) as lock:
        serving = asyncio.create_task(server.serve(lock, stop.wait()))
        while "url" not in read_lock(folder):
            await asyncio.sleep(0.01)
        print(read_lock(folder)["url"], server.core.state.coordinator, flush=True)
        telling = asyncio.create_task(tell_times(stop))
        await serving
        await telling
    store.close()


def fill(server: CoordinatorServer, nodes: int) -> None:
    """Registered nodes, all of them beating."""
    core, now_ms = server.core, SystemClock().now_ms()
    for number in range(nodes):
        node = key_of(f"bench-{number}").node if number < SENDERS else NodeId(number.to_bytes(20, "big"))
        core.state.get_or_create_node(node).roles = (Role.WORKER,)
        core.state.nodes[node].version = PROTOCOL_VERSION
        core.liveness.beat(node, NodeActivity.IDLE, 0, now_ms)
    assert RUN in core.state.runs


if __name__ == "__main__":
    kind, nodes, folder, core_number = sys.argv[1:]
    os.sched_setaffinity(0, {int(core_number)})
    asyncio.run(serve_bare() if kind == "bare" else serve_real(int(nodes), Path(folder)))
