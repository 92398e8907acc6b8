"""Verifies a mirror of any log offline: signed head, every entry, every rule, every tile, every noted snapshot.

It trusts nothing but, on request, a snapshot that the log itself notes. Memory is bounded: the mirror is read in
chunks, the ledger state and one tile per level are kept. Signatures, which take most of the time, are verified by a
pool of processes ahead of the fold; the fold applies the entries in order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from prime_coordinator.log.mirror import list_new_parts
from prime_coordinator.log.snapshots import read_snapshot_file
from prime_coordinator.log.tree import LogTree
from prime_protocol.constants import DIGEST_BYTES, TILE_HASHES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger.entries import SnapshotNoted
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.randomness_chain import RandomnessChain
from prime_protocol.ledger.replay import Ledger, verify_leaf
from prime_protocol.ledger.snapshots.snapshot import SNAPSHOT_FORMAT, compute_snapshot_digest, encode_snapshot
from prime_protocol.log.merkle import build_consistency_proof, compute_leaf_hash, compute_root, verify_consistency
from prime_protocol.log.tiles import EntryBundle, Tile, list_new_bundles, list_new_tiles, make_node_reader
from prime_protocol.log.tree_head import SignedNote, TreeHead, VerifierKey, parse_origin
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import NetworkId
from prime_protocol.wire.typed_data import Domain
from prime_runtime.log_files import (
    BUNDLE_BYTES_MAX,
    list_snapshots,
    read_bounded,
    read_bundle,
    read_tile,
    read_tree_head,
)

BUNDLES_PER_CHUNK = 8
"""Bundles of 256 entries that a process verifies at a time."""
CHUNKS_AHEAD = 3
"""Chunks for each process that are verified ahead of the fold."""
POOL_ENTRIES_MIN = 8_192
"""A shorter log is verified in this process: starting others takes longer."""

OnProgress = Callable[[int, int], None]
"""Called with the number of entries verified so far, and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What the caller brings and wants."""

    key: VerifierKey | None = None
    """A key of the log, its newest or an earlier one. None: those that the log itself names, which proves consistency
    but not whose log it is."""
    remembered: bytes | None = None
    """A signed head from earlier: the log must extend it."""
    is_from_snapshot: bool = False
    """Trust the newest snapshot in the mirror that the log notes, and verify from there."""
    processes: int = 1
    on_progress: OnProgress = lambda done, total: None
    on_snapshot: Callable[[int, bytes], None] = lambda size, snapshot: None
    """Called with each replayed state whose digest the log notes."""


@dataclass(slots=True, kw_only=True)
class VerifiedLog:
    """A log that passed every check."""

    head: TreeHead
    keys: KeyChain
    is_key_given: bool
    ledger: Ledger
    first: int = 0
    """Entries before this one were not verified: the state after them comes from a snapshot that the log notes."""
    snapshots: int = 0
    """Noted digests that are those of the replayed state."""
    unknown_snapshots: int = 0
    """Noted digests of another format, which could not be compared."""
    partial_files: int = 0
    """Superseded partial files that are the beginning of the full file."""
    remembered: TreeHead | None = None


@dataclass(frozen=True, slots=True)
class NotedSnapshot:
    """A digest in the log, and which entry has it."""

    index: int
    entry: SnapshotNoted


def verify_log(mirror: Path, options: VerifyOptions | None = None) -> VerifiedLog:
    """Verify everything that the files alone can show; RemoteError names the first thing that is wrong."""
    options = options or VerifyOptions()
    note = read_tree_head(mirror)
    claimed = TreeHead.parse(SignedNote.parse(note).text)
    network = parse_origin(claimed.origin)
    if claimed.size == 0:
        raise RemoteError("tree_head.size", "is 0: the log is empty")
    noted, keys = _scan_entries(mirror, claimed.size, network)
    if options.key is not None and not keys.has_log_key(options.key):
        raise RemoteError("note.signatures", f"are of a log that never had the key {options.key}")
    head = _open_head("tree_head", note, keys)
    remembered = _open_remembered(options.remembered, head, keys)
    verified = VerifiedLog(
        head=head,
        keys=keys,
        is_key_given=options.key is not None,
        ledger=Ledger(network),
        remembered=remembered,
    )
    _LogVerification(mirror, verified, noted, options).run()
    if KeyChain.of_state(network, verified.ledger.state) != keys:
        raise RemoteError("key_rotations", "of the replayed state are not those of the entries")
    if not verified.ledger.state.funds.is_conserved():
        raise RemoteError("funds", "value was made or lost")
    return verified


def _open_head(name: str, note: bytes, keys: KeyChain) -> TreeHead:
    try:
        return keys.open_head(note)
    except RemoteError as error:
        raise RemoteError(name, f"has no valid signature by the log's key {keys.log_key}: {error}") from None


def _open_remembered(note: bytes | None, head: TreeHead, keys: KeyChain) -> TreeHead | None:
    if note is None:
        return None
    found = _open_head("the remembered head", note, keys)
    if found.origin != head.origin:
        raise RemoteError("the remembered head", f"is of {found.origin}, this is {head.origin}")
    if found.size > head.size:
        problem = f"has {head.size} entries, the remembered head covers {found.size}: this copy is older"
        raise RemoteError("tree_head.size", problem)
    return found


def _scan_entries(mirror: Path, size: int, network: NetworkId) -> tuple[dict[int, NotedSnapshot], KeyChain]:
    """What must be known before the entries are folded: the noted snapshots by size, and the log's keys.

    A digest stands behind its state in the log, and the head can be opened only with the key that its entries name.
    """
    found: dict[int, NotedSnapshot] = {}
    keys: KeyChain | None = None
    word = SnapshotNoted.__name__.encode()
    for bundle in list_new_bundles(0, size):
        for place, leaf in enumerate(read_bundle(mirror, bundle), bundle.index * TILE_HASHES):
            try:
                keys = KeyChain.begin(leaf, network) if keys is None else keys.extend_if_rotation(place, leaf)
                if word in leaf and (payload := decode_leaf(leaf)[1]).kind == SnapshotNoted.__name__:
                    entry = decode(SnapshotNoted, payload.body)
                    found.setdefault(entry.size, NotedSnapshot(place, entry))
            except RemoteError as error:
                raise RemoteError(f"entry {place}: {error.field}", error.problem) from None
    assert keys is not None, "the size is not 0"
    return found, keys


class _LogVerification:
    """One run over a mirror."""

    def __init__(
        self, mirror: Path, verified: VerifiedLog, noted: dict[int, NotedSnapshot], options: VerifyOptions
    ) -> None:
        self._mirror = mirror
        self._verified = verified
        self._noted = noted
        self._options = options
        self._ledger = verified.ledger
        self._tree = LogTree(mirror, self._refuse_read)

    def run(self) -> None:
        verified, size = self._verified, self._verified.head.size
        if self._options.is_from_snapshot:
            self._begin_at_snapshot()
        if self._ledger.state.size == 0:
            self._apply(read_bundle(self._mirror, EntryBundle(0, min(size, TILE_HASHES)))[0], is_checked=False)
        with self._open_pool(size) as pool:
            for chunk, result in self._check_signatures(pool, size):
                self._apply_chunk(chunk, result)
        if self._tree.root() != verified.head.root:
            raise RemoteError("tree_head.root", f"is {verified.head.root}, the entries have {self._tree.root()}")
        for tile in list_new_tiles(0, size):
            if tile.width < TILE_HASHES:
                self._check_tile(tile)
        if verified.remembered is not None:
            self._check_remembered(verified.remembered)

    def _refuse_read(self, start: int, stop: int) -> list[bytes]:
        raise LocalError("a tile of the mirror is damaged")

    # --- Beginning ----------------------------------------------------------------------------------------------------

    def _begin_at_snapshot(self) -> None:
        usable = [size for size in list_snapshots(self._mirror) if size in self._noted]
        usable = [size for size in usable if self._noted[size].entry.format == SNAPSHOT_FORMAT]
        if not usable:
            raise LocalError(
                "the mirror has no snapshot that its log notes: copy its `snapshot` folder too, or leave out"
                " --from-snapshot"
            )
        size, network = usable[0], self._ledger.network
        state = read_snapshot_file(self._mirror, network, size, self._noted[size].entry.digest)
        head = self._verified.head
        if not self._tree.load(TreeHead(head.origin, size, state.frontier.root()), mirrored=head.size):
            raise RemoteError("tile", f"the tiles over the first {size} entries are not those of the snapshot")
        self._ledger.state, self._verified.first = state, size

    # --- Signatures ---------------------------------------------------------------------------------------------------

    def _open_pool(self, size: int) -> AbstractContextManager[ProcessPoolExecutor | None]:
        if self._options.processes < 2 or size - self._ledger.state.size < POOL_ENTRIES_MIN:
            return nullcontext()
        # Not forked: the caller may have threads, such as the one that draws the progress.
        return ProcessPoolExecutor(self._options.processes, mp_context=get_context("spawn"))

    def _check_signatures(
        self, pool: ProcessPoolExecutor | None, size: int
    ) -> Iterator[tuple["LeafChunk", "ChunkResult"]]:
        """The chunks in order, and what their signatures are."""
        state = self._ledger.state
        whole = LeafChunk(self._mirror, self._ledger.network, state.domain, state.randomness, state.size, size)
        if pool is None:
            yield from ((chunk, check_chunk(chunk)) for chunk in whole.split())
            return
        waiting: deque[tuple[LeafChunk, Future[ChunkResult]]] = deque()
        for chunk in whole.split():
            waiting.append((chunk, pool.submit(check_chunk, chunk)))
            if len(waiting) > CHUNKS_AHEAD * self._options.processes:
                first, result = waiting.popleft()
                yield first, result.result()
        yield from ((first, result.result()) for first, result in waiting)

    # --- Folding ------------------------------------------------------------------------------------------------------

    def _apply_chunk(self, chunk: "LeafChunk", result: "ChunkResult") -> None:
        leaves = chunk.read_leaves()
        if compute_digest(leaves) != result.digest:
            raise LocalError(f"the mirror changed while entries {chunk.start} and later were verified; try again")
        for leaf in leaves if result.problem is None else leaves[: result.good]:
            self._apply(leaf)
        if result.problem is not None:
            self._check_rules(leaves[result.good])
            raise RemoteError(f"entry {chunk.start + result.good}: {result.problem[0]}", result.problem[1])
        done = self._tree.size
        for part in list_new_parts(chunk.start, done):
            if part.width == TILE_HASHES:
                if isinstance(part, Tile):
                    self._check_tile(part)
                self._check_partials(part)
        self._tree.forget(done)
        self._options.on_progress(done, self._verified.head.size)

    def _check_rules(self, leaf: bytes) -> None:
        """UnknownRules where the log follows rules from this leaf on that this program cannot judge."""
        state = self._ledger.state
        try:
            at_ms = decode_leaf(leaf)[0]
        except RemoteError:
            return  # it cannot be read at all, which is what the caller is about to report
        state.rules.check_known(at_ms=at_ms, index=state.size)

    def _apply(self, leaf: bytes, *, is_checked: bool = True) -> None:
        ledger, verified = self._ledger, self._verified
        index = ledger.state.size
        try:
            ledger.apply_checked(leaf) if is_checked else ledger.apply(leaf)
        except RemoteError as error:
            raise RemoteError(f"entry {index}: {error.field}", error.problem) from None
        self._tree.append_many([compute_leaf_hash(leaf)])
        if index + 1 in self._noted:
            self._check_snapshot(self._noted[index + 1])
        if verified.remembered is not None and verified.remembered.size == index + 1:
            _compare_roots(verified.remembered, TreeHead(verified.head.origin, index + 1, ledger.state.frontier.root()))

    def _check_snapshot(self, noted: NotedSnapshot) -> None:
        if noted.entry.format != SNAPSHOT_FORMAT:
            self._verified.unknown_snapshots += 1
            return
        snapshot = encode_snapshot(self._ledger.network, self._ledger.state)
        found = compute_snapshot_digest(snapshot)
        if found != noted.entry.digest:
            problem = f"is {noted.entry.digest}, the state after {noted.entry.size} entries has {found}"
            raise RemoteError(f"entry {noted.index}: digest", problem)
        self._verified.snapshots += 1
        self._options.on_snapshot(noted.entry.size, snapshot)

    def _check_remembered(self, remembered: TreeHead) -> None:
        """A head over entries before the snapshot: by a consistency proof from the tiles."""
        if remembered.size > self._verified.first or remembered.size == 0:
            return
        head = self._verified.head
        get_node = make_node_reader(head.size, lambda tile: read_tile(self._mirror, tile))
        proof = build_consistency_proof(remembered.size, head.size, get_node)
        try:
            verify_consistency(
                proof, old_size=remembered.size, old_root=remembered.root, new_size=head.size, new_root=head.root
            )
        except RemoteError:
            _compare_roots(remembered, TreeHead(head.origin, remembered.size, compute_root(remembered.size, get_node)))
            raise

    # --- Tiles --------------------------------------------------------------------------------------------------------

    def _check_tile(self, tile: Tile) -> None:
        if read_tile(self._mirror, tile) != self._tree.encode_tile(tile):
            raise RemoteError(tile.path, "does not hold the hashes of the entries")

    def _check_partials(self, full: Tile | EntryBundle) -> None:
        """Files that the full one has replaced may still be there, and readers with an older head may use them."""
        folder = self._mirror / f"{full.path}.p"
        whole = read_bounded(self._mirror / full.path, BUNDLE_BYTES_MAX) if folder.is_dir() else b""
        for path in sorted(folder.glob("*")):
            try:
                part = path.read_bytes()
            except FileNotFoundError:
                continue  # a running coordinator has just removed it
            if not whole.startswith(part) or (isinstance(full, Tile) and str(len(part) // DIGEST_BYTES) != path.name):
                raise RemoteError(str(path.relative_to(self._mirror)), "is not the beginning of the full file")
            self._verified.partial_files += 1


def _compare_roots(remembered: TreeHead, found: TreeHead) -> None:
    if remembered.root != found.root:
        problem = (
            f"is {remembered.root} over {remembered.size} entries, here they have {found.root}: the log has forked"
        )
        raise RemoteError("the remembered head", problem)


# --- Chunks of leaves, verified by any process ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a process found."""

    digest: bytes
    """Of the leaves that it read: the fold must see the same ones."""
    good: int
    """Leaves from the first whose signatures are valid."""
    problem: tuple[str, str] | None = None
    """Field and text, of the leaf after them."""


@dataclass(frozen=True, slots=True)
class LeafChunk:
    """Entries of a mirror in a row, and what their signatures depend on."""

    mirror: Path
    network: NetworkId
    domain: Domain
    chain: RandomnessChain
    start: int
    stop: int

    def split(self) -> Iterator["LeafChunk"]:
        entries, start = BUNDLES_PER_CHUNK * TILE_HASHES, self.start
        while start < self.stop:
            stop = min(self.stop, start - start % entries + entries)
            yield replace(self, start=start, stop=stop)
            start = stop

    def read_leaves(self) -> list[bytes]:
        leaves: list[bytes] = []
        for bundle in list_new_bundles(self.start, self.stop):
            leaves += read_bundle(self.mirror, bundle)[max(0, self.start - bundle.index * TILE_HASHES) :]
        return leaves


def check_chunk(chunk: LeafChunk) -> ChunkResult:
    """Verify the signatures of its leaves."""
    leaves = chunk.read_leaves()
    digest = compute_digest(leaves)
    for place, leaf in enumerate(leaves):
        try:
            verify_leaf(leaf, chunk.network, chunk.domain, chunk.chain)
        except RemoteError as error:
            return ChunkResult(digest, place, (error.field, error.problem))
    return ChunkResult(digest, len(leaves))


def compute_digest(leaves: list[bytes]) -> bytes:
    digest = sha256()
    for leaf in leaves:
        digest.update(len(leaf).to_bytes(4, "big") + leaf)
    return digest.digest()
