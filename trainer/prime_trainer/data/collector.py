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
from prime_protocol.rollouts.rollout import Rollout
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import STEP, StepReply, StepRequest
from prime_protocol.wire.typed_data import SubmissionReceipt
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient, Unreachable
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.task_sets import TaskSetCache, grade_answers
from prime_trainer.config import TrainConfig
from prime_trainer.data.rollout_buffer import GradedSubmission, RolloutBuffer, RolloutGroup, TrainingBatch
from prime_trainer.data.submissions import (
    API_ROOT,
    RESPONSE_BYTES_MAX,
    AcceptedSubmission,
    TrainerRunInfo,
    make_list_path,
    make_rollout_group,
    parse_accepted,
    parse_receipts,
    parse_response,
    parse_run,
    read_submission,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

FETCHES_MAX = 4
"""Submissions on their way at once."""
SEEN_STEPS_KEPT = 128
"""Steps for which it is remembered what was looked at: twice the largest lag of any run."""
COORDINATOR_RETRY_MS = 1_000
"""Before the next try, where the coordinator could not be asked."""
STEP_FACTS_KEPT = 64
"""Steps and checkpoints of which the coordinator's word is remembered."""


class RolloutCollector:
    """Fills a harvest and hands out batches of it."""

    def __init__(
        self,
        config: TrainConfig,
        client: HttpClient,
        harvest: RolloutBuffer,
        model_files: ModelFiles,
        sandbox: Sandbox,
        clock: Clock,
    ) -> None:
        self._config = config
        self._client = client
        self.buffer = harvest
        self._model_files = model_files
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSetCache(client, config.server)
        self.step = Step(0)
        """The checkpoint that the next batch is for."""
        self.state = "starting"
        self._seen: dict[Digest, int] = {}
        self._listed: dict[int, int] = {}
        """Credited slots of each step when all of it was read."""
        self._step_facts: dict[StepRequest, StepReply] = {}
        self._has_unread = True
        """Something was accepted that is not in the harvest yet, as far as is known."""
        self._changed = asyncio.Event()
        self.run_info: TrainerRunInfo | None = None
        self.refused: Counter[str] = Counter()
        """Submissions that were not what they must be, by what was wrong."""
        self.problem = ""
        """Why something could not be had the last time."""

    # --- Handing out ------------------------------------------------------------------------------------------------

    async def next_batch(self, step: Step, stop: asyncio.Event) -> TrainingBatch | None:
        """For the step that follows checkpoint `step`, as soon as there is enough; None when told to stop."""
        self.step, self.state = step, "waiting for rollouts"
        while not stop.is_set():
            self.buffer.expire(step, self.lag_max)
            if self.buffer.is_enough() or self._is_run_exhausted(step):
                self.state = "learning"
                return self.buffer.take_batch(step)
            self._changed.clear()
            await wait_for_first(self._changed.wait(), stop.wait())
        self.state = "stopping"
        return None

    async def wait_for_run(self, stop: asyncio.Event) -> TrainerRunInfo | None:
        """Ask for the run until the coordinator answers; None when told to stop before."""
        while not stop.is_set():
            try:
                self.run_info = await self._get_json(f"{API_ROOT}/runs/{self._config.run}", parse_run)
                return self.run_info
            except Unreachable as error:
                self.problem = str(error)
                log.warning("the coordinator does not answer: %s", error)
            await wait_for_first(self._clock.sleep_ms(COORDINATOR_RETRY_MS), stop.wait())
        return None

    @property
    def lag_max(self) -> int:
        """The run's, or ours where that is less."""
        assert self.run_info is not None, "the run was met"
        own = self._config.lag_max
        return self.run_info.lag_max if own is None else min(own, self.run_info.lag_max)

    def _is_run_exhausted(self, step: Step) -> bool:
        """The run has no more work to give out before the next checkpoint: waiting would be for ever."""
        seen = self.run_info
        return seen is not None and seen.latest_step == step and seen.is_exhausted and not self._has_unread

    # --- Looking ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever. What does not work this time may the next."""
        while True:
            try:
                await self.poll()
            except (LocalError, RemoteError) as error:
                self.problem = str(error)
                log.warning("cannot see what was accepted: %s", error)
                await self._clock.sleep_ms(COORDINATOR_RETRY_MS)
            await self._clock.sleep_ms(self._config.poll_ms)

    async def poll(self) -> None:
        """Once: take in what was accepted since the last time."""
        seen = await self._get_json(f"{API_ROOT}/runs/{self._config.run}", parse_run)
        # Credit comes with acceptance, so a step whose count has not moved has nothing new to list. What is listed
        # after the count was read is at least as much.
        steps = [step for step in range(max(0, self.step - self.lag_max), self.step + 1) if step in seen.slots_done]
        moved = [step for step in steps if self._listed.get(step) != seen.slots_done[step]]
        fresh = [row for step in moved for row in await self._list_accepted(step) if self._is_new(row.name)]
        receipts = await self._find_receipts({row.name for row in fresh})
        turns = asyncio.Semaphore(FETCHES_MAX)
        is_all = all(await asyncio.gather(*(self._ingest(row, receipts, turns) for row in fresh)))
        if is_all:
            self._listed = {step: seen.slots_done[step] for step in steps}
            self.problem = ""
        self._seen = {name: at for name, at in self._seen.items() if at >= self.step - SEEN_STEPS_KEPT}
        self.run_info, self._has_unread = seen, not is_all
        self._changed.set()

    def _is_new(self, name: Digest) -> bool:
        return name not in self._seen and not self.buffer.contains(name)

    async def _list_accepted(self, step: int) -> list[AcceptedSubmission]:
        found: list[AcceptedSubmission] = []
        cursor: str | None = None
        while True:
            path = make_list_path("submissions", cursor, run=self._config.run, step=step, progress="accepted")
            rows, cursor = await self._get_json(path, parse_accepted)
            found += rows
            if cursor is None:
                return found

    async def _find_receipts(self, names: set[Digest]) -> dict[Digest, SubmissionReceipt]:
        """Newest first, until all are found or there are no more."""
        found: dict[Digest, SubmissionReceipt] = {}
        cursor: str | None = None
        while names - found.keys():
            path = make_list_path("log/entries", cursor, kind="Submitted", run=self._config.run)
            more, cursor = await self._get_json(path, lambda page: parse_receipts(page, self._config.run_id))
            found |= more
            if cursor is None:
                break
        return found

    async def _get_json(self, path: str, make: Callable[[Any], T]) -> T:
        raw = await self._client.get(self._config.server, path, bytes_max=RESPONSE_BYTES_MAX)
        if raw is None:
            raise LocalError(f"the coordinator at {self._config.coordinator} knows nothing of {path}")
        return parse_response(path, raw, make)

    # --- Taking in --------------------------------------------------------------------------------------------------

    async def _ingest(
        self, row: AcceptedSubmission, receipts: Mapping[Digest, SubmissionReceipt], turns: asyncio.Semaphore
    ) -> bool:
        """False: it is to be tried again."""
        async with turns:
            try:
                if row.name not in receipts:
                    raise RemoteError("submission", f"{row.name} is listed, and not in the log")
                delivery = await self._fetch_and_grade(row, receipts[row.name])
            except RemoteError as error:
                self.refused[error.field] += 1
                log.warning("submission %s is left out: %s", row.name, error)
            except LocalError as error:
                self.problem = str(error)
                log.warning("submission %s cannot be had just now: %s", row.name, error)
                return False
            else:
                self.buffer.add(delivery)
                self._changed.set()
        self._seen[row.name] = self.step
        return True

    async def _fetch_and_grade(self, row: AcceptedSubmission, receipt: SubmissionReceipt) -> GradedSubmission:
        config = self._config
        facts = await self._get_step_facts(receipt)
        family = await self._task_sets.open(facts.terms.task_set)
        data = await fetch_file(
            self._client,
            config.server,
            f"/objects/{receipt.file_digest}",
            receipt.file_digest,
            bytes_max=ROLLOUT_FILE_BYTES_MAX,
        )
        rows = await asyncio.to_thread(read_submission, data, row, receipt, facts, family)
        groups = [
            await self._grade(list(group), family) for _, group in groupby(rows, key=lambda rollout: rollout.slot)
        ]
        # A checkpoint may have the root of an earlier one, where a step was skipped; no rollout is from the future.
        return GradedSubmission(row.name, Step(min(facts.weights.step, receipt.step)), tuple(groups))

    async def _get_step_facts(self, receipt: SubmissionReceipt) -> StepReply:
        """Terms, beacon and checkpoint, signed by the coordinator. They are settled by the time of a submission."""
        wanted = StepRequest(step=receipt.step, root=receipt.checkpoint_root)
        if wanted not in self._step_facts:
            facts = (await self._client.call(self._config.server, STEP, wanted, run=self._config.run_id)).message
            if facts.weights.root != receipt.checkpoint_root:
                raise RemoteError("weights.root", f"is {facts.weights.root}, asked for was {receipt.checkpoint_root}")
            self._step_facts[wanted] = facts
            if len(self._step_facts) > STEP_FACTS_KEPT:
                self._step_facts.pop(next(iter(self._step_facts)))
        return self._step_facts[wanted]

    async def _grade(self, rows: list[Rollout], family: TaskFamily) -> RolloutGroup:
        task = family.make(rows[0].task)
        prompt = self._model_files.encode_prompt(task.prompt)
        for row in rows:
            # Only a share of submissions is audited, so each is checked for having asked the right question.
            if row.prompt_tokens.tolist() != prompt:
                raise RemoteError("prompt_tokens", f"of slot {row.slot} are not the prompt of task {task.index}")
        answers = [self._model_files.decode(row.output_tokens.tolist()) for row in rows]
        grades = await grade_answers(family, task, answers, self._sandbox)
        return make_rollout_group(rows, [grade.reward for grade in grades], self._config.advantage)


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them ends; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
