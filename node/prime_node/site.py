"""What of a running daemon its owner's wishes are about: see owner.py for who asks."""

import asyncio
import re

from prime_node.daemon import Daemon

GPU_DEVICE = re.compile(r"cuda(?::(\d+))?")


class DaemonSite:
    """One daemon's."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._renewing: asyncio.Task[None] | None = None

    def hold(self, reason: str) -> None:
        self._daemon.hold(reason)

    def drain(self) -> None:
        self._daemon.drain()

    def gpus_changed(self) -> None:
        """The engine is started anew before its next job, and finds what there is now."""
        workshop = self._daemon.workshop
        if workshop is not None and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(workshop.keeper.renew())

    @property
    def leases_done(self) -> int:
        return self._daemon.leases_done

    @property
    def moved_bytes(self) -> int:
        swarm = self._daemon.swarm
        return swarm.server.sent_bytes + swarm.fetcher.received_bytes + self._daemon.courier.sent_bytes

    @property
    def engine_gpus(self) -> tuple[int, ...]:
        workshop = self._daemon.workshop
        return find_gpus(workshop.keeper.report()["device"]) if workshop is not None else ()


def find_gpus(device: str) -> tuple[int, ...]:
    """From the engine's name of its device; `cuda` alone is the first."""
    match = GPU_DEVICE.fullmatch(device)
    return (int(match[1] or 0),) if match else ()
