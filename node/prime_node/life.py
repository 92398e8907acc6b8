"""One process of a node, from the lock to the last word: key, settings, joining, work, clean end."""

import asyncio
import logging
import random
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from prime_node.config import NodeConfig, NodeRole
from prime_node.daemon import Daemon
from prime_node.home import Home, keep_config, keep_trainer, locked, make_folder, open_key, read_trainer
from prime_node.local_server import LocalServer
from prime_node.status import make_report, make_waiting_report
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.records import RECORDS, RecordsWanted
from prime_protocol.signing import WalletKey
from prime_runtime import key_file
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http_client import HttpClient, open_client

log = logging.getLogger(__name__)

ASK_MS = 1_000
ASK_MS_MAX = 30_000
"""Between two questions for the run's trainer, doubling, while the coordinator does not answer."""

Say = Callable[[str], None]


def check_role(config: NodeConfig) -> None:
    if config.role is not NodeRole.RELAY:
        raise LocalError(
            f"the role {config.role} needs an engine, and engines are not built yet; a relay needs none: --role relay"
        )


class NodeProcess:
    """What the local door shows, before and after the node has joined."""

    def __init__(self, config: NodeConfig, key: WalletKey, clock: Clock, say: Say) -> None:
        self._config = config
        self._say = say
        self._key = key
        self._clock = clock
        self._stop = asyncio.Event()
        self._started_ms = clock.now_ms()
        self._daemon: Daemon | None = None
        self._problem = ""
        self.door = LocalServer(self.report, self._stop.set)

    def report(self) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        if self._daemon is None:
            return make_waiting_report(self._problem, started_ms=self._started_ms, now_ms=now_ms)
        return make_report(self._daemon, started_ms=self._started_ms, now_ms=now_ms)

    async def run(self, client: HttpClient) -> str:
        """Until told to stop; why, where nobody on this machine asked for it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        trainer = await self._find_trainer(client)
        if trainer is None:
            return ""
        if keep_config(self._config):
            self._say(f"wrote {Home(self._config.folder).config}: the next start needs no flags")
        daemon = self._daemon = Daemon(self._config, self._key, client, trainer, self._clock)
        await daemon.run(self._stop)
        return daemon.stopped_for

    async def _find_trainer(self, client: HttpClient) -> NodeId | None:
        """What an earlier process noted, else what the coordinator says; None if we are stopped before."""
        known, wait_ms = read_trainer(self._config.folder), ASK_MS
        while known is None and not self._stop.is_set():
            try:
                wanted = RecordsWanted(seen=0, wait_ms=0)
                answer = await client.call(self._config.server, RECORDS, wanted, run=self._config.run_id)
                known = answer.message.trainer
                keep_trainer(self._config.folder, known)
            except (LocalError, RemoteError) as error:
                self._problem = str(error)
                log.warning("cannot join yet: %s", error)
                await self._pause(wait_ms)
                wait_ms = min(ASK_MS_MAX, 2 * wait_ms)
        return known

    async def _pause(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._stop.wait()
        except TimeoutError:
            pass


async def run(config: NodeConfig, say: Say) -> int:
    """0: stopped when asked to. 1: the coordinator, or a change of the run, ended it."""
    check_role(config)
    make_folder(config.folder)
    clock = SystemClock()
    with locked(config.folder) as lock:
        key, is_new = open_key(config)
        if is_new:
            say(key_file.describe(key))
            say(f"drew a key: {Home(config.folder).key}. Copy that file and remember the password: it is this node.")
        process = NodeProcess(config, key, clock, say)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                open_client(
                    key=key,
                    network=config.network_id,
                    clock=clock,
                    dice=random.Random(),
                    limits=config.client,
                    authority=config.authority,
                )
            )
            url = await process.door.start()
            stack.push_async_callback(process.door.close)
            lock.note_url(url, token=process.door.token)
            log.info("node %s, process of %s", key.node, config.folder)
            reason = await process.run(client)
    if reason:
        log.error("the node stops: %s", reason)
        return 1
    log.info("the node has stopped")
    return 0
