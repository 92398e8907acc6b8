"""Verifies that every signed tree head of the log, ours and those of other nodes, belongs to one history.

A coordinator that shows different histories to different nodes is caught here. The proof is made of the log's tiles.
They come from the coordinator that is being checked, so they count only if they hash to the newer head's signed root.
Then either the older head's root follows from them, or the two signed heads contradict each other: a fork, which
anyone can verify. A fork is logged, shown in `status` for good, and kept on disk as evidence. The one exception is a
log that was restored from a copy and says so: restores.py decides whether this node follows it.

The functions at the top are pure; `HeadMonitor` fetches, compares and saves.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prime_node.log.log_sources import LogSource
from prime_node.log.replay import HeadSighting
from prime_node.log.restores import HeadHistory, Restore, open_restore
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX, NOTE_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import GossipKind, HeadSeen, compute_repeat_ms
from prime_protocol.ledger.entries import LogRecord, NetworkCreated
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    EntryBundle,
    Tile,
    compute_prefix_root,
    list_consistency_tiles,
    list_inclusion_tiles,
)
from prime_protocol.log.tree_head import (
    SignedNote,
    TreeHead,
    VerifierKey,
    cosign_tree_head,
    derive_witness_key,
    encode_cosigned_message,
    open_tree_head,
)
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId
from prime_protocol.wire.messages import Cosigned
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.files import write_atomic
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A tree head and the signed note it came in."""

    head: TreeHead
    note: bytes

    @classmethod
    def open(cls, note: bytes, log_key: VerifierKey) -> "SignedHead":
        """RemoteError: the log's key did not sign it."""
        return cls(open_tree_head(note, [log_key]), note)

    @property
    def size(self) -> int:
        return self.head.size


class HeadRelation(StrEnum):
    """How two heads relate, as far as it is known."""

    SAME = "same"
    FORK = "fork"
    UNKNOWN = "unknown"


def compare_sizes(one: SignedHead, other: SignedHead) -> HeadRelation:
    if one.size != other.size:
        return HeadRelation.UNKNOWN
    return HeadRelation.SAME if one.head.root == other.head.root else HeadRelation.FORK


def list_proof_tiles(one: SignedHead, other: SignedHead) -> list[Tile]:
    """The tiles that are needed to compare them."""
    old, new = sorted((one.size, other.size))
    return list_consistency_tiles(old, new)


def compare_with_tiles(one: SignedHead, other: SignedHead, get_tile: Callable[[Tile], bytes]) -> HeadRelation:
    """SAME or FORK; UNKNOWN where the tiles do not hash to the newer head's root, and so prove nothing."""
    old, new = sorted((one, other), key=lambda seen: seen.size)
    try:
        root = compute_prefix_root(old.size, size=new.size, root=new.head.root, get_tile=get_tile)
    except RemoteError:
        return HeadRelation.UNKNOWN
    return HeadRelation.SAME if root == old.head.root else HeadRelation.FORK


def render_fork(one: SignedHead, other: SignedHead, tiles: dict[str, bytes], remark: str = "") -> bytes:
    """The evidence of a fork: both notes, and the tiles that contradict one of them."""
    text = [
        "Two tree heads of one log, both signed with its key, that belong to different histories.",
        *((remark,) if remark else ()),
        "",
        *(f"--- head over {seen.size} entries\n{seen.note.decode()}" for seen in (one, other)),
    ]
    text += [f"--- {path}\n{raw.hex()}" for path, raw in sorted(tiles.items())]
    return "\n".join(text).encode() + b"\n"


def read_log_key(leaf: bytes, *, network: NetworkId, coordinator: NodeId) -> VerifierKey:
    """The log's key, from entry 0, which the coordinator has signed. RemoteError: it is not that entry."""
    payload = open_envelope(decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX).frame, network=network).payload
    if payload.sender != coordinator:
        raise RemoteError("Payload.sender", f"is {payload.sender}, the coordinator is {coordinator}")
    if payload.kind != NetworkCreated.__name__:
        raise RemoteError("Payload.kind", f"is {payload.kind}, the first entry is {NetworkCreated.__name__}")
    return VerifierKey.parse(decode(NetworkCreated, payload.body).log_key)


PEER_HEADS_MAX = 64
"""Heads of other nodes that wait to be compared; the oldest is dropped."""
CHECKED_MAX = 1024
"""Heads that are not compared again."""
TRIES_MAX = 5
"""Attempts to fetch the proof of a head before it counts as unproven."""
COMPARE_INTERVAL_MS = 500
"""Between two comparisons: each may take a dozen small files from the coordinator."""
PUBLISH_INTERVAL_MS = 6_000
"""Between two heads that this node gossips: a little above the gossip rate limit per sender."""
STEP_MS = 1_000
"""At least this often the monitor checks whether it is time to gossip."""
CONFIRM_MS = 60_000
"""After a start, how long the head on disk is not gossiped before the coordinator has shown one: it may be one that a
restore has lost meanwhile, which other nodes would take for a fork."""
FORKS_SHOWN_MAX = 16
HISTORY_NAME = "history"

PublishHead = Callable[[HeadSeen], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class LossNoticed:
    """The coordinator restored its log, and this node follows it although entries are lost."""

    restore: Restore
    head_size: int
    since_ms: int
    """By this node's clock: what was acknowledged before is in the log."""


class HeadMonitor:
    """Keeps the newest verified head. A supervised part of the daemon."""

    def __init__(
        self,
        client: HttpClient,
        server: ServerAddress,
        network: NetworkId,
        folder: Path,
        *,
        log_key: VerifierKey | None,
        clock: Clock,
        publish: PublishHead,
        count_nodes: Callable[[], int],
        witness: WalletKey,
    ) -> None:
        self._client, self._server, self._network, self._folder = client, server, network, folder
        self._source = LogSource(client, server, "/log")
        self._log_key = log_key
        self.on_log_key: Callable[[VerifierKey], None] = lambda key: None
        """Called once the log's key is known. The daemon sets it."""
        self.on_sighting: Callable[[HeadSighting], None] = lambda sighting: None
        """Called with each verified head that is larger than those before it."""
        self.may_cosign: Callable[[], bool] = lambda: True
        """Whether this node still witnesses heads of this log."""
        self._clock, self._publish = clock, publish
        self.on_verified: Callable[[int], None] = lambda size: None
        """Called with the size of each verified head. The daemon sets it."""
        self.on_cosigned: Callable[[Cosigned], None] = lambda cosigned: None
        """Called with each head that this node has witnessed. The daemon sets it."""
        self._witness, self._witness_key = str(witness.node), derive_witness_key(witness)
        self._head_to_cosign: bytes | None = None
        self.cosigned: SignedHead | None = None
        """The newest head that this node has witnessed, with its cosignature in the note."""
        self._count_nodes = count_nodes
        self._coordinator_head: tuple[bytes, int] | None = None
        """The note, and when it came."""
        self._peer_heads: deque[tuple[bytes, int]] = deque(maxlen=PEER_HEADS_MAX)
        self._checked: OrderedDict[tuple[int, Digest], None] = OrderedDict()
        self._compare_due_ms = 0
        """Before this time no other head of a node is compared."""
        self._wakeup = asyncio.Event()
        self._restored_size = 0
        self.history = HeadHistory()
        self.on_loss: Callable[[LossNoticed], None] = lambda loss: None
        self._gossip_from_ms = clock.monotonic_ms() + CONFIRM_MS
        self._published: tuple[int, int] | None = None
        self.latest: SignedHead | None = None
        self.compared = 0
        """Heads of other nodes that belong to the same history."""
        self.unproven = 0
        """Heads without a proof."""
        self.forks: list[str] = sorted(path.name for path in folder.glob("fork-*")) if folder.exists() else []

    def add_coordinator_head(self, note: bytes, restored_size: int = 0) -> None:
        """A head that the coordinator sent to this node, and where it says that the log was restored last."""
        self._coordinator_head = (note, self._clock.now_ms())
        self._restored_size = restored_size
        self._wakeup.set()

    def add_peer_head(self, seen: HeadSeen) -> None:
        """A head that the coordinator sent to another node."""
        self._peer_heads.append((seen.note, 0))
        self._wakeup.set()

    def add_head_to_cosign(self, note: bytes) -> None:
        """A head that the coordinator asks this validator to witness."""
        self._head_to_cosign = note
        self._wakeup.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        if self._log_key is None:
            self._log_key = await self._fetch_log_key()
        self.on_log_key(self._log_key)
        self._load(self._log_key)
        while True:
            await wait_until_set(self._wakeup, self._compute_wait_ms())
            self._wakeup.clear()
            await self._step(self._log_key)

    def _compute_wait_ms(self) -> int:
        """Until the next step, if no head comes before."""
        return min(STEP_MS, max(0, self._compare_due_ms - self._clock.monotonic_ms())) if self._peer_heads else STEP_MS

    async def _step(self, log_key: VerifierKey) -> None:
        if self._coordinator_head is not None:
            (note, shown_ms), self._coordinator_head = self._coordinator_head, None
            await self._verify_and_save(note, log_key, shown_ms=shown_ms, is_newest=True)
        # Never behind a pause: a cosignature that comes after its round is published does not count.
        if self._head_to_cosign is not None:
            note, self._head_to_cosign = self._head_to_cosign, None
            await self._cosign(note, log_key)
        if self._peer_heads and self._clock.monotonic_ms() >= self._compare_due_ms:
            note, tries = self._peer_heads.popleft()
            await self._check_peer_head(note, tries, log_key)
            self._compare_due_ms = self._clock.monotonic_ms() + COMPARE_INTERVAL_MS
        await self._publish_latest()

    # --- Our own ----------------------------------------------------------------------------------------------------

    def _load(self, log_key: VerifierKey) -> None:
        try:
            self.latest = SignedHead.open((self._folder / CHECKPOINT_PATH).read_bytes(), log_key)
            self.on_verified(self.latest.size)
        except FileNotFoundError:
            pass
        except (OSError, RemoteError) as error:
            log.warning("ignoring the tree head in %s: %s", self._folder, error)
        try:
            self.history = HeadHistory.decode((self._folder / HISTORY_NAME).read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, RemoteError) as error:
            log.warning("ignoring the older tree heads in %s: %s", self._folder, error)

    def _save_history(self, history: HeadHistory) -> None:
        self.history = history
        write_atomic(self._folder / HISTORY_NAME, history.encode())

    async def _verify_and_save(
        self, note: bytes, log_key: VerifierKey, *, shown_ms: int, is_newest: bool
    ) -> SignedHead | None:
        """The head, if it belongs to the history that this node knows."""
        try:
            shown = SignedHead.open(note, log_key)
        except RemoteError as error:
            log.error("the coordinator sent a tree head that the log's key did not sign: %s", error)
            return None
        if self.latest is not None and not await self._is_continued(self.latest, shown, is_newest=is_newest):
            self.unproven += 1
            return None
        if self.latest is None or shown.size > self.latest.size:
            self.latest = shown
            write_atomic(self._folder / CHECKPOINT_PATH, note)
            self._save_history(self.history.add(shown.size, note, shown_ms))
            self.on_sighting(HeadSighting(shown.size, shown_ms, is_newest))
        self._gossip_from_ms = 0
        await self._note_restore(shown)
        self.on_verified(shown.size)
        return shown

    async def _is_continued(self, latest: SignedHead, shown: SignedHead, *, is_newest: bool) -> bool:
        """Whether a head belongs to the history of ours, or to one that was restored."""
        relation, tiles = await self._relate(latest, shown)
        if relation is HeadRelation.SAME:
            return True
        # A coordinator's newest head never becomes smaller, but for a restore. One that it asks to cosign may be older.
        if relation is HeadRelation.FORK or (is_newest and shown.size < latest.size):
            if await self._follow_restore(latest, shown):
                return True
            self._gossip_from_ms = 0
        if relation is HeadRelation.FORK:
            self._record_fork(latest, shown, tiles)
        return False

    async def _cosign(self, note: bytes, log_key: VerifierKey) -> None:
        shown = await self._verify_and_save(note, log_key, shown_ms=self._clock.now_ms(), is_newest=False)
        if shown is None or not self.may_cosign():
            return
        time_s = self._clock.now_ms() // 1000
        witnessed = cosign_tree_head(note, self._witness, self._witness_key, time_s=time_s)
        self.cosigned = SignedHead(shown.head, witnessed)
        signature = self._witness_key.sign(encode_cosigned_message(shown.head.text, time_s))
        self.on_cosigned(Cosigned(head_size=shown.size, time_s=time_s, signature=signature))

    async def _publish_latest(self) -> None:
        """Gossips the latest head: soon when it is new, otherwise now and then."""
        if self.latest is None:
            return
        now_ms, size = self._clock.monotonic_ms(), self.latest.size
        if now_ms < self._gossip_from_ms:
            return
        if self._published is not None:
            span_ms = compute_repeat_ms(GossipKind.HEAD_SEEN, self._count_nodes())
            if now_ms - self._published[1] < (
                span_ms if size == self._published[0] else max(PUBLISH_INTERVAL_MS, span_ms // 4)
            ):
                return
        self._published = (size, now_ms)
        # A cosigned note tells other nodes when this validator had seen the head.
        newest = self.cosigned if self.cosigned is not None and self.cosigned.head == self.latest.head else self.latest
        await self._publish(HeadSeen(note=newest.note))

    # --- Those of others --------------------------------------------------------------------------------------------

    async def _check_peer_head(self, note: bytes, tries: int, log_key: VerifierKey) -> None:
        try:
            other = SignedHead.open(note, log_key)
        except RemoteError:
            return  # not signed by this log, so it says nothing about it
        name = (other.size, other.head.root)
        if self.latest is None or name in self._checked:
            return
        relation, tiles = await self._relate(self.latest, other)
        if relation is HeadRelation.UNKNOWN and tries + 1 < TRIES_MAX:
            self._peer_heads.append((note, tries + 1))
            return
        self._checked[name] = None
        if len(self._checked) > CHECKED_MAX:
            self._checked.popitem(last=False)
        if relation is HeadRelation.UNKNOWN:
            self.unproven += 1
            log.warning("the coordinator gives no proof for another node's head of %d entries", other.size)
        elif relation is HeadRelation.SAME:
            self.compared += 1
        elif self.history.is_lost(other.size, self._clock.now_ms()):
            log.warning("another node has a head of %d entries, which the restore of the log has lost", other.size)
        else:
            self._record_fork(self.latest, other, tiles)

    # --- Proofs -----------------------------------------------------------------------------------------------------

    async def _relate(self, one: SignedHead, other: SignedHead) -> tuple[HeadRelation, dict[str, bytes]]:
        """And the tiles that show it; UNKNOWN may change with a later attempt."""
        relation = compare_sizes(one, other)
        if relation is not HeadRelation.UNKNOWN:
            return relation, {}
        found = await self._fetch_tiles(list_proof_tiles(one, other))
        if found is None:
            return HeadRelation.UNKNOWN, {}
        return compare_with_tiles(one, other, found.__getitem__), {tile.path: raw for tile, raw in found.items()}

    # --- Restores ---------------------------------------------------------------------------------------------------

    async def _note_restore(self, shown: SignedHead) -> None:
        """Remember the newest restore that our history contains: it excuses no loss that comes after it."""
        known = self.history.restore
        if 0 < self._restored_size < shown.size and (known is None or known.size != self._restored_size):
            restore = await self._fetch_restore(shown)
            if restore is not None:
                log.warning("the coordinator restored its log from a copy of %d entries", restore.size)
                self._save_history(self.history.note(restore))

    async def _follow_restore(self, latest: SignedHead, shown: SignedHead) -> bool:
        """Go on with a log that was restored, if its loss is within bounds."""
        if not 0 < self._restored_size < min(latest.size, shown.size):
            return False
        restore = await self._fetch_restore(shown)
        if restore is None:
            return False
        now_ms, kept = self._clock.now_ms(), self.history.find_kept(restore)
        objection = self.history.find_objection(restore, now_ms)
        if kept is not None and not objection:
            before = SignedHead(TreeHead.parse(SignedNote.parse(kept.note).text), kept.note)
            relation, _ = await self._relate(before, shown)
            if relation is HeadRelation.UNKNOWN:
                return False
            objection = "" if relation is HeadRelation.SAME else f"it does not contain the first {kept.size} entries"
        if objection:
            log.error("THE COORDINATOR CLAIMS A RESTORE, AND THIS NODE DOES NOT FOLLOW IT: %s", objection)
            self._record_fork(latest, shown, {}, f"The log says that it was restored. Not followed: {objection}.")
            return False
        log.error(
            "THE COORDINATOR LOST ENTRIES: it restored its log from a copy of %d entries, this node has seen %d;"
            " what this node sent meanwhile is sent again, see: prime-node rollouts",
            restore.size,
            latest.size,
        )
        self._save_history(self.history.follow(restore, lost_size=latest.size, now_ms=now_ms))
        self.latest = None
        self.on_loss(LossNoticed(restore, shown.size, kept.seen_ms if kept is not None else 0))
        return True

    async def _fetch_restore(self, shown: SignedHead) -> Restore | None:
        """The entry that notes the restore, proven to be in the log of this head."""
        size = self._restored_size
        first = size - size % TILE_HASHES
        bundle = EntryBundle(first // TILE_HASHES, min(TILE_HASHES, shown.size - first))
        try:
            leaves, _ = await self._source.fetch_entries(bundle)
            tiles = await self._source.fetch_tiles(list_inclusion_tiles(size, shown.size))
            return open_restore(
                leaves[size - first],
                size,
                shown.head,
                tiles.__getitem__,
                network=self._network,
                coordinator=self._server.node,
            )
        except (LocalError, RemoteError) as error:
            log.warning("the coordinator does not show that it restored its log: %s", error)
            return None

    # --- Evidence ---------------------------------------------------------------------------------------------------

    def _record_fork(self, one: SignedHead, other: SignedHead, tiles: dict[str, bytes], remark: str = "") -> None:
        name = f"fork-{min(one.size, other.size)}-{max(one.size, other.size)}-{other.head.root.hex()[:8]}.txt"
        log.error("THE LOG HAS FORKED: the heads of %d and %d entries contradict each other", one.size, other.size)
        if name not in self.forks and len(self.forks) < FORKS_SHOWN_MAX:
            write_atomic(self._folder / name, render_fork(one, other, tiles, remark))
            self.forks.append(name)

    async def _fetch_tiles(self, tiles: list[Tile]) -> dict[Tile, bytes] | None:
        try:
            return await self._source.fetch_tiles(tiles)
        except (LocalError, RemoteError) as error:
            log.info("cannot fetch a proof: %s", error)
            return None

    async def _fetch_log_key(self) -> VerifierKey:
        """From entry 0, which the coordinator has signed. LocalError: not available yet."""
        note = await self._client.get(self._server, f"/log/{CHECKPOINT_PATH}", bytes_max=NOTE_BYTES_MAX)
        if note is None:
            raise LocalError("the coordinator has signed no tree head yet")
        size = TreeHead.parse(SignedNote.parse(note).text).size
        bundle = EntryBundle(0, min(size, TILE_HASHES))
        leaves, _ = await self._source.fetch_entries(bundle)
        key = read_log_key(leaves[0], network=self._network, coordinator=self._server.node)
        log.info("the log's key is %s; compare it with the key that the operator publishes", key)
        return key
