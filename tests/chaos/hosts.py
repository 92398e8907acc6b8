"""A host of its own for each party: network namespace, small disk, clock. What the machine does not allow is left out.

The harness itself lives in the namespace of the switch, so it reaches every host and nobody outside reaches any.
Everything goes when `close` has run; the machine's own network and disks are not touched.
"""

import asyncio
import ctypes
import os
import shutil
import subprocess
from contextlib import suppress
from glob import glob
from pathlib import Path

from chaos.schedule import Ability

CLONE_NEWNET = 0x40000000
REMOUNT_TRIES = 100
DISK_MB = 192
"""Of one party. A tiny model's checkpoints, weights and files take a tenth of it."""
CLOCK_LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def find_abilities() -> frozenset[Ability]:
    """Of this user on this machine."""
    from support import netns

    found = set()
    if netns.is_possible():
        found.add(Ability.NAMESPACES)
    if os.geteuid() == 0 and shutil.which("mount") and can_mount():
        found.add(Ability.MOUNTS)
    if glob(CLOCK_LIBRARY):
        found.add(Ability.CLOCKS)
    return frozenset(found)


def can_mount() -> bool:
    place = Path(f"/tmp/prime-chaos-try-{os.getpid()}")
    place.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place))
        run("umount", str(place))
        return True
    except OSError:
        return False
    finally:
        place.rmdir()


class Host:
    """Where one party lives."""

    def __init__(self, site: "Site", name: str, number: int) -> None:
        self.name = name
        self.folder = site.folder / name
        self.namespace = f"{site.prefix}-{number}" if site.has_links else None
        self.address = f"10.78.0.{number + 1}" if site.has_links else "127.0.0.1"
        self.link = f"p{number}"
        self._switch = site.switch
        self.clock_file = site.folder / f"{name}.clock"
        self.has_disk = site.has_disks
        self.has_clock = site.has_clocks

    @property
    def prefix(self) -> list[str]:
        """Before a command that runs here."""
        return ["nsenter", f"--net=/var/run/netns/{self.namespace}"] if self.namespace else []

    # --- Network ----------------------------------------------------------------------------------------------------

    def cut(self, is_cut: bool) -> None:
        run("ip", "-n", self._switch, "link", "set", self.link, "down" if is_cut else "up")

    def narrow(self, kbit: int | None) -> None:
        """So much a second at most, both ways, with a queue in front; None: as fast as the machine."""
        for namespace, device in ((self.namespace, "eth0"), (self._switch, self.link)):
            assert namespace is not None
            with suppress(OSError):
                run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
            if kbit:
                shape = ("tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "400ms")
                run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape)

    # --- Disk -------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """To the last byte."""
        with (self.folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            for size in (2**20, 4096, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def empty(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    async def protect(self, is_protected: bool) -> None:
        """Only while nobody has a file open for writing; a killed party's child may take a moment to follow it."""
        for left in reversed(range(REMOUNT_TRIES)):
            try:
                run("mount", "-o", f"remount,{'ro' if is_protected else 'rw'}", str(self.folder))
                return
            except OSError:
                if not left:
                    raise
                await asyncio.sleep(0.1)

    # --- Clock ------------------------------------------------------------------------------------------------------

    def set_clock(self, offset_s: int) -> None:
        draft = self.clock_file.with_suffix(".draft")
        draft.write_text(f"{offset_s:+d}\n")
        draft.replace(self.clock_file)

    def clock_variables(self) -> dict[str, str]:
        """For a process whose wall clock follows `set_clock`; the steady clock stays the machine's."""
        return {
            "LD_PRELOAD": glob(CLOCK_LIBRARY)[0],
            "FAKETIME_TIMESTAMP_FILE": str(self.clock_file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }


class Site:
    """All hosts and the switch between them."""

    def __init__(self, folder: Path, abilities: frozenset[Ability]) -> None:
        self.folder = folder
        self.prefix = f"ch{os.getpid() % 100_000}"
        self.switch = f"{self.prefix}-sw"
        self.has_links = Ability.NAMESPACES in abilities
        self.has_disks = Ability.MOUNTS in abilities
        self.has_clocks = Ability.CLOCKS in abilities
        self.hosts: dict[str, Host] = {}
        self._made: list[str] = []
        self._mounted: list[Path] = []

    def open(self) -> None:
        if not self.has_links:
            return
        self._add_namespace(self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "addr", "add", "10.78.255.254/16", "dev", "br0")
        for device in ("br0", "lo"):
            run("ip", "-n", self.switch, "link", "set", device, "up")
        with open(f"/var/run/netns/{self.switch}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot enter the namespace of the switch")

    def add(self, name: str, *, shares: str | None = None) -> Host:
        """A new host; `shares` names one whose network and disk it uses."""
        if shares is not None:
            host = self.hosts[name] = self.hosts[shares]
            return host
        host = self.hosts[name] = Host(self, name, len(self._made) or len(self.hosts) + 1)
        if host.namespace:
            self._add_namespace(host.namespace)
            self._connect(host)
        host.folder.mkdir(parents=True)
        if self.has_disks:
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "tmpfs", str(host.folder))
            self._mounted.append(host.folder)
        if self.has_clocks:
            host.set_clock(0)
        return host

    def _add_namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._made.append(name)

    def _connect(self, host: Host) -> None:
        assert host.namespace is not None
        peer = ("peer", "name", "eth0", "netns", host.namespace)
        run("ip", "-n", self.switch, "link", "add", host.link, "type", "veth", *peer)
        run("ip", "-n", self.switch, "link", "set", host.link, "master", "br0")
        run("ip", "-n", self.switch, "link", "set", host.link, "up")
        run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/16", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", host.namespace, "link", "set", device, "up")

    def close(self) -> None:
        """What was on the small disks stays, in the same place."""
        for folder in self._mounted:
            kept = folder.with_suffix(".kept")
            with suppress(OSError, shutil.Error):
                shutil.copytree(folder, kept, symlinks=True)
            subprocess.run(["umount", "-l", str(folder)], capture_output=True)
            with suppress(OSError):
                kept.replace(folder)
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
