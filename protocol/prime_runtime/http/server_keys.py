"""The key that a coordinator answers with: the one that this program pinned, or one that the log rotated it to.

A reply by another key is refused, unless the coordinator shows a chain of rotations from the pinned key to that one.
Every link of it is signed by the key before it. A chain only grows: a process that knows of a rotation refuses replies
by an older key.
"""

import logging
from collections.abc import Awaitable, Callable

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

FOLLOW_PAUSE_MS = 5_000
"""Between two requests for the keys of one server: anyone on the path can send replies of another key."""
SERVERS_MAX = 64
"""Servers whose keys are remembered; the oldest is forgotten."""


class ServerKeys:
    """The newest known key of each server, by the key that was pinned."""

    def __init__(self, network: NetworkId, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._chains: dict[NodeId, KeyChain] = {}
        self._asked_ms: dict[NodeId, int] = {}
        self.on_rotation: Callable[[], None] = lambda: None
        """Called when a server was found to have a new key."""

    def get_key(self, pinned: NodeId) -> NodeId:
        chain = self._chains.get(pinned)
        return chain.coordinator if chain else pinned

    def set_chain(self, pinned: NodeId, chain: KeyChain) -> None:
        """A chain that this program has verified before."""
        self._chains[pinned] = chain
        for table in (self._chains, self._asked_ms):
            while len(table) > SERVERS_MAX:
                del table[next(iter(table))]

    async def follow(self, pinned: NodeId, signer: NodeId, fetch: Callable[[], Awaitable[bytes | None]]) -> bool:
        """Whether the server's key was rotated to the one that signed its reply; `fetch` gets its list of keys."""
        if signer == self.get_key(pinned):
            return True  # another request has found out meanwhile
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._asked_ms.get(pinned, now_ms - FOLLOW_PAUSE_MS) < FOLLOW_PAUSE_MS:
            return False
        self._asked_ms[pinned] = now_ms
        try:
            raw = await fetch()
            if raw is None:
                return False
            chain = KeyChain.of_leaves(KeyFile.parse(raw).leaves, self._network)
        except (LocalError, RemoteError) as error:
            log.info("cannot learn whether the coordinator's key was rotated: %s", error)
            return False
        known = self._chains.get(pinned)
        is_trusted = known.is_continued_by(chain) if known else chain.has_coordinator(pinned)
        if not is_trusted or chain.coordinator != signer:
            log.error("a reply is signed by %s, to which the coordinator's key was not rotated", signer)
            return False
        log.warning("entry %d rotated the coordinator's key to %s", chain.coordinators[-1].index, signer)
        self.set_chain(pinned, chain)
        self.on_rotation()
        return True
