"""The asyncio side of libp2p: start, publish, receive, status, stop; and a restart whenever the other side dies."""

from prime_protocol.gossip import Announced, Gossip, GossipKind, HeadSeen, Serving
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import NetworkId, RunId
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.p2p_config import P2PConfig, P2PStatus


class P2PNode:
    """One libp2p identity: joins runs, publishes, and hands over what others say."""

    def __init__(
        self, key: WalletKey, network: NetworkId, config: P2PConfig, *, clock: Clock, guard: GossipGuard
    ) -> None:
        self._key = key
        self._network = network
        self._config = config
        self._clock = clock
        self._guard = guard

    async def start(self) -> None:
        """Listen and begin to dial. LocalError: the port is taken, or the library is missing."""

    async def join(self, run: RunId) -> None:
        """Subscribe to the run's topics; kept over restarts."""

    async def publish(self, run: RunId, message: Announced | Serving | HeadSeen) -> bytes:
        """Seal a message and send it to everybody; the frame, to be handed to others as well."""
        return b""

    async def publish_frame(self, run: RunId, kind: GossipKind, frame: bytes) -> None:
        """Send on a frame that somebody else sealed, after the guard has accepted it."""

    async def receive(self) -> Gossip:
        """The next accepted message of another node, on any topic of a joined run."""
        raise AssertionError("not started")

    def status(self) -> P2PStatus:
        return P2PStatus(
            is_running=False,
            peer_id=self._key.peer_id(),
            addresses=(),
            connected=0,
            known=0,
            banned=0,
            messages_in=0,
            messages_out=0,
            messages_refused=0,
            messages_ignored=0,
            inbox_dropped=0,
            restarts=0,
            last_error="",
        )

    async def stop(self) -> None:
        """Leave: connections are closed, so that peers notice at once."""
