"""A worker that is killed after any of its writes goes on in the next process: nothing is lost, nothing sent twice.

Agent, worker, journal, shelf and memory are the real ones, and so is the engine's process. The coordinator is a few
lines that keep its promises: a lease stays open until it is answered, and the same answer twice is one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from work_scene import BEACON, KEY, NETWORK, ROOT, RUN, Scene, digest, grant

from prime_node.agent import Agent, Profile
from prime_node.config import NodeConfig
from prime_node.events import (
    Effect,
    Event,
    Generate,
    LoadWeights,
    ReplyReceived,
    Save,
    Send,
    Started,
    Tick,
    TimedOut,
    WeightsReady,
)
from prime_node.journal import PieceState
from prime_node.memory_file import MemoryFile
from prime_node.workshop import Workshop
from prime_protocol.entries import Role, Submitted
from prime_protocol.ids import Digest, Step
from prime_protocol.messages import Command, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest, Logged, Weights
from prime_protocol.receipts import receipt_id
from prime_runtime.clock import SystemClock

WRITES = 7
"""File, journal, memory, the coordinator's log, memory, journal; and one more, so that the last case has no crash."""
PROFILE = Profile(network=NETWORK, run=RUN, roles=(Role.WORKER,))


class Killed(Exception):
    """The process is gone."""


class Coordinator:
    """One lease, and every answer that ever came in, with the file that was on the node's disk at that moment."""

    def __init__(self) -> None:
        self.is_granted = False
        self.answers: list[tuple[Submitted, bytes | None]] = []

    def beat(self, now_ms: int) -> HeartbeatReply:
        weights = Weights(step=Step(0), root=ROOT, manifest=digest("manifest"), beacon=BEACON)
        return HeartbeatReply(
            now_ms=now_ms,
            next_beat_ms=1_000,
            head=b"",
            weights=weights,
            lag_max=1,
            leases=(grant(),) if self.is_granted and not self.answers else (),
            audits=(),
            command=Command.NONE,
            version_min=1,
            upgrade_by_ms=0,
        )

    def lease(self) -> LeaseReply:
        is_free, self.is_granted = not self.is_granted, True
        return LeaseReply(lease=grant() if is_free else None, retry_ms=60_000, reason="")


class Process:
    """One life of the node: the daemon's loop, with a count of what reaches a disk."""

    def __init__(self, scene: Scene, coordinator: Coordinator, crash_after: int) -> None:
        self.scene = scene
        self.coordinator = coordinator
        self.crash_after = crash_after
        self.writes = 0
        config = NodeConfig(folder=scene.folder, coordinator="http://127.0.0.1:1", coordinator_id=str(KEY.node))
        config = NodeConfig(**{**vars(config), "run": RUN, "network": NETWORK})
        swarm: Any = type("NoSwarm", (), {"fetcher": None, "store": None})
        self.workshop = Workshop(
            config,
            KEY.node,
            None,
            swarm,
            scene.shelf,
            tell=lambda event: None,
            clock=SystemClock(),  # type: ignore[arg-type]
        )
        self.memory = MemoryFile(scene.folder / "memory")
        self.agent = Agent(KEY, PROFILE, Random(0))
        scene.worker._journal = self.workshop.journal
        self._count(scene.shelf, "put")
        self._count(self.workshop.journal, "_put")
        self._count(self.memory, "save")

    def _count(self, owner: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(type(owner), name)

        def counted(*values: Any) -> Any:
            result = inner(owner, *values)
            self._wrote()
            return result

        setattr(owner, name, counted)

    def _wrote(self) -> None:
        self.writes += 1
        if self.writes == self.crash_after:
            raise Killed

    async def run(self) -> None:
        """Until the lease is answered and nothing is on its way."""
        memory = self.memory.load()
        self.workshop.tidy(memory)
        now_ms, events = self.scene.clock.now_ms(), [Started(memory)]
        for _ in range(200):
            event: Event = events.pop(0) if events else Tick()
            effects = self.agent.handle(event, now_ms)
            for effect in effects:
                events += [each async for each in self._carry_out(effect, now_ms)]
            piece = self.workshop.journal.of_lease(RUN, 0)
            if piece is not None and piece.state is PieceState.RECEIVED and not self.memory.load().parcels:
                return
            now_ms = max(now_ms, self.agent.wake_ms) if not events else now_ms
        raise AssertionError("it never came to an end")

    async def _carry_out(self, effect: Effect, now_ms: int):  # type: ignore[no-untyped-def]
        match effect:
            case Save(memory):
                self.memory.save(memory)
            case LoadWeights(weights):
                yield WeightsReady(weights.step, weights.root)
            case Generate():
                yield await self.scene.worker.generate(effect, lambda progress: None)
            case Send():
                event = self._answer(effect, now_ms)
                self.workshop.note_sent(effect, event)
                yield event

    def _answer(self, send: Send, now_ms: int) -> Event:
        match send.message:
            case Heartbeat():
                return ReplyReceived(send.request, self.coordinator.beat(now_ms))
            case LeaseRequest():
                return ReplyReceived(send.request, self.coordinator.lease())
            case Submitted() as entry:
                assert send.file is not None
                self.coordinator.answers.append((entry, self.scene.shelf.get(send.file)))
                self._wrote()
                return ReplyReceived(send.request, Logged(index=1, at_ms=now_ms))
        return TimedOut(send.request)


@pytest.fixture(scope="module")
def checked() -> Iterator[list[Digest]]:
    """File digests of all cases: the beacon fixes them, so they are one."""
    found: list[Digest] = []
    yield found
    assert len(set(found)) == 1


@pytest.mark.parametrize("crash_after", range(1, WRITES + 1))
async def test_a_lease_is_answered_once_whenever_the_process_is_killed(
    crash_after: int, tmp_path: Path, checked: list[Digest]
) -> None:
    coordinator = Coordinator()
    first = Scene(tmp_path)
    is_killed = False
    try:
        await Process(first, coordinator, crash_after).run()
    except Killed:
        is_killed = True
    await first.keeper.close()
    assert is_killed is (crash_after < WRITES), "every write but the last case's is followed by a crash"

    second = Scene(tmp_path)
    process = Process(second, coordinator, crash_after=0)
    if not coordinator.answers or process.memory.load().parcels:
        await process.run()
    is_made_again = second.keeper.report()["pid"] is not None
    await second.keeper.close()
    entries = {receipt_id(entry.receipt) for entry, _ in coordinator.answers}
    assert len(entries) == 1, "the answer may be sent again, another one never is"
    assert all(file is not None for _, file in coordinator.answers[:1]), "the file was there when it was needed"
    assert is_made_again is (crash_after == 1), "what the journal has is not generated again"
    piece = process.workshop.journal.of_lease(RUN, 0)
    assert piece is not None
    assert piece.submission in entries
    checked.append(coordinator.answers[0][0].receipt.file_digest)
