"""Bandwidth in virtual time: lines with a capacity, and flows that share them.

A flow goes at the smaller of two fair shares: the sender's uplink over its running uploads, and the receiver's downlink
over its running downloads. What one end leaves unused is not handed to the others, as TCP would, so times come out a
little too long rather than too short. When a flow begins or ends, only those on the same two lines change.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Events in the order of their times; those of one time in the order they were planned."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._planned, (max(time_ms, self.now_ms), self._count, action, arguments))

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ms + delay_ms, action, *arguments)

    def step(self) -> bool:
        """Do the next one; False if nothing is planned."""
        if not self._planned:
            return False
        self.now_ms, _, action, arguments = heappop(self._planned)
        action(*arguments)
        return True

    @property
    def count(self) -> int:
        return self._count


@dataclass(slots=True, eq=False)
class Line:
    """One direction of one node's connection."""

    bytes_per_ms: float
    flows: dict["Flow", None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way from one node to another."""

    up: Line
    down: Line
    left_bytes: float
    done: Callable[[Any], None]
    subject: Any
    rate: float = 0.0
    at_ms: float = 0.0
    due_ms: float = float("inf")
    """Earliest planned look at it; the true end may be later."""
    is_over: bool = False


class Flows:
    """All flows of one world."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self, flow: Flow) -> None:
        flow.at_ms = self._clock.now_ms
        flow.up.flows[flow] = None
        flow.down.flows[flow] = None
        self._share(flow.up, flow.down)

    def stop(self, flow: Flow) -> None:
        """Before its end, or at it. Stopping twice is harmless."""
        if flow.is_over:
            return
        flow.is_over = True
        self._settle(flow)
        del flow.up.flows[flow], flow.down.flows[flow]
        self._share(flow.up, flow.down)

    def left_bytes(self, flow: Flow) -> float:
        self._settle(flow)
        return flow.left_bytes

    def _settle(self, flow: Flow) -> None:
        now_ms = self._clock.now_ms
        flow.left_bytes = max(0.0, flow.left_bytes - flow.rate * (now_ms - flow.at_ms))
        flow.at_ms = now_ms

    def _share(self, up: Line, down: Line) -> None:
        for flow in up.flows:
            self._rate(flow)
        for flow in down.flows:
            if flow.up is not up:
                self._rate(flow)

    def _rate(self, flow: Flow) -> None:
        up, down = flow.up, flow.down
        rate = min(up.bytes_per_ms / len(up.flows), down.bytes_per_ms / len(down.flows))
        if rate == flow.rate:
            return
        self._settle(flow)
        flow.rate = rate
        end_ms = flow.at_ms + flow.left_bytes / rate
        # Only an earlier end is planned anew; a later one is found out when the planned look comes.
        if end_ms < flow.due_ms:
            flow.due_ms = end_ms
            self._clock.at(end_ms, self._look, flow, end_ms)

    def _look(self, flow: Flow, due_ms: float) -> None:
        if flow.is_over or due_ms != flow.due_ms:
            return
        self._settle(flow)
        if flow.left_bytes < 1.0:
            self.stop(flow)
            flow.done(flow.subject)
            flow.subject = None
            return
        flow.due_ms = flow.at_ms + flow.left_bytes / flow.rate
        self._clock.at(flow.due_ms, self._look, flow, flow.due_ms)
