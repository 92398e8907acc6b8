"""Kademlia, for those who switch it on: peers that it comes upon are handed to the peer table.

The library fixes the protocol's name at `/ipfs/kad/1.0.0`, so a node that also spoke to the public table would join
the two. Its lookups connect everybody to everybody and cost CPU; the peer exchange does without.
"""

import logging
from collections.abc import Callable
from typing import Any

import trio
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.peerstore import PeerStoreError
from libp2p.tools.anyio_service import background_trio_service
from multiaddr.exceptions import BinaryParseError

log = logging.getLogger(__name__)
ROUND_S = 30.0
"""Between two looks into the table."""
ALONE_S = 1.0
"""The same while the table is empty."""


class Kademlia:
    """A Kademlia server on one host."""

    def __init__(self, host: Any, *, round_s: float = ROUND_S) -> None:
        self._host = host
        self._round_s = round_s
        self._dht = KadDHT(host, DHTMode.SERVER)

    async def run(self, found: Callable[[list[str]], None]) -> None:
        """For the life of the host, or of the library's service; `found` gets addresses with their peer ids."""
        try:
            async with background_trio_service(self._dht):
                await self._meet()
                # The library's own first lookup had nobody to ask, and its second comes ten minutes later.
                await self._dht.refresh_routing_table()
                while True:
                    await self._enter_connected()
                    found(self._addresses())
                    await trio.sleep(self._round_s)
        except Exception as error:  # boundary: gossip goes on without it
            log.error("Kademlia has ended; the peer exchange goes on", exc_info=error)

    async def _meet(self) -> None:
        """Until there is somebody in the table."""
        while not self._dht.routing_table.get_peer_ids():
            await self._enter_connected()
            await trio.sleep(ALONE_S)

    async def _enter_connected(self) -> None:
        for peer in self._host.get_connected_peers():
            await self._dht.add_peer(peer)

    def _addresses(self) -> list[str]:
        return [
            f"{text}/p2p/{peer}"
            for peer in self._dht.routing_table.get_peer_ids()
            for address in self._known(peer)
            if (text := _print(address))
        ]

    def _known(self, peer: Any) -> list[Any]:
        """Nothing of a peer that the library has forgotten, or whose addresses it holds to be too old."""
        try:
            return list(self._host.get_peerstore().addrs(peer))
        except PeerStoreError:
            return []


def _print(address: Any) -> str:
    """Without its peer id; empty where a stranger put bytes that are no address."""
    try:
        return str(address).partition("/p2p/")[0]
    except BinaryParseError:
        return ""
