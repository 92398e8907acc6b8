"""Collects accepted submissions: lists them, fetches files by digest, verifies and grades them again. Rim.

Training uses nothing else. A file that fails verification is its worker's fault and is refused for good; a failure on
the way is retried.
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
"""Submissions fetched concurrently."""
HANDLED_STEPS_KEPT = 128
"""Steps for which handled submissions are remembered: twice the largest lag of any run."""
COORDINATOR_RETRY_MS = 1_000
"""Pause before the next try when the coordinator is unreachable."""
STEP_FACTS_KEPT = 64
"""Cached answers of the coordinator about a step and checkpoint."""


class RolloutCollector:
    """Fills a rollout buffer and takes batches from it."""

    def __init__(
        self,
        config: TrainConfig,
        client: HttpClient,
        buffer: RolloutBuffer,
        model_files: ModelFiles,
        sandbox: Sandbox,
        clock: Clock,
    ) -> None:
        self._config = config
        self._client = client
        self.buffer = buffer
        self._model_files = model_files
        self._sandbox = sandbox
        self._clock = clock
        self._task_sets = TaskSetCache(client, config.server)
        self.step = Step(0)
        """The checkpoint that the next batch is for."""
        self.state = "starting"
        self._handled: dict[Digest, int] = {}
        self._listed: dict[int, int] = {}
        """Credited slots of each step when its submissions were last read completely."""
        self._step_facts: dict[StepRequest, StepReply] = {}
        self._has_unread = True
        """Some accepted submission may not be in the buffer yet."""
        self._changed = asyncio.Event()
        self.run_info: TrainerRunInfo | None = None
        self.refused: Counter[str] = Counter()
        """Number of refused submissions by the field that was wrong."""
        self.problem = ""
        """The last failure; empty after a success."""

    # --- Batches ----------------------------------------------------------------------------------------------------

    async def next_batch(self, step: Step, stop: asyncio.Event) -> TrainingBatch | None:
        """Wait until there is enough for the step after checkpoint `step`; None when told to stop."""
        self.step, self.state = step, "waiting for rollouts"
        while not stop.is_set():
            self.buffer.expire(step, self.lag_max)
            if self.buffer.is_enough() or self._is_run_exhausted(step):
                self.state = "training"
                return self.buffer.take_batch(step)
            self._changed.clear()
            await wait_for_first(self._changed.wait(), stop.wait())
        self.state = "stopping"
        return None

    async def wait_for_run(self, stop: asyncio.Event) -> TrainerRunInfo | None:
        """Wait until the coordinator answers; None when told to stop before."""
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
        """The run's limit, or our own where that is lower."""
        assert self.run_info is not None, "wait_for_run comes first"
        own = self._config.lag_max
        return self.run_info.lag_max if own is None else min(own, self.run_info.lag_max)

    def _is_run_exhausted(self, step: Step) -> bool:
        """The run has no more work to lease before the next checkpoint, so waiting would never end."""
        run = self.run_info
        return run is not None and run.latest_step == step and run.is_exhausted and not self._has_unread

    # --- Polling ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                await self.poll()
            except (LocalError, RemoteError) as error:
                self.problem = str(error)
                log.warning("cannot list accepted submissions: %s", error)
                await self._clock.sleep_ms(COORDINATOR_RETRY_MS)
            await self._clock.sleep_ms(self._config.poll_ms)

    async def poll(self) -> None:
        """Ingest what was accepted since the last poll."""
        run = await self._get_json(f"{API_ROOT}/runs/{self._config.run}", parse_run)
        # Acceptance credits slots, so a step with an unchanged count has nothing new. The list is read after the
        # count, so it is at least as new.
        steps = [step for step in range(max(0, self.step - self.lag_max), self.step + 1) if step in run.slots_done]
        changed = [step for step in steps if self._listed.get(step) != run.slots_done[step]]
        new = [row for step in changed for row in await self._list_accepted(step) if self._is_new(row.name)]
        receipts = await self._find_receipts({row.name for row in new})
        slots = asyncio.Semaphore(FETCHES_MAX)
        is_complete = all(await asyncio.gather(*(self._ingest(row, receipts, slots) for row in new)))
        if is_complete:
            self._listed = {step: run.slots_done[step] for step in steps}
            self.problem = ""
        self._handled = {name: at for name, at in self._handled.items() if at >= self.step - HANDLED_STEPS_KEPT}
        self.run_info, self._has_unread = run, not is_complete
        self._changed.set()

    def _is_new(self, name: Digest) -> bool:
        return name not in self._handled and not self.buffer.contains(name)

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
        """Read entries newest first, until all receipts are found."""
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
            raise LocalError(f"the coordinator at {self._config.coordinator} does not have {path}")
        return parse_response(path, raw, make)

    # --- Ingesting --------------------------------------------------------------------------------------------------

    async def _ingest(
        self, row: AcceptedSubmission, receipts: Mapping[Digest, SubmissionReceipt], slots: asyncio.Semaphore
    ) -> bool:
        """Return False where it must be tried again."""
        async with slots:
            try:
                if row.name not in receipts:
                    raise RemoteError("submission", f"{row.name} is listed but not in the log")
                graded = await self._fetch_and_grade(row, receipts[row.name])
            except RemoteError as error:
                self.refused[error.field] += 1
                log.warning("refused submission %s: %s", row.name, error)
            except LocalError as error:
                self.problem = str(error)
                log.warning("cannot read submission %s yet: %s", row.name, error)
                return False
            else:
                self.buffer.add(graded)
                self._changed.set()
        self._handled[row.name] = self.step
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
        # A skipped step has the root of an earlier checkpoint, so the root may name a later step than the receipt.
        return GradedSubmission(row.name, Step(min(facts.weights.step, receipt.step)), tuple(groups))

    async def _get_step_facts(self, receipt: SubmissionReceipt) -> StepReply:
        """Terms, beacon and checkpoint, signed by the coordinator. They are final once a submission exists."""
        request = StepRequest(step=receipt.step, root=receipt.checkpoint_root)
        if request not in self._step_facts:
            facts = (await self._client.call(self._config.server, STEP, request, run=self._config.run_id)).message
            if facts.weights.root != receipt.checkpoint_root:
                raise RemoteError("weights.root", f"is {facts.weights.root}, requested was {receipt.checkpoint_root}")
            self._step_facts[request] = facts
            if len(self._step_facts) > STEP_FACTS_KEPT:
                self._step_facts.pop(next(iter(self._step_facts)))
        return self._step_facts[request]

    async def _grade(self, rows: list[Rollout], family: TaskFamily) -> RolloutGroup:
        task = family.make(rows[0].task)
        prompt = self._model_files.encode_prompt(task.prompt)
        for row in rows:
            # Only a share of submissions is audited, so the trainer checks the prompt of every one.
            if row.prompt_tokens.tolist() != prompt:
                raise RemoteError("prompt_tokens", f"of slot {row.slot} differ from the prompt of task {task.index}")
        answers = [self._model_files.decode(row.output_tokens.tolist()) for row in rows]
        grades = await grade_answers(family, task, answers, self._sandbox)
        return make_rollout_group(rows, [grade.reward for grade in grades], self._config.advantage)


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
