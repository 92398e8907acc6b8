"""The process of a node: lock, key, control API, joining, work, clean shutdown."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from prime_node.config import NodeConfig, NodeRole
from prime_node.daemon import Daemon, DaemonControl
from prime_node.doctor.machine import load_nvml, probe_port
from prime_node.doctor.probes import describe_hardware
from prime_node.joining import CoordinatorDiscovery, PrintLine
from prime_node.policy.enforcer import PolicyEnforcer
from prime_node.status.local_server import LocalServer
from prime_node.status.report import ProcessInfo, make_joining_report, make_report
from prime_node.storage.keys import OpenedKey, open_key
from prime_node.storage.node_folder import (
    NodeFolder,
    lock_folder,
    make_folder,
    save_first_config,
    save_pins,
    save_trainer,
)
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, RunId, checksum_address, friendly_name
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.client import HttpClient, open_client
from prime_runtime.lock import ProcessLock
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)


EXIT_LOG_BROKEN = 3


class NodeProcess:
    """One process: control API and policy from the start, the daemon once the node has joined."""

    def __init__(self, config: NodeConfig, opened: OpenedKey, clock: Clock, print_line: PrintLine) -> None:
        self._config = config
        self._print = print_line
        self._key = opened.key
        self._clock = clock
        self._stop = asyncio.Event()
        self._started_ms = clock.now_ms()
        self._daemon: Daemon | None = None
        self.is_log_broken = False
        """At the end: the coordinator broke a rule, and the owner has not acknowledged it."""
        self._discovery = CoordinatorDiscovery(config, self._stop, clock, print_line)
        self._enforcer = PolicyEnforcer(config.folder, config.policy, clock, pid=os.getpid(), nvml=load_nvml())
        self._parts = Supervisor([SupervisedTask("owner", self._enforcer.run)], clock)
        self._url = ""
        commands = {
            "stop": self._handle_stop,
            "pause": self._handle_pause,
            "resume": self._handle_resume,
            "drain": self._handle_drain,
            "acknowledge": self._handle_acknowledge,
        }
        self._local_server = LocalServer(self.report, commands, config.page)

    async def start_control_api(self, lock: ProcessLock, stack: AsyncExitStack) -> None:
        """From then on other commands on this machine reach the node."""
        self._url = await self._local_server.start()
        stack.push_async_callback(self._local_server.close)
        lock.write_url(self._url, token=self._local_server.token)

    # --- Control API ------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        place = ProcessInfo(
            folder=self._config.folder,
            key=self._key,
            enforcer=self._enforcer,
            started_ms=self._started_ms,
            page_url=self._url if self._config.page.enabled else None,
            parts=self._parts.tasks,
        )
        now_ms = self._clock.now_ms()
        if self._daemon is None:
            return make_joining_report(self._discovery.problem, place, now_ms=now_ms)
        return make_report(self._daemon, place, now_ms=now_ms)

    def _handle_stop(self, given: dict[str, str]) -> str:
        self._stop.set()
        return "stopping"

    def _handle_pause(self, given: dict[str, str]) -> str:
        return self._enforcer.pause(given.get("gpu"))

    def _handle_resume(self, given: dict[str, str]) -> str:
        return self._enforcer.resume(given.get("gpu"))

    def _handle_drain(self, given: dict[str, str]) -> str:
        if self._daemon is None:
            return self._handle_stop(given)  # there are no jobs to finish yet
        return self._enforcer.drain()

    def _handle_acknowledge(self, given: dict[str, str]) -> str:
        if self._daemon is None:
            return "the node has not joined yet: there is nothing to acknowledge"
        return self._daemon.swarm.accusations.acknowledge()

    # --- Join and work ----------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Until the node stops. Returns why; empty: its owner asked for it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        config = await self._discovery.resolve_config()
        if config is None:
            return ""
        async with open_client(
            key=self._key,
            network=config.network_id,
            clock=self._clock,
            limits=config.client,
            authority=config.authority,
        ) as client:
            trainers = await self._discovery.resolve_trainers(config, client)
            if trainers is None:
                return ""
            check_port(config)
            self._save_settings(config, trainers)
            return await self._work(config, client, trainers)

    async def _work(self, config: NodeConfig, client: HttpClient, trainers: Mapping[RunId, NodeId]) -> str:
        hardware = config.hardware or describe_hardware(self._enforcer.listing)
        daemon = self._daemon = Daemon(replace(config, hardware=hardware), self._key, client, trainers, self._clock)
        self._enforcer.control = DaemonControl(daemon)
        policy = asyncio.create_task(self._parts.run())
        self._print(f"joined {', '.join(config.runs)} as {config.role}, on {hardware}")
        self._print(f"  watch it: prime-node status --watch{f', or {self._url}' if config.page.enabled else ''}")
        try:
            await daemon.run(self._stop)
        finally:
            policy.cancel()
            await asyncio.gather(policy, return_exceptions=True)
        self.is_log_broken = daemon.swarm.accusations.is_stopped
        return daemon.stop_reason

    def _save_settings(self, config: NodeConfig, trainers: Mapping[RunId, NodeId]) -> None:
        if save_first_config(config):
            self._print(f"wrote {NodeFolder(config.folder).config}: the next start needs no flags")
        save_pins(config)
        for run, trainer in trainers.items():
            save_trainer(config.folder, run, trainer)


def print_identity(opened: OpenedKey, config: NodeConfig, print_line: PrintLine) -> None:
    """The node's address and name; at its first start also where its key is."""
    node, folder = opened.key.node, NodeFolder(config.folder)
    print_line(f"node {checksum_address(node)}, called {friendly_name(node)}")
    if opened.is_new:
        password = f" and its password {folder.password}" if opened.is_password_new else ""
        print_line(f"  created its key {folder.key}{password}. Key and password control the node and its earnings.")
        print_line(f"  Keep a copy elsewhere: prime-node keys backup COPY --folder {config.folder}")


def check_engine(config: NodeConfig) -> None:
    """Refuses a role that this installation cannot fill, before any file is created."""
    if config.role is NodeRole.RELAY or config.engine.python is not None:
        return
    if find_spec("torch") is None:
        raise LocalError(
            f"the role {config.role} needs an engine, and torch is not installed: pip install 'prime-swarm[node]'."
            " A node without an engine can still serve weights: --role relay"
        )


def check_port(config: NodeConfig) -> None:
    """Called before the settings are saved: a port that is taken must not end up in them."""
    facts = probe_port(config, is_running=False)
    if facts.problem:
        raise LocalError(
            f"cannot listen on {facts.listen}: {facts.problem}; choose another --listen-port, and --announce with it"
        )


async def run(config: NodeConfig, print_line: PrintLine) -> int:
    """0: the owner stopped it. 1: the coordinator, or a change of the run, ended it. 3: it broke a rule."""
    check_engine(config)
    make_folder(config.folder)
    clock = SystemClock()
    with lock_folder(config.folder) as lock:
        opened = open_key(config)
        print_identity(opened, config, print_line)
        process = NodeProcess(config, opened, clock, print_line)
        async with AsyncExitStack() as stack:
            await process.start_control_api(lock, stack)
            log.info("node %s, process of %s", opened.key.node, config.folder)
            reason = await process.run()
    if reason:
        log.error("the node stops: %s", reason)
        return 1
    log.info("the node has stopped")
    return EXIT_LOG_BROKEN if process.is_log_broken else 0
