"""Kademlia, for those who switch it on: peers that it comes upon are handed to the peer table.

The library fixes the protocol's name at `/ipfs/kad/1.0.0`, so a node that also spoke to the public table would join
the two. Its lookups connect everybody to everybody and cost CPU; the peer exchange does without.
"""

import logging
from collections.abc import Callable
from typing import Any

import trio
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.tools.anyio_service import background_trio_service

log = logging.getLogger(__name__)
ROUND_S = 30.0
"""Between two looks into the table."""


class Kademlia:
    """A Kademlia server on one host."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._dht = KadDHT(host, DHTMode.SERVER)

    async def run(self, found: Callable[[list[str]], None]) -> None:
        """For the life of the host, or of the library's service; `found` gets addresses with their peer ids."""
        try:
            async with background_trio_service(self._dht):
                while True:
                    for peer in self._host.get_connected_peers():
                        await self._dht.add_peer(peer)
                    found(self._addresses())
                    await trio.sleep(ROUND_S)
        except Exception as error:  # boundary: gossip goes on without it
            log.error("Kademlia has ended; the peer exchange goes on", exc_info=error)

    def _addresses(self) -> list[str]:
        store = self._host.get_peerstore()
        peers = self._dht.routing_table.get_peer_ids()
        return [
            f"{_bare(address)}/p2p/{peer}" for peer in peers if store.has_peer(peer) for address in store.addrs(peer)
        ]


def _bare(address: Any) -> str:
    return str(address).partition("/p2p/")[0]
