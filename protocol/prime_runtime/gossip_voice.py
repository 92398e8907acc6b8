"""Saying something to a run: sealed once, judged by our own guard, then sent by every way there is.

Our own frame passes the guard like a stranger's: what others would not pass on is not sent, and a copy that comes back
is known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip import KINDS, Announced, Gossip, HeadSeen, Serving, seal_gossip, topic
from prime_protocol.gossip_guard import Accepted, GossipGuard
from prime_protocol.ids import NetworkId, RunId
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.sequence import Sequence

log = logging.getLogger(__name__)

Way = Callable[[RunId, Gossip], Awaitable[None]]
"""Sends one accepted message; LocalError or RemoteError where that does not work now."""


class Voice:
    """What one key says."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        guard: GossipGuard,
        *,
        clock: Clock,
        sequence: Sequence,
        ways: tuple[Way, ...],
    ) -> None:
        self._key = key
        self._network = network
        self._guard = guard
        self._clock = clock
        self._sequence = sequence
        self._ways = ways
        self.failures: dict[int, str] = {}
        """By the number of the way: why it last failed; none where it works."""

    async def say(self, run: RunId, message: Announced | Serving | HeadSeen, *, known_nodes: int = 0) -> Gossip | None:
        """The message as it went out; None if it came too soon after others, or we may not say it."""
        now_ms = self._clock.now_ms()
        frame = seal_gossip(
            self._key,
            message,
            network=self._network,
            run=run,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
            known_nodes=known_nodes,
        )
        verdict = self._guard.judge(topic(self._network, run, KINDS[type(message)]), frame, run=run, now_ms=now_ms)
        if not isinstance(verdict, Accepted):
            log.debug("not said: %s: %s", type(message).__name__, verdict.reason)
            return None
        await asyncio.gather(*(self._send(number, way, run, verdict.gossip) for number, way in enumerate(self._ways)))
        return verdict.gossip

    async def _send(self, number: int, way: Way, run: RunId, gossip: Gossip) -> None:
        try:
            await way(run, gossip)
            self.failures.pop(number, None)
        except (LocalError, RemoteError) as error:
            if self.failures.get(number) != str(error):
                log.info("a %s did not go out: %s", gossip.kind, error)
            self.failures[number] = str(error)
