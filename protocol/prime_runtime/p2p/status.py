"""What the libp2p half says about itself. Imports nothing heavy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PStatus:
    """A moment of the libp2p half, for `status` pages and metrics."""

    is_running: bool
    """False before the start, after the stop, and between a crash and the restart that follows."""
    peer_id: str
    addresses: tuple[str, ...]
    """What others are told to dial, peer id included; empty: outbound only."""
    connected: int
    """Peers with an open connection."""
    known: int
    """Peers that this node could dial."""
    banned: int
    messages_in: int
    """Accepted messages of others."""
    messages_out: int
    """Own and bridged messages that were published."""
    messages_refused: int
    """Messages that broke the rules, and were not passed on."""
    messages_ignored: int
    """Messages that were known, old or too many, and were not passed on."""
    inbox_dropped: int
    """Accepted messages that nobody read in time."""
    restarts: int
    last_error: str
    """Why the libp2p half last died; empty if it never did."""
