"""A coordinator with one run, hands that answer every lease, and a trainer: parts for tests of `prime-trainer start`.

The coordinator and the trainer are real processes. The hands send files that pass intake; no model stands behind them,
and their validator accepts whatever it is drawn for, so what the trainer itself checks shows.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.intervals import IntervalsConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.randomness import compute_slot_task
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.rollouts.rollout import FinishReason, Rollout, compute_proofs_bytes
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, Sample, Slot
from prime_protocol.wire.messages import LEASE, STEP, LeaseReply, LeaseRequest, StepReply, StepRequest, UploadPurpose
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_trainer.model.tiny import EOS_TOKEN, VOCABULARY_CHARACTERS, make_tiny_checkpoint
from support.processes.coordinator import (
    NETWORK,
    RUN,
    CoordinatorProcess,
    Party,
    make_folder,
    party,
    read_entries,
    running,
    terms,
)
from support.processes.swarm import write_key

VOCABULARY = 32
TERMS: dict[str, Any] = {
    "task_set": "sort-digits?reward=shaped",
    "slots_per_step": 4,
    "samples_per_slot": 4,
    "vocabulary": VOCABULARY,
    "prompt_tokens_max": 16,
    "output_tokens_max": 8,
    "lag_max": 2,
}
INTERVALS = IntervalsConfig(heartbeat_ms=300, head_ms=50, tick_ms=20)
PAUSE_S = 0.1
TRIES = 10


def make_rows(lease: e.LeaseGranted, beacon: Digest, wanted: RunTerms, *, prompt: str | None = None) -> list[Rollout]:
    """Random digits as answers: rewards differ, so there is a signal."""
    family, dice = open_family(TaskSetSpec.parse(wanted.task_set)), np.random.default_rng(lease.lease)
    rows = []
    for slot in range(lease.first_slot, lease.first_slot + lease.slots):
        task = compute_slot_task(beacon, Slot(slot), family.size)
        text = family.make(task).prompt if prompt is None else prompt
        for sample in range(wanted.samples_per_slot):
            output = np.append(dice.integers(0, 10, 3 + (slot + sample) % 4), EOS_TOKEN).astype(np.int32)
            rows.append(
                Rollout(
                    slot=Slot(slot),
                    sample=Sample(sample),
                    task=task,
                    temperature=wanted.temperature,
                    target_length=None,
                    finish=FinishReason.EOS,
                    prompt_tokens=np.array([VOCABULARY_CHARACTERS.index(letter) for letter in text], np.int32),
                    output_tokens=output,
                    output_logprobs=-3 * dice.random(len(output), dtype=np.float32),
                    proofs=dice.bytes(compute_proofs_bytes(len(output))),
                )
            )
    return rows


@dataclass
class Hands:
    """A worker and a validator that never rest."""

    worker: Party
    validator: Party
    wanted: RunTerms
    bad: set[int] = field(default_factory=set)
    """Leases to answer with another question's prompt."""
    submitted: dict[int, Digest] = field(default_factory=dict)
    """Submission by lease."""

    async def join(self) -> None:
        await self.worker.join(Role.WORKER)
        await self.validator.join(Role.VALIDATOR)

    async def work(self) -> None:
        while True:
            if not await repeat(self._work_once):
                await asyncio.sleep(PAUSE_S)

    async def _work_once(self) -> bool:
        """Whether there was work."""
        weights = (await self.worker.beat()).weights
        if weights is None or weights.beacon is None:
            return False
        reply = await self.worker.call(LEASE, LeaseRequest(checkpoint_step=weights.step, tokens_per_s=100))
        assert isinstance(reply, LeaseReply)
        if reply.lease is None:
            return False
        lease, root = reply.lease, weights.root
        await repeat(lambda: self._answer(lease, root))
        return True

    async def _answer(self, lease: e.LeaseGranted, root: Digest) -> bool:
        facts = await self.worker.call(STEP, StepRequest(step=lease.step, root=None))
        assert isinstance(facts, StepReply)
        assert facts.beacon is not None
        rows = make_rows(lease, facts.beacon, self.wanted, prompt="^11111>" if lease.lease in self.bad else None)
        data, entry = self.worker.answer(lease, beacon=facts.beacon, root=root, wanted=self.wanted, rows=rows)
        await self.worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await self.worker.write(entry)
        self.submitted[lease.lease] = compute_receipt_id(entry.receipt)
        return True

    async def judge(self) -> None:
        while True:
            await repeat(self._judge_all)
            await asyncio.sleep(PAUSE_S)

    async def _judge_all(self) -> bool:
        await self.validator.beat()
        for task in self.validator.audits:
            await self.validator.judge(task, Outcome.ACCEPT)
        return True


async def repeat(work: Callable[[], Awaitable[bool]]) -> bool:
    """A few times: the coordinator lets nobody ask too often, and may be down for a moment."""
    for _ in range(TRIES):
        try:
            return await work()
        except (LocalError, RemoteError):
            await asyncio.sleep(PAUSE_S)
    return False


@dataclass
class Scene:
    """All of it."""

    folder: Path
    coordinator: CoordinatorProcess
    hands: Hands

    @property
    def trainer(self) -> Path:
        return self.folder / "trainer"

    def words(self, *flags: str) -> tuple[str, ...]:
        """The command that starts the trainer."""
        return (
            *("start", "--folder", str(self.trainer), "--store", str(self.folder / "store")),
            *("--model", str(self.folder / "model"), "--key", str(self.folder / "key.json")),
            *("--run", RUN, "--network", NETWORK, "--coordinator", self.coordinator.server.url),
            *("--coordinator-id", str(self.coordinator.node), "--poll-ms", "100", "--batch-groups", "3"),
            *("--optimizer-learning-rate", "0.001", "--optimizer-warmup-steps", "0", "--client-backoff-ms", "20"),
            *flags,
        )

    def steps(self) -> list[dict[str, Any]]:
        """The trainer's numbers, step by step."""
        path = self.trainer / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def entries(self, kind: str) -> list[dict[str, Any]]:
        """Bodies of the log's entries of a kind, oldest first."""
        return await asyncio.to_thread(read_entries, self.coordinator.config, kind)


@asynccontextmanager
async def running_scene(folder: Path, **changes: Any) -> AsyncIterator[Scene]:
    """With hands at work, and nothing published yet."""
    wanted = {**TERMS, **changes}
    config = await make_folder(
        folder / "coordinator", books=LogWriterConfig(head_ms=100), settings={"intervals": INTERVALS}, **wanted
    )
    make_tiny_checkpoint(folder / "model", vocabulary=VOCABULARY, hidden=32, layers=1)
    write_key(folder / "key.json", "trainer")
    async with running(config) as coordinator, AsyncExitStack() as stack:
        people = [await stack.enter_async_context(party(coordinator, name)) for name in ("ann", "val")]
        hands = Hands(*people, wanted=replace(terms(), **wanted))
        await hands.join()
        tasks = [asyncio.create_task(work()) for work in (hands.work, hands.judge)]
        try:
            yield Scene(folder, coordinator, hands)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                assert isinstance(result, asyncio.CancelledError), f"a hand failed: {result!r}"
