"""A worker that is killed after any of its writes goes on in the next process: nothing is lost, nothing sent twice.

Agent, worker, journal, shelf and memory are the real ones, and so is the engine's process. The coordinator is a few
lines that keep its promises: a lease stays open until it is answered, and the same answer twice is one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prime_node.agent.agent import Agent
from prime_node.agent.events import (
    Effect,
    Event,
    Generate,
    LoadWeights,
    ReplyReceived,
    SaveState,
    Send,
    SendTimedOut,
    Started,
    Tick,
    WeightsReady,
)
from prime_node.agent.outbox import NodeProfile
from prime_node.config import NodeConfig
from prime_node.jobs.runner import JobRunner, JobTools
from prime_node.storage.journal import JobState
from prime_node.storage.saved_state import SavedStateFile
from prime_protocol.ledger.entries import LeaseGranted, Role, Submitted
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import (
    CheckpointRef,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeCommand,
)
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.clock import SystemClock
from support.job_setup import BEACON, KEY, NETWORK, ROOT, RUN, JobSetup, digest, grant
from support.ledger_network import ACCOUNT

WRITES = 7
"""File, journal, memory, the coordinator's log, memory, journal; and one more, so that the last case has no crash."""
PROFILE = NodeProfile(network=NETWORK, run=RUN, roles=(Role.WORKER,))


class Killed(Exception):
    """The process is gone."""


class Coordinator:
    """Some leases, and every answer that ever came in, with the file that was on the node's disk at that moment."""

    def __init__(self, leases: int = 1) -> None:
        self.leases = [grant(number, slots=number + 1) for number in range(leases)]
        self.is_granted = False
        self.answers: list[tuple[Submitted, bytes | None]] = []

    def beat(self, now_ms: int) -> HeartbeatReply:
        weights = CheckpointRef(step=Step(0), root=ROOT, manifest=digest("manifest"), beacon=BEACON)
        return HeartbeatReply(
            now_ms=now_ms,
            next_heartbeat_ms=1_000,
            head=b"",
            weights=weights,
            lag_max=1,
            leases=tuple(self.list_open()) if self.is_granted else (),
            audits=(),
            command=NodeCommand.NONE,
            version_min=1,
            upgrade_by_ms=0,
            account=ACCOUNT,
            updates=(),
        )

    def lease(self) -> LeaseReply:
        is_free, self.is_granted = not self.is_granted, True
        return LeaseReply(lease=self.leases[0] if is_free else None, retry_ms=60_000, reason="")

    def list_open(self) -> list[LeaseGranted]:
        answered = {entry.receipt.lease for entry, _ in self.answers}
        return [lease for lease in self.leases if lease.lease not in answered]


class Process:
    """One life of the node: the daemon's loop, with a count of what reaches a disk."""

    def __init__(self, setup: JobSetup, coordinator: Coordinator, crash_after: int) -> None:
        self.setup = setup
        self.coordinator = coordinator
        self.crash_after = crash_after
        self.writes = 0
        config = NodeConfig(folder=setup.folder, coordinator="http://127.0.0.1:1", coordinator_id=str(KEY.node))
        config = NodeConfig(**{**vars(config), "run": RUN, "network": NETWORK})
        self.tools = replace(JobTools.open(config, SystemClock()), spool=setup.spool)
        self.job_runner = JobRunner(
            config,
            KEY.node,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            self.tools,
            post_event=lambda event: None,
            on_appealed=lambda submission: None,
            clock=SystemClock(),
        )
        self.state = SavedStateFile(setup.folder / "memory")
        self.agent = Agent(KEY, PROFILE, Random(0))
        setup.generator._journal = self.job_runner.journal
        self._count(setup.spool, "put")
        self._count(self.job_runner.journal, "_put")
        self._count(self.state, "save")

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
        """Until all leases are answered and nothing is on its way."""
        state = self.state.load()
        self.tools.remove_orphan_files([state])
        now_ms, events = self.setup.clock.now_ms(), [Started(state)]
        for _ in range(200):
            event: Event = events.pop(0) if events else Tick()
            effects = self.agent.handle(event, now_ms)
            for effect in effects:
                events += [each async for each in self._carry_out(effect, now_ms)]
            records = [self.job_runner.journal.get_by_lease(RUN, each.lease) for each in self.coordinator.leases]
            is_done = all(record is not None and record.state is JobState.RECEIVED for record in records)
            if is_done and not self.state.load().pending:
                return
            now_ms = max(now_ms, self.agent.wake_ms) if not events else now_ms
        raise AssertionError("it never came to an end")

    async def _carry_out(self, effect: Effect, now_ms: int):  # type: ignore[no-untyped-def]
        match effect:
            case SaveState(state):
                self.state.save(state)
            case LoadWeights(weights):
                yield WeightsReady(weights.step, weights.root)
            case Generate():
                yield await self.setup.generator.generate(effect, lambda progress: None)
            case Send():
                event = self._answer(effect, now_ms)
                self.job_runner.record_sent(effect, event)
                yield event

    def _answer(self, send: Send, now_ms: int) -> Event:
        match send.message:
            case Heartbeat():
                return ReplyReceived(send.request, self.coordinator.beat(now_ms))
            case LeaseRequest():
                return ReplyReceived(send.request, self.coordinator.lease())
            case Submitted() as entry:
                assert send.file is not None
                self.coordinator.answers.append((entry, self.setup.spool.get(send.file)))
                self._wrote()
                return ReplyReceived(send.request, EntryReply(index=1, at_ms=now_ms))
        return SendTimedOut(send.request)


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
    first = JobSetup(tmp_path)
    is_killed = False
    try:
        await Process(first, coordinator, crash_after).run()
    except Killed:
        is_killed = True
    await first.engine.close()
    assert is_killed is (crash_after < WRITES), "every write but the last case's is followed by a crash"

    second = JobSetup(tmp_path)
    process = Process(second, coordinator, crash_after=0)
    if not coordinator.answers or process.state.load().pending:
        await process.run()
    is_made_again = second.engine.get_status()["pid"] is not None
    await second.engine.close()
    entries = {compute_receipt_id(entry.receipt) for entry, _ in coordinator.answers}
    assert len(entries) == 1, "the answer may be sent again, another one never is"
    assert all(file is not None for _, file in coordinator.answers[:1]), "the file was there when it was needed"
    assert is_made_again is (crash_after == 1), "what the journal has is not generated again"
    record = process.job_runner.journal.get_by_lease(RUN, 0)
    assert record is not None
    assert record.submission in entries
    checked.append(coordinator.answers[0][0].receipt.file_digest)


async def test_a_process_killed_with_two_leases_in_hand_answers_each_once_and_keeps_the_file_that_was_done(
    tmp_path: Path,
) -> None:
    coordinator = Coordinator(leases=2)
    coordinator.is_granted = True
    first = JobSetup(tmp_path)
    with pytest.raises(Killed):
        await Process(first, coordinator, crash_after=3).run()
    await first.engine.close()
    kept = first.journal.get_by_lease(RUN, 0)
    assert kept is not None
    assert first.journal.get_by_lease(RUN, 1) is None, "it was killed between the two"

    second = JobSetup(tmp_path)
    await Process(second, coordinator, crash_after=0).run()
    await second.engine.close()
    assert {entry.receipt.lease for entry, _ in coordinator.answers} == {0, 1}
    files = {entry.receipt.lease: entry.receipt.file_digest for entry, _ in coordinator.answers}
    assert files[0] == kept.file
    assert len({compute_receipt_id(entry.receipt) for entry, _ in coordinator.answers}) == 2
