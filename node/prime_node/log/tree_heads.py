"""Verifies that every signed tree head of the log, ours and those of other nodes, belongs to one history.

A coordinator that shows different histories to different nodes is caught here. The proof is made of the log's tiles.
They come from the coordinator that is being checked, so they count only if they hash to the newer head's signed root.
Then either the older head's root follows from them, or the two signed heads contradict each other: a fork, which
anyone can verify. A fork is logged, shown in `status` for good, and kept on disk as evidence. The one exception is a
log that was restored from a copy and says so: restores.py decides whether this node follows it.

signed_heads.py has the pure comparison; `HeadMonitor` fetches, compares and saves.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from prime_node.log.key_follower import FetchedKeys, KeyFollower
from prime_node.log.log_sources import LogSource
from prime_node.log.replay import HeadSighting
from prime_node.log.restores import HeadHistory, LossNoticed, Restore, open_restore
from prime_node.log.signed_heads import (
    HeadRelation,
    SignedHead,
    compare_sizes,
    compare_with_tiles,
    list_proof_tiles,
    render_fork,
    render_stolen_head,
)
from prime_protocol.constants import LOG_ENTRIES_MAX, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import GossipKind, HeadSeen, compute_repeat_ms
from prime_protocol.keys.chain import KeyChain
from prime_protocol.log.tiles import (
    CHECKPOINT_PATH,
    EntryBundle,
    Tile,
    list_inclusion_tiles,
)
from prime_protocol.log.tree_head import (
    SignedNote,
    TreeHead,
    VerifierKey,
    cosign_tree_head,
    derive_witness_key,
    encode_cosigned_message,
)
from prime_protocol.wire.ids import Digest, NetworkId
from prime_protocol.wire.messages import Cosigned
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.files import write_atomic
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress

log = logging.getLogger(__name__)


PEER_HEADS_MAX = 64
"""Heads of other nodes that wait to be compared; the oldest is dropped."""
CHECKED_MAX = 1024
"""Heads that are not compared again."""
TRIES_MAX = 5
"""Attempts to fetch the proof of a head before it counts as unproven."""
COMPARE_INTERVAL_MS = 500
"""Between two comparisons: each may take a dozen small files from the coordinator."""
STEP_MS = 1_000
"""At least this often the monitor checks whether it is time to gossip."""
CONFIRM_MS = 60_000
"""After a start, how long the head on disk is not gossiped before the coordinator has shown one: it may be one that a
restore has lost meanwhile, which other nodes would take for a fork."""
FORKS_SHOWN_MAX = 16
HISTORY_NAME = "history"
KEY_PAUSE_MS = 5_000
"""Between two requests for the log's keys."""
KEY_TRIES_MAX = 3
"""Requests for the log's keys that may fail before the keys that are known count as all."""

PublishHead = Callable[[HeadSeen], Awaitable[object]]


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
        self._open_keys(log_key)
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
        self._published_ms: int | None = None
        self.latest: SignedHead | None = None
        self.compared = 0
        """Heads of other nodes that belong to the same history."""
        self.unproven = 0
        """Heads without a proof."""
        self.stolen_heads = sorted(path.name for path in folder.glob("rotated-key-*")) if folder.exists() else []
        """Files with heads that a rotated key has signed."""
        self.forks: list[str] = sorted(path.name for path in folder.glob("fork-*")) if folder.exists() else []

    def _open_keys(self, log_key: VerifierKey | None) -> None:
        client, server = self._client, self._server
        self._keys = KeyFollower(
            self._source, self._folder, network=self._network, coordinator=server.node, log_key=log_key
        )
        if self._keys.chain is not None:
            client.server_keys.set_chain(server.node, self._keys.chain)
        client.server_keys.on_rotation = self.request_keys
        self._key_due_ms: int | None = None
        """When the log's keys are asked for again; None: there is no reason to."""
        self._key_failures = 0
        self.on_keys: Callable[[KeyChain, int], None] = lambda keys, size: None
        """Called with the log's keys, and the number of entries that they are all keys of. The daemon sets it."""

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

    @property
    def keys(self) -> KeyChain | None:
        """Those of the log, as far as this node has followed them."""
        return self._keys.chain

    def request_keys(self) -> None:
        """A key of the log may have been rotated: ask for the list soon."""
        if self._key_due_ms is None:
            self._key_due_ms = self._clock.monotonic_ms()
            self._wakeup.set()

    async def run(self) -> None:
        """Until it is cancelled. LocalError: the log's keys are not known yet."""
        if self.keys is None:
            self._accept_keys(await self._keys.fetch())
        else:
            self.on_keys(self.keys, 0)
        self._load(self._get_keys())
        while True:
            await wait_until_set(self._wakeup, self._compute_wait_ms())
            self._wakeup.clear()
            await self._step()

    def _get_keys(self) -> KeyChain:
        assert self.keys is not None, "a step comes after the keys are known"
        return self.keys

    def _compute_wait_ms(self) -> int:
        """Until the next step, if no head comes before."""
        return min(STEP_MS, max(0, self._compare_due_ms - self._clock.monotonic_ms())) if self._peer_heads else STEP_MS

    async def _step(self) -> None:
        if self._coordinator_head is not None:
            (note, shown_ms), self._coordinator_head = self._coordinator_head, None
            await self._verify_and_save(note, shown_ms=shown_ms, is_newest=True)
        if self._key_due_ms is not None and self._clock.monotonic_ms() >= self._key_due_ms:
            await self._follow_keys()
        # Never behind a pause: a cosignature that comes after its round is published does not count.
        if self._head_to_cosign is not None:
            note, self._head_to_cosign = self._head_to_cosign, None
            await self._cosign(note)
        if self._peer_heads and self._clock.monotonic_ms() >= self._compare_due_ms:
            note, tries = self._peer_heads.popleft()
            await self._check_peer_head(note, tries)
            self._compare_due_ms = self._clock.monotonic_ms() + COMPARE_INTERVAL_MS
        await self._publish_latest()

    # --- Keys -------------------------------------------------------------------------------------------------------

    async def _follow_keys(self) -> None:
        """Take the coordinator's list of keys, if it continues ours and its head continues our history."""
        try:
            fetched = await self._keys.fetch()
            shown = SignedHead(fetched.head, fetched.note)
            if self.latest is not None and not await self._is_continued(self.latest, shown, is_newest=True):
                raise RemoteError("tree_head", "of the rotation does not continue the history of this node")
        except (LocalError, RemoteError) as error:
            log.warning("cannot follow the log's keys: %s", error)
            self._key_failures += 1
            self._key_due_ms = self._clock.monotonic_ms() + KEY_PAUSE_MS
            if self._key_failures >= KEY_TRIES_MAX:
                self._key_due_ms, self._key_failures = None, 0
                self.on_keys(self._get_keys(), LOG_ENTRIES_MAX)
            return
        self._key_due_ms, self._key_failures = None, 0
        self._accept_keys(fetched)

    def _accept_keys(self, fetched: FetchedKeys) -> None:
        self._keys.accept(fetched)
        self._client.server_keys.set_chain(self._server.node, fetched.chain)
        self.on_keys(fetched.chain, fetched.head.size)

    def _explain_refused_head(self, note: bytes, error: RemoteError) -> None:
        """A head that the log's key of its size did not sign: is it by a rotated key, or by one that is not known?"""
        try:
            entry = self._get_keys().find_rotated_signer(note)
            size = TreeHead.parse(SignedNote.parse(note).text).size
        except RemoteError:
            return  # no tree head, or a bad signature
        if entry is None:
            self.request_keys()
            return
        name = f"rotated-key-{size}-{sha256(note).hexdigest()[:8]}.txt"
        if name not in self.stolen_heads and len(self.stolen_heads) < FORKS_SHOWN_MAX:
            log.error("A ROTATED KEY SIGNS HEADS: one of %d entries %s", size, error.problem)
            write_atomic(self._folder / name, render_stolen_head(note, entry))
            self.stolen_heads.append(name)

    # --- Our own ----------------------------------------------------------------------------------------------------

    def _load(self, keys: KeyChain) -> None:
        try:
            self.latest = SignedHead.open((self._folder / CHECKPOINT_PATH).read_bytes(), keys)
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

    async def _verify_and_save(self, note: bytes, *, shown_ms: int, is_newest: bool) -> SignedHead | None:
        """The head, if it belongs to the history that this node knows."""
        try:
            shown = SignedHead.open(note, self._get_keys())
        except RemoteError as error:
            log.error("the coordinator sent a tree head that the log's key did not sign: %s", error)
            self._explain_refused_head(note, error)
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

    async def _cosign(self, note: bytes) -> None:
        shown = await self._verify_and_save(note, shown_ms=self._clock.now_ms(), is_newest=False)
        if shown is None or not self.may_cosign():
            return
        time_s = self._clock.now_ms() // 1000
        witnessed = cosign_tree_head(note, self._witness, self._witness_key, time_s=time_s)
        self.cosigned = SignedHead(shown.head, witnessed)
        signature = self._witness_key.sign(encode_cosigned_message(shown.head.text, time_s))
        self.on_cosigned(Cosigned(head_size=shown.size, time_s=time_s, signature=signature))

    async def _publish_latest(self) -> None:
        """Gossips the latest head now and then: others compare it with theirs, which need not be of the same size."""
        if self.latest is None:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._gossip_from_ms:
            return
        if self._published_ms is not None:
            span_ms = compute_repeat_ms(GossipKind.HEAD_SEEN, self._count_nodes())
            if now_ms - self._published_ms < span_ms:
                return
        self._published_ms = now_ms
        # A cosigned note tells other nodes when this validator had seen the head.
        newest = self.cosigned if self.cosigned is not None and self.cosigned.head == self.latest.head else self.latest
        await self._publish(HeadSeen(note=newest.note))

    # --- Those of others --------------------------------------------------------------------------------------------

    async def _check_peer_head(self, note: bytes, tries: int) -> None:
        try:
            other = SignedHead.open(note, self._get_keys())
        except RemoteError as error:
            # Not signed by this log, so it says nothing about it. A rotation is learned from the coordinator's heads:
            # any node can send notes by unknown keys.
            if self._get_keys().is_by_rotated_key(note):
                self._explain_refused_head(note, error)
            return
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
                coordinator=self._get_keys().get_coordinator(size),
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
