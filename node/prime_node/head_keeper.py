"""Keeps the tree heads this node was shown, has each prove that it continues the last, and compares those of others.

Two that do not fit convict the log: that is said loudly, shown in `status` for ever, and kept on disk as evidence.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from prime_node.heads import (
    Relation,
    Seen,
    compare,
    cut_tile,
    full_tile,
    list_tiles,
    read_log_key,
    relate,
    render_evidence,
)
from prime_node.home import write_whole
from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip import GossipKind, HeadSeen, repeat_ms
from prime_protocol.ids import Digest, NetworkId
from prime_protocol.note import Note, VerifierKey
from prime_protocol.tiles import CHECKPOINT_PATH, LENGTH_BYTES, Bundle, Tile, decode_bundle
from prime_protocol.treehead import TreeHead
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient, Server

log = logging.getLogger(__name__)

OTHERS_MAX = 64
"""Heads of others that wait to be compared; the oldest is dropped."""
CHECKED_MAX = 1024
"""Heads whose comparison is remembered."""
TRIES_MAX = 5
"""How often a head is asked a proof for before it counts as unproven."""
PACE_MS = 500
"""Between two comparisons: each may cost the coordinator a dozen small files."""
SAY_MS = 6_000
"""Between two heads that this node gossips: a little above what one sender may say."""
FORKS_SHOWN_MAX = 16
BUNDLE_BYTES_MAX = TILE_HASHES * (LENGTH_BYTES + LOG_ENTRY_BYTES_MAX)

Say = Callable[[HeadSeen], Awaitable[object]]


class HeadKeeper:
    """One part of the daemon."""

    def __init__(
        self,
        client: HttpClient,
        server: Server,
        network: NetworkId,
        folder: Path,
        *,
        log_key: VerifierKey | None,
        clock: Clock,
        say: Say,
        count_nodes: Callable[[], int],
    ) -> None:
        self._client = client
        self._server = server
        self._network = network
        self._folder = folder
        self._log_key = log_key
        self._clock = clock
        self._say = say
        self.on_kept: Callable[[int], None] = lambda size: None
        """Hears the size of each head that was proven. Set by whoever wants to know."""
        self._count_nodes = count_nodes
        self._shown: bytes | None = None
        self._others: deque[tuple[bytes, int]] = deque(maxlen=OTHERS_MAX)
        self._checked: OrderedDict[tuple[int, Digest], None] = OrderedDict()
        self._news = asyncio.Event()
        self._said: tuple[int, int] | None = None
        self.kept: Seen | None = None
        self.compared = 0
        """Heads of others that were found to tell the same history."""
        self.unproven = 0
        """Heads that no proof came for."""
        self.forks: list[str] = sorted(path.name for path in folder.glob("fork-*")) if folder.exists() else []

    def show(self, note: bytes) -> None:
        """The coordinator showed us this one."""
        self._shown = note
        self._news.set()

    def hear(self, seen: HeadSeen) -> None:
        """Somebody else was shown this one."""
        self._others.append((seen.note, 0))
        self._news.set()

    async def run(self) -> None:
        """For ever."""
        if self._log_key is None:
            self._log_key = await self._learn_log_key()
        self._load(self._log_key)
        while True:
            try:
                async with asyncio.timeout(1):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            await self._step(self._log_key)

    async def _step(self, log_key: VerifierKey) -> None:
        if self._shown is not None:
            note, self._shown = self._shown, None
            await self._keep(note, log_key)
        if self._others:
            note, tries = self._others.popleft()
            await self._compare_other(note, tries, log_key)
            await self._clock.sleep_ms(PACE_MS)
        if self._others:
            self._news.set()
        await self._tell()

    # --- Our own ----------------------------------------------------------------------------------------------------

    def _load(self, log_key: VerifierKey) -> None:
        try:
            self.kept = Seen.open((self._folder / CHECKPOINT_PATH).read_bytes(), log_key)
            self.on_kept(self.kept.size)
        except FileNotFoundError:
            pass
        except (OSError, RemoteError) as error:
            log.warning("the tree head in %s is passed over: %s", self._folder, error)

    async def _keep(self, note: bytes, log_key: VerifierKey) -> None:
        try:
            shown = Seen.open(note, log_key)
        except RemoteError as error:
            log.error("the coordinator shows a tree head that its log did not sign: %s", error)
            return
        if self.kept is not None and await self._judge(self.kept, shown) is not Relation.SAME:
            self.unproven += 1
            return
        if self.kept is None or shown.size > self.kept.size:
            self.kept = shown
            write_whole(self._folder / CHECKPOINT_PATH, note)
        self.on_kept(shown.size)

    async def _tell(self) -> None:
        """What we keep, soon when it is new, now and then when not."""
        if self.kept is None:
            return
        now_ms, size = self._clock.monotonic_ms(), self.kept.size
        if self._said is not None:
            span_ms = repeat_ms(GossipKind.HEAD_SEEN, self._count_nodes())
            if now_ms - self._said[1] < (span_ms if size == self._said[0] else max(SAY_MS, span_ms // 4)):
                return
        self._said = (size, now_ms)
        await self._say(HeadSeen(note=self.kept.note))

    # --- Those of others --------------------------------------------------------------------------------------------

    async def _compare_other(self, note: bytes, tries: int, log_key: VerifierKey) -> None:
        try:
            other = Seen.open(note, log_key)
        except RemoteError:
            return  # not of this log: it says nothing about it
        name = (other.size, other.head.root)
        if self.kept is None or name in self._checked:
            return
        relation = await self._judge(self.kept, other)
        if relation is Relation.UNKNOWN and tries + 1 < TRIES_MAX:
            self._others.append((note, tries + 1))
            return
        self._checked[name] = None
        if len(self._checked) > CHECKED_MAX:
            self._checked.popitem(last=False)
        if relation is Relation.UNKNOWN:
            self.unproven += 1
            log.warning("the coordinator gives no proof for a head over %d entries that others were shown", other.size)
        elif relation is Relation.SAME:
            self.compared += 1

    # --- Proofs -----------------------------------------------------------------------------------------------------

    async def _judge(self, one: Seen, other: Seen) -> Relation:
        """SAME, FORK (said and kept), or UNKNOWN for now."""
        relation, tiles = relate(one, other), dict[str, bytes]()
        if relation is Relation.UNKNOWN:
            found = await self._fetch_tiles(list_tiles(one, other))
            if found is None:
                return Relation.UNKNOWN
            tiles = {tile.path: raw for tile, raw in found.items()}
            relation = compare(one, other, found.__getitem__)
        if relation is Relation.FORK:
            self._convict(one, other, tiles)
        return relation

    def _convict(self, one: Seen, other: Seen, tiles: dict[str, bytes]) -> None:
        name = f"fork-{min(one.size, other.size)}-{max(one.size, other.size)}-{other.head.root.hex()[:8]}.txt"
        log.error("THE LOG TELLS TWO HISTORIES: heads over %d and %d entries do not fit", one.size, other.size)
        if name not in self.forks and len(self.forks) < FORKS_SHOWN_MAX:
            write_whole(self._folder / name, render_evidence(one, other, tiles))
            self.forks.append(name)

    async def _fetch_tiles(self, tiles: list[Tile]) -> dict[Tile, bytes] | None:
        found = {}
        for tile in tiles:
            raw = await self._get(f"/log/{tile.path}", TILE_HASHES * DIGEST_BYTES)
            if raw is None and tile.width < TILE_HASHES:
                raw = await self._get(f"/log/{full_tile(tile).path}", TILE_HASHES * DIGEST_BYTES)
            if raw is None:
                return None
            found[tile] = cut_tile(tile, raw)
        return found

    async def _get(self, path: str, bytes_max: int) -> bytes | None:
        try:
            return await self._client.get(self._server, path, bytes_max=bytes_max)
        except (LocalError, RemoteError) as error:
            log.info("no %s: %s", path, error)
            return None

    async def _learn_log_key(self) -> VerifierKey:
        """From entry 0, which the coordinator has signed. LocalError: not now."""
        note = await self._client.get(self._server, f"/log/{CHECKPOINT_PATH}", bytes_max=NOTE_BYTES_MAX)
        if note is None:
            raise LocalError("the coordinator has signed no tree head yet")
        size = TreeHead.parse(Note.parse(note).text).size
        bundle = Bundle(0, min(size, TILE_HASHES))
        raw = await self._client.get(self._server, f"/log/{bundle.path}", bytes_max=BUNDLE_BYTES_MAX)
        if raw is None:
            raise LocalError("the coordinator does not show the log's first entries just now")
        leaf = decode_bundle(bundle, raw)[0]
        key = read_log_key(leaf, network=self._network, coordinator=self._server.node)
        log.info("the log's key is %s; compare it with what the operator publishes", key)
        return key
