"""Signed tree heads: how two of them relate, and the files that show a fork or a stolen key. Pure.

The proof that two heads belong to one history is made of the log's tiles. They count only if they hash to the newer
head's signed root, so their source need not be trusted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.log.tiles import Tile, compute_prefix_root, list_consistency_tiles
from prime_protocol.log.tree_head import TreeHead


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A tree head and the signed note it came in."""

    head: TreeHead
    note: bytes

    @classmethod
    def open(cls, note: bytes, keys: KeyChain) -> "SignedHead":
        """RemoteError: the log's key did not sign it."""
        return cls(keys.open_head(note), note)

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


def render_stolen_head(note: bytes, entry: int) -> bytes:
    """The evidence that a rotated key still signs."""
    text = f"A tree head that is signed with the key that was rotated at entry {entry}, and with no key after it.\n\n"
    return text.encode() + note
