"""Do two tree heads tell one history? Decided from the log's tiles, which prove themselves against a signed root. Pure.

The tiles come from the very coordinator that is checked. They count only if they hash to the newer head's root; then
the older head's root either follows from them, or two signed heads contradict each other, which is proof for everybody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from prime_protocol.codec import decode
from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, TILE_HASHES
from prime_protocol.entries import NetworkCreated, Record
from prime_protocol.envelope import open_envelope
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NetworkId, NodeId
from prime_protocol.merkle import root_of
from prime_protocol.note import VerifierKey
from prime_protocol.tiles import Tile, consistency_tiles, nodes_from_tiles
from prime_protocol.treehead import TreeHead, open_tree_head


@dataclass(frozen=True, slots=True)
class Seen:
    """A head with the note that proves who signed it."""

    head: TreeHead
    note: bytes

    @classmethod
    def open(cls, note: bytes, log_key: VerifierKey) -> "Seen":
        """RemoteError where the log's key did not sign it."""
        return cls(open_tree_head(note, [log_key]), note)

    @property
    def size(self) -> int:
        return self.head.size


class Relation(StrEnum):
    """What is known of two heads without a proof."""

    SAME = "same"
    FORK = "fork"
    UNKNOWN = "unknown"


def relate(one: Seen, other: Seen) -> Relation:
    if one.size != other.size:
        return Relation.UNKNOWN
    return Relation.SAME if one.head.root == other.head.root else Relation.FORK


def list_tiles(one: Seen, other: Seen) -> list[Tile]:
    """What has to be fetched to compare them."""
    old, new = sorted((one.size, other.size))
    return consistency_tiles(old, new)


def full_tile(tile: Tile) -> Tile:
    """Where a partial tile is gone, its full one begins with the same hashes."""
    return Tile(tile.level, tile.index, TILE_HASHES)


def cut_tile(tile: Tile, raw: bytes) -> bytes:
    return raw[: tile.width * DIGEST_BYTES]


def compare(one: Seen, other: Seen, get_tile: Callable[[Tile], bytes]) -> Relation:
    """SAME history or a FORK; UNKNOWN where the tiles are not those of the newer head, and so prove nothing."""
    old, new = sorted((one, other), key=lambda seen: seen.size)
    try:
        get_node = nodes_from_tiles(new.size, get_tile)
        if root_of(new.size, get_node) != new.head.root:
            return Relation.UNKNOWN
        return Relation.SAME if root_of(old.size, get_node) == old.head.root else Relation.FORK
    except RemoteError:
        return Relation.UNKNOWN


def render_evidence(one: Seen, other: Seen, tiles: dict[str, bytes]) -> bytes:
    """For people and for other programs: both notes, and the tiles that show that they do not fit."""
    text = [
        "Two tree heads of one log, both signed with its key, that tell different histories.",
        "",
        *(f"--- head over {seen.size} entries\n{seen.note.decode()}" for seen in (one, other)),
    ]
    text += [f"--- {path}\n{raw.hex()}" for path, raw in sorted(tiles.items())]
    return "\n".join(text).encode() + b"\n"


def read_log_key(leaf: bytes, *, network: NetworkId, coordinator: NodeId) -> VerifierKey:
    """The log's key as entry 0 names it, under the coordinator's signature; RemoteError where it is not that entry."""
    letter = open_envelope(decode(Record, leaf, bytes_max=LOG_ENTRY_BYTES_MAX).frame, network=network).letter
    if letter.sender != coordinator:
        raise RemoteError("Letter.sender", f"is {letter.sender}, the coordinator is {coordinator}")
    if letter.kind != NetworkCreated.__name__:
        raise RemoteError("Letter.kind", f"is {letter.kind}, the first entry is {NetworkCreated.__name__}")
    return VerifierKey.parse(decode(NetworkCreated, letter.body).log_key)
