"""Follows the log in the background and replays the ledger's rules, so that a coordinator that breaks one is found.

The follower reads entries up to the newest head that the node has verified, from mirrors or from the coordinator. It
checks their bytes against that head (replay.py), and has them folded in a process of low priority (replay_process.py).
A node that joins a long log works at once and catches up meanwhile, at a bounded share of processor and download.

Wrong bytes only show that a source lies: the next one is asked, and the log is not accused. An entry that is proven to
be in the log and breaks a rule becomes an accusation (accusations.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from prime_node.config import ReplayConfig
from prime_node.log.accusations import AccusationKeeper
from prime_node.log.log_sources import LogSource
from prime_node.log.replay import (
    Finding,
    GetTile,
    HeadSighting,
    HeadSightings,
    ReplayReport,
    TimeWindow,
    check_entries,
    compute_pause_ms,
    make_accusation,
)
from prime_node.log.replay_process import ReplayProcess
from prime_node.log.signed_heads import SignedHead
from prime_protocol.constants import TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.accusation import Accusation, BrokenRule
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.log.tiles import (
    EntryBundle,
    Tile,
    compute_prefix_root,
    list_consistency_tiles,
    list_inclusion_tiles,
)
from prime_protocol.wire.ids import NetworkId
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

POLL_MS = 5_000
"""Between two reads of new entries: each reads the last bundle again, up to 255 known entries."""
SNAPSHOT_ENTRIES = 50_000
SNAPSHOT_MS = 600_000
"""Entries and time between two snapshots of the state. A restart repeats what came after the last one."""
TILES_CACHED_MAX = 1_024
"""Tiles of one head that are kept, 8 kB each. One of level 1 proves 256 bundles."""


class LedgerFollower:
    """The replay of one log. A supervised part of the daemon."""

    def __init__(
        self,
        sources: Sequence[LogSource],
        config: ReplayConfig,
        *,
        network: NetworkId,
        get_keys: Callable[[], KeyChain | None],
        snapshot: Path,
        get_head: Callable[[], SignedHead | None],
        accusations: AccusationKeeper,
        clock: Clock,
    ) -> None:
        self._sources = list(sources)
        """The one in use first."""
        self._config = config
        self._network = network
        self._get_keys = get_keys
        self._snapshot = snapshot
        self._get_head = get_head
        self._accusations = accusations
        self._clock = clock
        self._sightings = HeadSightings()
        self._process: ReplayProcess | None = None
        self._frontier = Frontier()
        self._is_resumed = False
        """The state from the snapshot was found to belong to this log."""
        self._tiles: dict[Tile, bytes] = {}
        self._tiles_of: SignedHead | None = None
        self._saved = (0, 0)
        """Size and time of the last snapshot."""
        self.finding: Finding | None = None
        """The last entry that broke a rule. The replay ends at one that breaks a rule of the ledger."""
        self.problem = ""
        """Why no entries can be read or judged at the moment."""
        self.wrong_bytes: dict[str, str] = {}
        """Sources that sent something else than the log, and what."""

    @property
    def size(self) -> int:
        """Entries replayed so far: they keep every rule."""
        return self._frontier.size

    @property
    def is_broken(self) -> bool:
        """An entry breaks a rule of the ledger: there is no state after it."""
        return self.finding is not None and self.finding.rule is BrokenRule.LEDGER

    async def query(self, function: Callable[Concatenate[LedgerState, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(state, ...)` of the state after the first `size` entries, computed where the state is.

        LocalError: the replay is not running. The state may be behind the log: `function` looks at `state.size`.
        """
        if self._process is None:
            raise LocalError("the log is not being replayed; is replay.mode on?")
        return await self._process.query(function, *args, **kwargs)

    def add_sighting(self, sighting: HeadSighting) -> None:
        self._sightings.add(sighting)

    def handle_loss(self) -> None:
        """The log was restored: the state, and what was seen when, may be of entries that are lost."""
        self._is_resumed = False
        self._sightings = HeadSightings()
        self.wrong_bytes.clear()

    async def run(self) -> None:
        """For ever."""
        while (keys := self._get_keys()) is None:
            await self._clock.sleep_ms(POLL_MS)
        process = await ReplayProcess.start(self._network, keys.founder, self._snapshot, niceness=self._config.niceness)
        try:
            self._take(await process.report())
            self._is_resumed = self.size == 0
            self._saved = (self.size, self._clock.monotonic_ms())
            self._process = process
            log.info("replaying the log's rules from entry %d", self.size)
            while True:
                await self._follow(process)
                await self._clock.sleep_ms(POLL_MS)
        finally:
            self._process = None
            await process.close()

    async def _follow(self, process: ReplayProcess) -> None:
        """Catches up with the newest head."""
        head = self._get_head()
        if head is None or not await self._check_resumed(process, head):
            return
        while self.size < head.size and not self.is_broken:
            read = await self._try_sources(lambda source: self._read_entries(source, head))
            if read is None:
                return
            leaves, read_bytes = read
            cpu_ms = await self._fold(process, leaves, head)
            if self.problem:
                return
            await self._save_if_due(process)
            await self._clock.sleep_ms(
                compute_pause_ms(
                    cpu_ms=cpu_ms,
                    read_bytes=read_bytes,
                    cpu_percent=self._config.cpu_percent,
                    bytes_per_s=self._config.bytes_per_s,
                )
            )
        await self._save_if_due(process)

    async def _check_resumed(self, process: ReplayProcess, head: SignedHead) -> bool:
        """Whether the state is one of this log. A snapshot of another log is dropped."""
        if self._is_resumed:
            return True
        is_ours = False
        if self.size <= head.size:
            root = await self._try_sources(lambda source: self._compute_root(source, head))
            if root is None:
                return False
            is_ours = root == self._frontier.root()
        if not is_ours:
            log.warning("%s is of another log, and is ignored", self._snapshot)
            self._take(await process.reset())
        self._is_resumed = True
        return True

    async def _fold(self, process: ReplayProcess, leaves: Sequence[bytes], head: SignedHead) -> int:
        """Folds verified entries; what it cost."""
        cpu_ms, first, start = 0, self.size, self.size
        for stop, window in self._sightings.split(first, first + len(leaves)):
            report = await process.apply(leaves[start - first : stop - first], self._choose_window(window))
            self._take(report)
            cpu_ms, start = cpu_ms + report.cpu_ms, stop
            if report.finding is not None:
                await self._accuse(report.finding, head)
            if report.unknown_rules:
                self.problem = report.unknown_rules
            if report.finding is not None or report.unknown_rules:
                return cpu_ms
        return cpu_ms

    def _choose_window(self, window: TimeWindow | None) -> TimeWindow | None:
        """A wrong clock is reported once: the entries after it are wrong in the same way."""
        return None if self.finding is not None else window

    def _take(self, report: ReplayReport) -> None:
        self._frontier = report.frontier

    async def _save_if_due(self, process: ReplayProcess) -> None:
        size, now_ms = self._saved[0], self._clock.monotonic_ms()
        if self.size - size >= SNAPSHOT_ENTRIES or (self.size > size and now_ms - self._saved[1] >= SNAPSHOT_MS):
            await process.save()
            self._saved = (self.size, now_ms)

    # --- Findings ---------------------------------------------------------------------------------------------------

    async def _accuse(self, finding: Finding, head: SignedHead) -> None:
        """Stops the node's work, then gets the proof for others: as often as it takes a source to give the tiles."""
        self.finding = finding
        log.error(
            "THE COORDINATOR BROKE A RULE (%s): entry %d of the log: %s", finding.rule, finding.index, finding.problem
        )
        self._accusations.add_finding(finding.index, compute_leaf_hash(finding.leaf), finding.problem)
        while True:
            made = await self._try_sources(lambda source: self._prove(source, finding, head))
            if made is not None:
                self._accusations.add_own(made)
                return
            await self._clock.sleep_ms(POLL_MS)

    async def _prove(self, source: LogSource, finding: Finding, head: SignedHead) -> Accusation:
        get_tile = await self._fetch_tiles(source, head, list_inclusion_tiles(finding.index, head.size))
        return make_accusation(finding, head.head, head.note, get_tile)

    # --- Reading ----------------------------------------------------------------------------------------------------

    async def _try_sources(self, read: Callable[[LogSource], Awaitable[T]]) -> T | None:
        """The result from the first source that has it. A source that fails is asked last from now on."""
        problems = []
        for source in list(self._sources):
            try:
                found = await read(source)
            except LocalError as error:
                problems.append(str(error))
            except RemoteError as error:
                if source.url not in self.wrong_bytes:
                    log.warning("%s sends something else than the log: %s", source.url, error)
                self.wrong_bytes[source.url] = str(error)
                problems.append(f"{source.url} sends something else than the log: {error}")
            else:
                self.problem = ""
                return found
            self._tiles = {}
            self._sources.remove(source)
            self._sources.append(source)
        self.problem = f"cannot read entry {self.size}: {'; '.join(problems)}"
        return None

    async def _read_entries(self, source: LogSource, head: SignedHead) -> tuple[list[bytes], int]:
        """The next entries, verified, and how many bytes were read."""
        first = self.size - self.size % TILE_HASHES
        bundle = EntryBundle(first // TILE_HASHES, min(TILE_HASHES, head.size - first))
        leaves, read_bytes = await source.fetch_entries(bundle)
        tiles = list_consistency_tiles(first + bundle.width, head.size) if first + bundle.width < head.size else []
        get_tile = await self._fetch_tiles(source, head, tiles)
        new = leaves[self.size - first :]
        await asyncio.to_thread(check_entries, self._frontier, new, head.head, get_tile)
        return new, read_bytes

    async def _compute_root(self, source: LogSource, head: SignedHead) -> bytes:
        get_tile = await self._fetch_tiles(source, head, list_consistency_tiles(self.size, head.size))
        return compute_prefix_root(self.size, size=head.size, root=head.head.root, get_tile=get_tile)

    async def _fetch_tiles(self, source: LogSource, head: SignedHead, tiles: Sequence[Tile]) -> GetTile:
        """Through a cache. It is emptied when a source fails, so wrong tiles do not stay in it."""
        if self._tiles_of is not head or len(self._tiles) > TILES_CACHED_MAX:
            self._tiles, self._tiles_of = {}, head
        cache = self._tiles
        cache.update(await source.fetch_tiles(tile for tile in tiles if tile not in cache))
        return cache.__getitem__
