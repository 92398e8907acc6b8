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
    BOARD_ANNOUNCED_MAX,
    BOARD_HEADS_MAX,
    BOARD_SCAN_MAX,
    BOARD_SERVING_MAX,
    BOARD_SWEEP_MS,
    BOARD_URGENT_MANIFESTS_MAX,
)
from prime_protocol.constants import RECORDS_HEADS_MAX, RECORDS_MAX, RECORDS_SERVING_MAX
from prime_protocol.gossip import Announced, Gossip, GossipKind, HeadSeen, Serving
from prime_protocol.ids import Digest, NodeId, RunId


@dataclass(frozen=True, slots=True)
class Pin:
    """One frame on the board."""

    number: int
    gossip: Gossip

    def lives(self, now_ms: int) -> bool:
        return self.gossip.letter.expires_at_ms > now_ms


@dataclass(slots=True)
class RunBoard:
    """What was said in one run. Each table is in the order of the numbers."""

    announced: OrderedDict[bytes, Pin] = field(default_factory=OrderedDict)
    serving: OrderedDict[bytes, Pin] = field(default_factory=OrderedDict)
    heads: OrderedDict[bytes, Pin] = field(default_factory=OrderedDict)
    servers: Counter[Digest] = field(default_factory=Counter)
    """How many serve each manifest."""
    newest: int = 0
    """Number of the newest frame."""
    urgent: int = 0
    """Number of the newest frame that nobody should wait for."""
    swept_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """Most frames kept of one run. The oldest goes first."""

    announced_max: int = BOARD_ANNOUNCED_MAX
    serving_max: int = BOARD_SERVING_MAX
    heads_max: int = BOARD_HEADS_MAX


class Board:
    """Frames of all runs. `dice` draw which serving records a reader gets."""

    def __init__(self, dice: Random, *, now_ms: int, limits: BoardLimits | None = None) -> None:
        self._dice = dice
        self._limits = limits or BoardLimits()
        self._runs: dict[RunId, RunBoard] = {}
        # Above every number of a board before this one, which gave out fewer than one a millisecond.
        self._number = now_ms

    def put(self, run: RunId, gossip: Gossip, now_ms: int) -> bool:
        """Pin a frame that the guard accepted; True if nobody should wait for it."""
        board = self._runs.setdefault(run, RunBoard())
        self._sweep(board, now_ms)
        self._number += 1
        pin = Pin(self._number, gossip)
        board.newest = self._number
        if self._pin(board, pin):
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
        announced = list(_after(board.announced, seen, now_ms))
        announced.sort(key=_step, reverse=True)
        heads = list(islice(_after(board.heads, seen, now_ms), RECORDS_HEADS_MAX))
        pins = announced[: RECORDS_MAX - RECORDS_SERVING_MAX - len(heads)] + self._draw(board, seen, now_ms) + heads
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

    def list_serving(self, run: RunId, now_ms: int) -> list[tuple[NodeId, Serving]]:
        """Who serves, newest word first."""
        board = self._runs.get(run)
        pins = _after(board.serving, 0, now_ms) if board else ()
        return [
            (pin.gossip.letter.sender, pin.gossip.message) for pin in pins if isinstance(pin.gossip.message, Serving)
        ]

    def find_serving(self, node: NodeId, now_ms: int) -> Serving | None:
        """What a node serves, in whichever run it is."""
        for board in self._runs.values():
            pin = board.serving.get(node)
            if pin is not None and pin.lives(now_ms) and isinstance(pin.gossip.message, Serving):
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

    def _pin(self, board: RunBoard, pin: Pin) -> bool:
        sender, message = pin.gossip.letter.sender, pin.gossip.message
        match message:
            case Announced(manifest=manifest):
                is_new = manifest not in board.announced
                _place(board.announced, manifest, pin, self._limits.announced_max)
                return is_new
            case Serving():
                return self._pin_serving(board, sender, pin, message)
            case HeadSeen():
                _place(board.heads, sender, pin, self._limits.heads_max)
        return False

    def _pin_serving(self, board: RunBoard, sender: NodeId, pin: Pin, message: Serving) -> bool:
        """Urgent where it is the first to serve one of the newest weights."""
        _forget(board, board.serving.pop(sender, None))
        if not message.urls:
            return False  # it serves nobody, so nobody needs to know
        while len(board.serving) >= self._limits.serving_max:
            _forget(board, board.serving.popitem(last=False)[1])
        first = [manifest for manifest in _newest_manifests(board) if not board.servers[manifest]]
        board.serving[sender] = pin
        board.servers.update(message.manifests)
        return bool(set(first) & set(message.manifests))

    def _sweep(self, board: RunBoard, now_ms: int) -> None:
        if now_ms - board.swept_ms < BOARD_SWEEP_MS:
            return
        board.swept_ms = now_ms
        for node in [node for node, pin in board.serving.items() if not pin.lives(now_ms)]:
            _forget(board, board.serving.pop(node))
        for table in (board.announced, board.heads):
            for key in [key for key, pin in table.items() if not pin.lives(now_ms)]:
                del table[key]

    # --- Reading ----------------------------------------------------------------------------------------------------

    def _draw(self, board: RunBoard, seen: int, now_ms: int) -> list[Pin]:
        """Some who serve. Half of the places are for those who have the newest weights: at first they are few."""
        wanted = set(_newest_manifests(board))
        ahead: list[Pin] = []
        others: list[Pin] = []
        for pin in islice(_after(board.serving, seen, now_ms), BOARD_SCAN_MAX):
            assert isinstance(pin.gossip.message, Serving)
            (others if wanted.isdisjoint(pin.gossip.message.manifests) else ahead).append(pin)
        room = max(RECORDS_SERVING_MAX // 2, RECORDS_SERVING_MAX - len(others))
        drawn = self._choose(ahead, room)
        return drawn + self._choose(others, RECORDS_SERVING_MAX - len(drawn))

    def _choose(self, pins: Sequence[Pin], most: int) -> list[Pin]:
        return list(pins) if len(pins) <= most else self._dice.sample(pins, most)


def _newest_manifests(board: RunBoard) -> list[Digest]:
    newest = sorted(board.announced.values(), key=_step, reverse=True)[:BOARD_URGENT_MANIFESTS_MAX]
    return [pin.gossip.message.manifest for pin in newest if isinstance(pin.gossip.message, Announced)]


def _step(pin: Pin) -> int:
    assert isinstance(pin.gossip.message, Announced)
    return pin.gossip.message.step


def _after(table: OrderedDict[bytes, Pin], seen: int, now_ms: int) -> Iterator[Pin]:
    """Newest first."""
    pins: Iterable[Pin] = reversed(table.values())
    for pin in pins:
        if pin.number <= seen:
            return
        if pin.lives(now_ms):
            yield pin


def _place(table: OrderedDict[bytes, Pin], key: bytes, pin: Pin, most: int) -> None:
    table.pop(key, None)
    while len(table) >= most:
        table.popitem(last=False)
    table[key] = pin


def _forget(board: RunBoard, pin: Pin | None) -> None:
    if pin is not None:
        assert isinstance(pin.gossip.message, Serving)
        board.servers -= Counter(pin.gossip.message.manifests)
