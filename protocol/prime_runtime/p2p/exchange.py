"""Peer exchange, `/prime/peers/1`: one question, one answer, each a length of four bytes and a message.

The asker sends a PeersWanted with its own card, the other a PeersKnown. See docs/protocol/gossip.md.
"""

from collections.abc import Callable
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.utils import read_exactly

from prime_protocol.codec import decode, encode
from prime_protocol.constants import PEER_CARD_BYTES_MAX, PEER_CARDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip import PeersKnown, PeersWanted
from prime_runtime.p2p.guard import Blame
from prime_runtime.p2p.peer_score import Fault
from prime_runtime.rates import Rate, TokenBuckets

PROTOCOL = TProtocol("/prime/peers/1")
WANTED_BYTES_MAX = PEER_CARD_BYTES_MAX + 64
KNOWN_BYTES_MAX = PEER_CARDS_MAX * (PEER_CARD_BYTES_MAX + 5) + 64
LENGTH_BYTES = 4
ANSWER_S = 5.0
CLOSE_S = 1.0
ASKER_RATE = Rate(per_second=1, burst=10)
ASKERS_MAX = 4096
FAILURES = (BaseLibp2pError, OSError, trio.TooSlowError)
"""What a stream does when the other side is slow, gone or unwilling."""

NOBODYS_FAULT = frozenset({"Letter.expires_at_ms", "Letter.issued_at_ms", "Letter.version"})
"""What is wrong with a card that was long on its way, or where a clock is off, or software newer."""

Answer = Callable[[str, PeersWanted], PeersKnown]
"""From the asker's peer id and its question. RemoteError: what it sent is no question."""


def is_malice(error: RemoteError) -> bool:
    return error.field not in NOBODYS_FAULT


class Exchange:
    """Asks and answers on one host."""

    def __init__(self, host: Any, *, answer: Answer, now_ms: Callable[[], int], blame: Blame) -> None:
        self._host = host
        self._answer = answer
        self._now_ms = now_ms
        self._blame = blame
        self._askers = TokenBuckets(ASKER_RATE, keys_max=ASKERS_MAX)
        host.set_stream_handler(PROTOCOL, self._serve)

    async def ask(self, peer: Any, card: bytes) -> PeersKnown:
        """A peer's answer. RemoteError: it broke the protocol. TooSlowError and others of FAILURES: none came."""
        with trio.fail_after(ANSWER_S):
            stream = await self._host.new_stream(peer, [PROTOCOL])
            try:
                await _write(stream, encode(PeersWanted(card=card)))
                return decode(PeersKnown, await _read(stream, KNOWN_BYTES_MAX))
            finally:
                await _close(stream)

    async def _serve(self, stream: Any) -> None:
        """The guard resets the stream on whatever is raised here."""
        peer = str(stream.muxed_conn.peer_id)
        if self._askers.take(peer, self._now_ms()):
            self._blame(peer, Fault.FLOOD)
            await stream.reset()
            return
        try:
            with trio.fail_after(ANSWER_S):
                wanted = decode(PeersWanted, await _read(stream, WANTED_BYTES_MAX))
                await _write(stream, encode(self._answer(peer, wanted)))
                await stream.close()
        except RemoteError as error:
            if is_malice(error):
                self._blame(peer, Fault.BAD_CARD)
            raise


async def _read(stream: Any, bytes_max: int) -> bytes:
    length = int.from_bytes(await read_exactly(stream, LENGTH_BYTES), "big")
    if not 0 < length <= bytes_max:
        raise RemoteError("length", f"is {length}, allowed is 1 to {bytes_max}")
    return bytes(await read_exactly(stream, length))


async def _write(stream: Any, body: bytes) -> None:
    await stream.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)


async def _close(stream: Any) -> None:
    with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
        try:
            await stream.close()
        except FAILURES:
            return
