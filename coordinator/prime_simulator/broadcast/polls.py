"""Long-polls for bitmaps in the simulated broadcast: answered on news, at most once per pair in a while."""

from collections.abc import Callable

from prime_node.shardcast.events import Event, HaveTold, PollFailed
from prime_simulator.broadcast.flows import Clock
from prime_simulator.broadcast.peer import Listener, Peer
from prime_simulator.broadcast.plan import Plan


class Polls:
    """All pairs of one swarm."""

    def __init__(self, clock: Clock, plan: Plan, peers: list[Peer], tell: Callable[[Peer, Event], None]) -> None:
        self._clock = clock
        self._peers = peers
        self._plan = plan
        self._tell = tell
        self._asked = 0

    def ask(self, child: Peer, parent: Peer) -> None:
        self._clock.after(child.member.delay_ms + parent.member.delay_ms, self._receive, child, parent)

    def publish(self, parent: Peer) -> None:
        """Its bitmaps changed."""
        for index, listener in parent.listeners.items():
            if listener.asked and not listener.is_planned:
                self._plan_answer(index, parent, listener)

    def close(self, parent: Peer) -> None:
        """It left. Those who wait notice at once, or only when they lose patience."""
        for child, listener in parent.listeners.items():
            if listener.asked:
                delay_ms = self._plan.poll_ms if parent.member.is_silent else 50.0
                self._clock.after(delay_ms, self._fail, child, parent)
        parent.listeners.clear()

    def _receive(self, child: Peer, parent: Peer) -> None:
        if child.is_gone or child.tally.finished_ms is not None:
            return
        if parent.is_gone or not parent.is_there:
            is_lost = parent.is_gone and parent.member.is_silent
            self._clock.after(self._plan.connect_ms if is_lost else 50.0, self._fail, child.index, parent)
            return
        listener = parent.listeners.setdefault(child.index, Listener())
        self._asked += 1
        listener.asked = self._asked
        if listener.told_version != parent.version:
            self._plan_answer(child.index, parent, listener)
        else:
            self._clock.after(self._plan.poll_ms, self._answer, child.index, parent, self._asked)

    def _plan_answer(self, child: int, parent: Peer, listener: Listener) -> None:
        listener.is_planned = True
        self._clock.at(listener.told_ms + self._plan.have_ms, self._answer, child, parent, listener.asked)

    def _answer(self, child: int, parent: Peer, asked: int) -> None:
        listener = parent.listeners.get(child)
        if listener is None or listener.asked != asked:
            return
        listener.asked, listener.is_planned = 0, False
        listener.told_version, listener.told_ms = parent.version, self._clock.now_ms
        held, coming = parent.maps
        free = parent.slots.slots_free(int(self._clock.now_ms))
        told = HaveTold(parent.id, held, coming, free, parent.depth())
        peer = self._peers[child]
        self._clock.after(peer.member.delay_ms + parent.member.delay_ms, self._tell, peer, told)

    def _fail(self, child: int, parent: Peer) -> None:
        self._tell(self._peers[child], PollFailed(parent.id))
