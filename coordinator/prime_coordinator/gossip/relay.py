"""The board: what nodes have said in gossip and still holds, for those who ask over HTTP. Pure.

Every frame on it was let through by a GossipGuard. It is numbered as it comes, so that a reader can ask for what is new
to it. Memory is bounded, and what has expired is gone.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from prime_coordinator.constants import (
    RELAY_ANNOUNCED_MAX,
    RELAY_HEADS_KEPT,
    RELAY_SCAN_MAX,
    RELAY_SERVING_KEPT,
    RELAY_SWEEP_MS,
    RELAY_URGENT_MANIFESTS_MAX,
)
from prime_protocol.constants import RELAY_FRAMES_MAX, RELAY_HEADS_MAX, RELAY_SERVING_MAX
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, HeadSeen, ReceivedGossip, ServingRecord
from prime_protocol.wire.ids import Digest, NodeId, RunId


@dataclass(frozen=True, slots=True)
class RelayedMessage:
    """One frame on the board."""

    number: int
    gossip: ReceivedGossip

    def is_alive(self, now_ms: int) -> bool:
        return self.gossip.payload.expires_at_ms > now_ms


@dataclass(slots=True)
class RunMessages:
    """What was said in one run. Each table is in the order of the numbers."""

    announced: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    serving: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    heads: OrderedDict[bytes, RelayedMessage] = field(default_factory=OrderedDict)
    servers: Counter[Digest] = field(default_factory=Counter)
    """How many serve each manifest."""
    newest: int = 0
    """Number of the newest frame."""
    urgent: int = 0
    """Number of the newest frame that nobody should wait for."""
    swept_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Most frames kept of one run. The oldest goes first."""

    announced_max: int = RELAY_ANNOUNCED_MAX
    serving_max: int = RELAY_SERVING_KEPT
    heads_max: int = RELAY_HEADS_KEPT


class GossipRelay:
    """Frames of all runs. `dice` draw which serving records a reader gets."""

    def __init__(self, dice: Random, *, now_ms: int, limits: RelayLimits | None = None) -> None:
        self._dice = dice
        self._limits = limits or RelayLimits()
        self._runs: dict[RunId, RunMessages] = {}
        # Above every number of a board before this one, which gave out fewer than one a millisecond.
        self._number = now_ms

    def put(self, run: RunId, gossip: ReceivedGossip, now_ms: int) -> bool:
        """Pin a frame that the guard accepted; True if nobody should wait for it."""
        board = self._runs.setdefault(run, RunMessages())
        self._sweep(board, now_ms)
        self._number += 1
        pin = RelayedMessage(self._number, gossip)
        board.newest = self._number
        if self._store(board, pin):
            board.urgent = self._number
            return True
        return False

    def read(self, run: RunId, seen: int, now_ms: int) -> tuple[int, tuple[bytes, ...]]:
        """A cursor, and what came after `seen`: at most RECORDS_MAX frames."""
        board = self._runs.get(run)
        if board is None:
            return self._number, ()
        if seen > self._number:
            seen = 0  # of a coordinator whose clock was ahead
        announced = list(_list_since(board.announced, seen, now_ms))
        announced.sort(key=_get_step, reverse=True)
        heads = list(islice(_list_since(board.heads, seen, now_ms), RELAY_HEADS_MAX))
        pins = announced[: RELAY_FRAMES_MAX - RELAY_SERVING_MAX - len(heads)] + self._draw(board, seen, now_ms) + heads
        return board.newest, tuple(pin.gossip.frame for pin in pins)

    def has_news(self, run: RunId, seen: int) -> bool:
        board = self._runs.get(run)
        return board is not None and (board.newest > seen or seen > self._number)

    def has_urgent(self, run: RunId, seen: int) -> bool:
        board = self._runs.get(run)
        return board is not None and (board.urgent > seen or seen > self._number)

    def count_nodes(self, run: RunId) -> int:
        """Nodes that serve."""
        board = self._runs.get(run)
        return len(board.serving) if board else 0

    def list_serving(self, run: RunId, now_ms: int) -> list[tuple[NodeId, ServingRecord]]:
        """Who serves, newest word first."""
        board = self._runs.get(run)
        pins = _list_since(board.serving, 0, now_ms) if board else ()
        return [
            (pin.gossip.payload.sender, pin.gossip.message)
            for pin in pins
            if isinstance(pin.gossip.message, ServingRecord)
        ]

    def find_serving(self, node: NodeId, now_ms: int) -> ServingRecord | None:
        """What a node serves, in whichever run it is."""
        for board in self._runs.values():
            pin = board.serving.get(node)
            if pin is not None and pin.is_alive(now_ms) and isinstance(pin.gossip.message, ServingRecord):
                return pin.gossip.message
        return None

    def count(self) -> dict[GossipKind, int]:
        """Frames of each kind, in all runs; those that expired since the last sweep too."""
        boards = self._runs.values()
        return {
            GossipKind.ANNOUNCED: sum(len(board.announced) for board in boards),
            GossipKind.SERVING: sum(len(board.serving) for board in boards),
            GossipKind.HEAD_SEEN: sum(len(board.heads) for board in boards),
        }

    def __len__(self) -> int:
        return sum(self.count().values())

    # --- Writing ----------------------------------------------------------------------------------------------------

    def _store(self, board: RunMessages, pin: RelayedMessage) -> bool:
        sender, message = pin.gossip.payload.sender, pin.gossip.message
        match message:
            case CheckpointAnnounced(manifest=manifest):
                is_new = manifest not in board.announced
                _put_bounded(board.announced, manifest, pin, self._limits.announced_max)
                return is_new
            case ServingRecord():
                return self._store_serving(board, sender, pin, message)
            case HeadSeen():
                _put_bounded(board.heads, sender, pin, self._limits.heads_max)
        return False

    def _store_serving(self, board: RunMessages, sender: NodeId, pin: RelayedMessage, message: ServingRecord) -> bool:
        """Urgent where it is the first to serve one of the newest weights."""
        _drop_servers(board, board.serving.pop(sender, None))
        if not message.urls:
            return False  # it serves nobody, so nobody needs to know
        while len(board.serving) >= self._limits.serving_max:
            _drop_servers(board, board.serving.popitem(last=False)[1])
        first = [manifest for manifest in _newest_manifests(board) if not board.servers[manifest]]
        board.serving[sender] = pin
        board.servers.update(message.manifests)
        return bool(set(first) & set(message.manifests))

    def _sweep(self, board: RunMessages, now_ms: int) -> None:
        if now_ms - board.swept_ms < RELAY_SWEEP_MS:
            return
        board.swept_ms = now_ms
        for node in [node for node, pin in board.serving.items() if not pin.is_alive(now_ms)]:
            _drop_servers(board, board.serving.pop(node))
        for table in (board.announced, board.heads):
            for key in [key for key, pin in table.items() if not pin.is_alive(now_ms)]:
                del table[key]

    # --- Reading ----------------------------------------------------------------------------------------------------

    def _draw(self, board: RunMessages, seen: int, now_ms: int) -> list[RelayedMessage]:
        """Some who serve. Half of the places are for those who have the newest weights: at first they are few."""
        wanted = set(_newest_manifests(board))
        ahead: list[RelayedMessage] = []
        others: list[RelayedMessage] = []
        for pin in islice(_list_since(board.serving, seen, now_ms), RELAY_SCAN_MAX):
            assert isinstance(pin.gossip.message, ServingRecord)
            (others if wanted.isdisjoint(pin.gossip.message.manifests) else ahead).append(pin)
        room = max(RELAY_SERVING_MAX // 2, RELAY_SERVING_MAX - len(others))
        drawn = self._choose(ahead, room)
        return drawn + self._choose(others, RELAY_SERVING_MAX - len(drawn))

    def _choose(self, pins: Sequence[RelayedMessage], most: int) -> list[RelayedMessage]:
        return list(pins) if len(pins) <= most else self._dice.sample(pins, most)


def _newest_manifests(board: RunMessages) -> list[Digest]:
    newest = sorted(board.announced.values(), key=_get_step, reverse=True)[:RELAY_URGENT_MANIFESTS_MAX]
    return [pin.gossip.message.manifest for pin in newest if isinstance(pin.gossip.message, CheckpointAnnounced)]


def _get_step(pin: RelayedMessage) -> int:
    assert isinstance(pin.gossip.message, CheckpointAnnounced)
    return pin.gossip.message.step


def _list_since(table: OrderedDict[bytes, RelayedMessage], seen: int, now_ms: int) -> Iterator[RelayedMessage]:
    """Newest first."""
    pins: Iterable[RelayedMessage] = reversed(table.values())
    for pin in pins:
        if pin.number <= seen:
            return
        if pin.is_alive(now_ms):
            yield pin


def _put_bounded(table: OrderedDict[bytes, RelayedMessage], key: bytes, pin: RelayedMessage, most: int) -> None:
    table.pop(key, None)
    while len(table) >= most:
        table.popitem(last=False)
    table[key] = pin


def _drop_servers(board: RunMessages, pin: RelayedMessage | None) -> None:
    if pin is not None:
        assert isinstance(pin.gossip.message, ServingRecord)
        board.servers -= Counter(pin.gossip.message.manifests)
