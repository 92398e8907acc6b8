"""How each kind of fault is done to a party, and undone. Rim: signals, links, disks, clocks, bits."""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chaos.chain import ChaosChain
from chaos.hosts import Host
from chaos.parties import Stage, port_of
from chaos.restoring import MirrorCopy
from chaos.schedule import Fault, Kind
from chaos.service_manager import Keeper
from chaos.services import Bucket, Postgres

THIEF = "import socket,sys,time; s=socket.create_server((sys.argv[1],int(sys.argv[2]))); time.sleep(600)"
"""Holds a port until it is killed."""
REFUSED_S = 20.0
"""How long a party is watched that was given a file it must not accept."""
FLAP_S = 0.4
COPIED = ".before-flip"


class Breaker:
    """Breaks things and puts them back."""

    def __init__(
        self,
        stage: Stage,
        keepers: dict[str, Keeper],
        postgres: Postgres | None,
        bucket: Bucket | None,
        chain: ChaosChain | None,
        copy: MirrorCopy | None,
    ) -> None:
        self._stage = stage
        self._keepers = keepers
        self._postgres = postgres
        self._bucket = bucket
        self._chain = chain
        self._copy = copy
        self._thief: subprocess.Popen[bytes] | None = None
        self._flapping: asyncio.Task[None] | None = None

    async def inject(self, fault: Fault) -> None:
        keeper = self._keepers[fault.party]
        host, paired = keeper.host, self._on(fault.party)
        match fault.kind:
            case Kind.KILL:
                keeper.send(signal.SIGKILL)
            case Kind.RESTART:
                await keeper.hold(signal.SIGTERM)
            case Kind.FREEZE:
                keeper.send(signal.SIGSTOP)
            case Kind.PARTITION:
                host.cut(True)
            case Kind.SLOW:
                host.narrow(fault.size)
            case Kind.LOSSY:
                self._flapping = asyncio.create_task(flap(host, fault.size))
            case Kind.CLOCK_AHEAD | Kind.CLOCK_BEHIND:
                host.set_clock(fault.size if fault.kind is Kind.CLOCK_AHEAD else -fault.size)
            case Kind.DISK_FULL:
                host.fill()
            case Kind.DISK_READ_ONLY:
                for each in paired:
                    await each.hold()
                await host.protect(True)
                for each in paired:
                    each.release()
            case Kind.PORT_TAKEN:
                await keeper.hold()
                self._steal(fault.party)
                keeper.release()
            case Kind.DATABASE_GONE:
                assert self._postgres is not None
                self._postgres.stop()
            case Kind.OBJECTS_GONE:
                assert self._bucket is not None
                await self._bucket.go_away(overrun=bool(fault.salt % 2))
            case Kind.CHAIN_GONE:
                assert self._chain is not None
                self._chain.go_away(silently=bool(fault.salt % 2))
            case Kind.DISK_LOST:
                assert self._copy is not None
                await keeper.hold()
                await self._copy.lose_and_restore()
                keeper.release()
            case _:
                await keeper.hold()
                self._flip(fault)
                keeper.release()

    async def cure(self, fault: Fault) -> str:
        """What a human had to do, if anything."""
        keeper = self._keepers[fault.party]
        host = keeper.host
        match fault.kind:
            case Kind.DISK_LOST:
                return "restored from a mirror"
            case Kind.RESTART:
                keeper.release()
            case Kind.FREEZE:
                keeper.send(signal.SIGCONT)
            case Kind.PARTITION:
                host.cut(False)
            case Kind.SLOW:
                host.narrow(None)
            case Kind.LOSSY:
                await self._calm()
            case Kind.CLOCK_AHEAD | Kind.CLOCK_BEHIND:
                host.set_clock(0)
            case Kind.DISK_FULL:
                host.empty()
            case Kind.DISK_READ_ONLY:
                await host.protect(False)
            case Kind.PORT_TAKEN:
                self._give_back()
            case Kind.DATABASE_GONE:
                assert self._postgres is not None
                await self._postgres.start()
            case Kind.OBJECTS_GONE:
                assert self._bucket is not None
                await self._bucket.come_back()
            case Kind.CHAIN_GONE:
                assert self._chain is not None
                await self._chain.come_back()
            case Kind.FLIP_LOG | Kind.FLIP_KEYSTORE:
                return await self._judge_refusal(fault)
        return ""

    def _on(self, name: str) -> list[Keeper]:
        """Everybody on the same host."""
        return [each for each in self._keepers.values() if each.host is self._keepers[name].host]

    async def _calm(self) -> None:
        assert self._flapping is not None
        self._flapping.cancel()
        await asyncio.gather(self._flapping, return_exceptions=True)

    # --- Ports ------------------------------------------------------------------------------------------------------

    def _steal(self, name: str) -> None:
        host = self._keepers[name].host
        words = [*host.prefix, sys.executable, "-c", THIEF, host.address, str(port_of(self._stage, name))]
        self._thief = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def _give_back(self) -> None:
        if self._thief is not None:
            self._thief.kill()
            self._thief.wait()
            self._thief = None

    # --- Bits at rest -----------------------------------------------------------------------------------------------

    def _flip(self, fault: Fault) -> None:
        files = [path for path in self._flippable(fault) if path.is_file() and path.stat().st_size]
        if fault.kind in (Kind.FLIP_LOG, Kind.FLIP_KEYSTORE):
            for path in files:
                shutil.copy2(path, path.with_name(path.name + COPIED))
        flip_bits(files, fault.size, random.Random(fault.salt))

    def _flippable(self, fault: Fault) -> list[Path]:
        home = self._keepers[fault.party].host.folder / "home"
        match fault.kind:
            case Kind.FLIP_LOG:
                return sorted(home.glob("log.db*"))
            case Kind.FLIP_MIRROR:
                return sorted((home / "mirror").rglob("*"))
            case Kind.FLIP_JOURNAL:
                return [
                    home / "state",
                    home / "run.json",
                    *sorted(home.glob("journal.db*")),
                    *(home / "heads").glob("*"),
                ]
            case Kind.FLIP_CACHE:
                return sorted((home / "weights").rglob("*"))
            case Kind.FLIP_SHARDS:
                return sorted((home.parent / "store").rglob("*"))
            case Kind.FLIP_KEYSTORE:
                return [home / "key.json"]
        raise AssertionError(f"{fault.kind} flips nothing")

    async def _judge_refusal(self, fault: Fault) -> str:
        """Either it works with what it has, or it says no and is given the copy; it never works with something else."""
        keeper = self._keepers[fault.party]
        ends = len(keeper.ends)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFUSED_S):
                while len(keeper.ends) < ends + 2:
                    await asyncio.sleep(0.1)
        copies = sorted(keeper.host.folder.joinpath("home").glob(f"*{COPIED}"))
        if len(keeper.ends) == ends:
            for path in copies:
                # A running node has read its key: the file's other fields are for people, and for this harness.
                path.replace(plain_name(path)) if fault.kind is Kind.FLIP_KEYSTORE else path.unlink()
            return ""
        await keeper.hold()
        for path in copies:
            path.replace(plain_name(path))
        keeper.release()
        return "refused to start; the file was put back from a copy"


def plain_name(copy: Path) -> Path:
    return copy.with_name(copy.name.removesuffix(COPIED))


async def flap(host: Host, percent: int) -> None:
    """Everything that is sent in this share of each cycle is lost, as on a radio link."""
    try:
        while True:
            host.cut(True)
            await asyncio.sleep(FLAP_S * percent / 100)
            host.cut(False)
            await asyncio.sleep(FLAP_S * (1 - percent / 100))
    finally:
        host.cut(False)


def flip_bits(files: Sequence[Path], count: int, dice: random.Random) -> None:
    """Bits anywhere in these files, each byte as likely as any other."""
    sizes = [path.stat().st_size for path in files]
    for path in dice.choices(files, sizes, k=count) if files else ():
        raw = bytearray(path.read_bytes())
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        path.write_bytes(raw)
