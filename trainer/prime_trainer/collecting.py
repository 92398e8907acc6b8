"""Accepted submissions on their way to the trainer: seen in the coordinator's list, fetched by digest, read strictly,
graded again. Nothing else is ever learnt from.

A file that is not what it must be is its worker's fault and is left out for good. What breaks on the way is tried
again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from itertools import groupby
from typing import Any, TypeVar

from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, Step
from prime_protocol.messages import STEP, StepFacts, StepWanted
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.rollouts import Rollout
from prime_protocol.tasks.family import Family
from prime_runtime.clock import Clock
from prime_runtime.fetching import fetch_file
from prime_runtime.http_client import HttpClient
from prime_runtime.http_errors import Unreachable
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox import Sandbox
from prime_runtime.task_sets import TaskSets, grade_answers
from prime_trainer.harvest import Batch, Delivery, Group, Harvest
from prime_trainer.listing import (
    ANSWER_BYTES_MAX,
    ROOT,
    Accepted,
    RunSeen,
    list_path,
    read,
    to_accepted,
    to_receipts,
    to_run,
)
from prime_trainer.reading import make_group, read_rows
from prime_trainer.train_config import TrainConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

FETCHES = 4
"""Submissions on their way at once."""
SEEN_STEPS = 128
"""Steps for which it is remembered what was looked at: twice the largest lag of any run."""
MEET_MS = 1_000
"""Before the next try, where the coordinator could not be asked."""
FACTS_KEPT = 64
"""Steps and checkpoints of which the coordinator's word is remembered."""


class Collector:
    """Fills a harvest and hands out batches of it."""

    def __init__(
        self,
        config: TrainConfig,
        client: HttpClient,
        harvest: Harvest,
        model_files: ModelFiles,
        sandbox: Sandbox,
        clock: Clock,
    ) -> None:
        self._config = config
        self._client = client
        self.harvest = harvest
        self._model_files = model_files
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSets(client, config.server)
        self.step = Step(0)
        """The checkpoint that the next batch is for."""
        self.state = "starting"
        self._seen: dict[Digest, int] = {}
        self._listed: dict[int, int] = {}
        """Credited slots of each step when all of it was read."""
        self._known: dict[StepWanted, StepFacts] = {}
        self._unread = True
        """Something was accepted that is not in the harvest yet, as far as is known."""
        self._changed = asyncio.Event()
        self.run_seen: RunSeen | None = None
        self.refused: Counter[str] = Counter()
        """Submissions that were not what they must be, by what was wrong."""
        self.problem = ""
        """Why something could not be had the last time."""

    # --- Handing out ------------------------------------------------------------------------------------------------

    async def next_batch(self, step: Step, stop: asyncio.Event) -> Batch | None:
        """For the step that follows checkpoint `step`, as soon as there is enough; None when told to stop."""
        self.step, self.state = step, "waiting for rollouts"
        while not stop.is_set():
            self.harvest.expire(step, self.lag_max)
            if self.harvest.is_enough() or self._is_over(step):
                self.state = "learning"
                return self.harvest.take(step)
            self._changed.clear()
            await first_of(self._changed.wait(), stop.wait())
        self.state = "stopping"
        return None

    async def meet(self, stop: asyncio.Event) -> RunSeen | None:
        """Ask for the run until the coordinator answers; None when told to stop before."""
        while not stop.is_set():
            try:
                self.run_seen = await self._ask(f"{ROOT}/runs/{self._config.run}", to_run)
                return self.run_seen
            except Unreachable as error:
                self.problem = str(error)
                log.warning("the coordinator does not answer: %s", error)
            await first_of(self._clock.sleep_ms(MEET_MS), stop.wait())
        return None

    @property
    def lag_max(self) -> int:
        """The run's, or ours where that is less."""
        assert self.run_seen is not None, "the run was met"
        own = self._config.lag_max
        return self.run_seen.lag_max if own is None else min(own, self.run_seen.lag_max)

    def _is_over(self, step: Step) -> bool:
        """The run has no more work to give out before the next checkpoint: waiting would be for ever."""
        seen = self.run_seen
        return seen is not None and seen.latest == step and seen.is_exhausted and not self._unread

    # --- Looking ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever. What does not work this time may the next."""
        while True:
            try:
                await self.look()
            except (LocalError, RemoteError) as error:
                self.problem = str(error)
                log.warning("cannot see what was accepted: %s", error)
                await self._clock.sleep_ms(MEET_MS)
            await self._clock.sleep_ms(self._config.poll_ms)

    async def look(self) -> None:
        """Once: take in what was accepted since the last time."""
        seen = await self._ask(f"{ROOT}/runs/{self._config.run}", to_run)
        # Credit comes with acceptance, so a step whose count has not moved has nothing new to list. What is listed
        # after the count was read is at least as much.
        steps = [step for step in range(max(0, self.step - self.lag_max), self.step + 1) if step in seen.done]
        moved = [step for step in steps if self._listed.get(step) != seen.done[step]]
        fresh = [row for step in moved for row in await self._list(step) if self._is_new(row.name)]
        receipts = await self._find_receipts({row.name for row in fresh})
        turns = asyncio.Semaphore(FETCHES)
        is_all = all(await asyncio.gather(*(self._take_in(row, receipts, turns) for row in fresh)))
        if is_all:
            self._listed = {step: seen.done[step] for step in steps}
            self.problem = ""
        self._seen = {name: at for name, at in self._seen.items() if at >= self.step - SEEN_STEPS}
        self.run_seen, self._unread = seen, not is_all
        self._changed.set()

    def _is_new(self, name: Digest) -> bool:
        return name not in self._seen and not self.harvest.knows(name)

    async def _list(self, step: int) -> list[Accepted]:
        found: list[Accepted] = []
        cursor: str | None = None
        while True:
            path = list_path("submissions", cursor, run=self._config.run, step=step, progress="accepted")
            rows, cursor = await self._ask(path, to_accepted)
            found += rows
            if cursor is None:
                return found

    async def _find_receipts(self, names: set[Digest]) -> dict[Digest, SubmissionReceipt]:
        """Newest first, until all are found or there are no more."""
        found: dict[Digest, SubmissionReceipt] = {}
        cursor: str | None = None
        while names - found.keys():
            path = list_path("log/entries", cursor, kind="Submitted", run=self._config.run)
            more, cursor = await self._ask(path, lambda page: to_receipts(page, self._config.run_id))
            found |= more
            if cursor is None:
                break
        return found

    async def _ask(self, path: str, make: Callable[[Any], T]) -> T:
        raw = await self._client.get(self._config.server, path, bytes_max=ANSWER_BYTES_MAX)
        if raw is None:
            raise LocalError(f"the coordinator at {self._config.coordinator} knows nothing of {path}")
        return read(path, raw, make)

    # --- Taking in --------------------------------------------------------------------------------------------------

    async def _take_in(
        self, row: Accepted, receipts: Mapping[Digest, SubmissionReceipt], turns: asyncio.Semaphore
    ) -> bool:
        """False: it is to be tried again."""
        async with turns:
            try:
                if row.name not in receipts:
                    raise RemoteError("submission", f"{row.name} is listed, and not in the log")
                delivery = await self._read(row, receipts[row.name])
            except RemoteError as error:
                self.refused[error.field] += 1
                log.warning("submission %s is left out: %s", row.name, error)
            except LocalError as error:
                self.problem = str(error)
                log.warning("submission %s cannot be had just now: %s", row.name, error)
                return False
            else:
                self.harvest.add(delivery)
                self._changed.set()
        self._seen[row.name] = self.step
        return True

    async def _read(self, row: Accepted, receipt: SubmissionReceipt) -> Delivery:
        config = self._config
        facts = await self._facts(receipt)
        family = await self._task_sets.open(facts.terms.task_set)
        data = await fetch_file(
            self._client,
            config.server,
            f"/objects/{receipt.file_digest}",
            receipt.file_digest,
            bytes_max=ROLLOUT_FILE_BYTES_MAX,
        )
        rows = await asyncio.to_thread(read_rows, data, row, receipt, facts, family)
        groups = [
            await self._grade(list(group), family) for _, group in groupby(rows, key=lambda rollout: rollout.slot)
        ]
        # A checkpoint may have the root of an earlier one, where a step was skipped; no rollout is from the future.
        return Delivery(row.name, Step(min(facts.weights.step, receipt.step)), tuple(groups))

    async def _facts(self, receipt: SubmissionReceipt) -> StepFacts:
        """Terms, beacon and checkpoint, signed by the coordinator. They are settled by the time of a submission."""
        wanted = StepWanted(step=receipt.step, root=receipt.checkpoint_root)
        if wanted not in self._known:
            facts = (await self._client.call(self._config.server, STEP, wanted, run=self._config.run_id)).message
            if facts.weights.root != receipt.checkpoint_root:
                raise RemoteError("weights.root", f"is {facts.weights.root}, asked for was {receipt.checkpoint_root}")
            self._known[wanted] = facts
            if len(self._known) > FACTS_KEPT:
                self._known.pop(next(iter(self._known)))
        return self._known[wanted]

    async def _grade(self, rows: list[Rollout], family: Family) -> Group:
        task = family.make(rows[0].task)
        prompt = self._model_files.encode_prompt(task.prompt)
        for row in rows:
            # Only a share of submissions is audited, so each is checked for having asked the right question.
            if row.prompt_tokens.tolist() != prompt:
                raise RemoteError("prompt_tokens", f"of slot {row.slot} are not the prompt of task {task.index}")
        answers = [self._model_files.decode(row.output_tokens.tolist()) for row in rows]
        grades = await grade_answers(family, task, answers, self._sandbox)
        return make_group(rows, [grade.reward for grade in grades], self._config.advantage)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them ends; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
