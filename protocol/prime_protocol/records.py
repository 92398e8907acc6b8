"""Gossip for nodes that libp2p does not reach: the same frames, handed in to the coordinator and asked for over HTTP.

The coordinator adds nothing to a frame and can forge none: its author's signature is what counts, here as in gossip.
What it does choose is which frames a node gets to see.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.addresses import PeerAddress
from prime_protocol.codec import Range, Size
from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    GOSSIP_FRAME_BYTES_MAX,
    RECORDS_MAX,
    RECORDS_WAIT_MS_MAX,
)
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.exchange import Endpoint
from prime_protocol.ids import NodeId

Frame = Annotated[bytes, Size(1, GOSSIP_FRAME_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Node or trainer: let the others of this run have this frame."""

    frame: Frame
    """The envelope of an Announced, Serving or HeadSeen, by whoever sealed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What became of the frame. One that breaks the rules is refused instead."""

    is_new: bool
    reason: Annotated[str, Size(0, 200)]
    """Why it was not taken where it is not new: known, older than what is known, or too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsWanted:
    """Node: what do the others say? The answer may wait until there is something."""

    seen: Uint
    """The cursor of the last answer; 0 at first."""
    wait_ms: Annotated[int, Range(0, RECORDS_WAIT_MS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The answer: what is new since the cursor, and what a node needs to take part in gossip itself."""

    cursor: Uint
    trainer: NodeId
    """Whose announcements count in this run."""
    nodes: Uint
    """Nodes that serve in this run: how often each may say so depends on it."""
    peers: Annotated[tuple[Annotated[str, Size(1, ADDRESS_CHARS_MAX)], ...], Size(0, ADDRESSES_MAX)]
    """Where the coordinator itself can be dialled over libp2p; none: it does not gossip."""
    frames: Annotated[tuple[Frame, ...], Size(0, RECORDS_MAX)]
    """Announcements first, newest step first; then some of the serving records; then a few seen heads."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.peers):
            try:
                PeerAddress.parse(address)
            except RemoteError as error:
                raise RemoteError(f"peers[{index}]", error.problem) from None


SHARE = Endpoint("share", Share, Shared, is_idempotent=True)
RECORDS = Endpoint("records", RecordsWanted, Records, is_idempotent=True)
