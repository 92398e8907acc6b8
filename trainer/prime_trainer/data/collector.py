"""Collects accepted submissions: lists them, fetches files by digest, verifies and grades them again. Rim.

Training uses nothing else. A file that fails verification is its worker's fault and is refused for good; a failure on
the way is retried.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from typing import Any

from prime_protocol.constants import LINEAGE_MAX, ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.versions.lineage import LISTED_LINEAGE
from prime_protocol.rollouts.rollout import Rollout
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import RUN, STEP, AcceptedSubmission, RunReply, RunRequest, StepReply, StepRequest
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient, Unreachable
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.task_sets import TaskSetCache, grade_answers
from prime_trainer.config import TrainConfig
from prime_trainer.data.rollout_buffer import GradedSubmission, RolloutBuffer, RolloutGroup, TrainingBatch
from prime_trainer.data.submissions import make_rollout_group, read_submission

log = logging.getLogger(__name__)

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
        self._cursor = 0
        """Number of the last accepted submission that was ingested with all before it."""
        self._step_facts: dict[StepRequest, StepReply] = {}
        self._has_unread = True
        """Some accepted submission may not be in the buffer yet."""
        self._changed = asyncio.Event()
        self.run_info: RunReply | None = None
        self.refused: Counter[str] = Counter()
        """Number of refused submissions by the field that was wrong."""
        self.problem = ""
        """The last failure; empty after a success."""
        self._newest_step = -1
        self._restored_size = 0
        self.lost_step: int | None = None
        """The newest step of the run, if the coordinator restored its log and does not have it any more."""
        self.on_lost_step: Callable[[], None] = lambda: None
        """Called when that is noticed."""

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

    async def wait_for_run(self, stop: asyncio.Event) -> RunReply | None:
        """Wait until the coordinator answers; None when told to stop before."""
        while not stop.is_set():
            try:
                self.run_info = await self._fetch_run(self._cursor)
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
        limit = self.run_info.terms.lag_max
        return limit if own is None else min(own, limit)

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
        is_complete = True
        while is_complete:
            run = await self._fetch_run(self._cursor)
            self._check_step(run)
            new = [each for each in run.accepted if self._is_wanted(each.receipt)]
            slots = asyncio.Semaphore(FETCHES_MAX)
            is_complete = all(await asyncio.gather(*(self._ingest(each, slots) for each in new)))
            if not is_complete or not run.accepted:
                break
            self._cursor = run.accepted[-1].number
        if is_complete:
            self.problem = ""
        self._handled = {name: at for name, at in self._handled.items() if at >= self.step - HANDLED_STEPS_KEPT}
        self.run_info, self._has_unread = run, not is_complete
        self._changed.set()

    def _check_step(self, run: RunReply) -> None:
        if run.restored_size != self._restored_size:
            self._restored_size = run.restored_size
            self._step_facts.clear()  # the beacon of a step may be lost, and the step gets another one
        if run.latest_step < self._newest_step and self.lost_step is None:
            self.lost_step = self._newest_step
            self.on_lost_step()
        self._newest_step = max(self._newest_step, run.latest_step)

    def _is_wanted(self, receipt: SubmissionReceipt) -> bool:
        name = compute_receipt_id(receipt)
        is_recent = receipt.step >= self.step - self.lag_max
        return is_recent and name not in self._handled and not self.buffer.contains(name)

    async def _fetch_run(self, after: int) -> RunReply:
        request = RunRequest(after=after)
        found = (await self._client.call(self._config.server, RUN, request, run=self._config.run_id)).message
        self.buffer.submissions_max = LINEAGE_MAX if found.rules < LISTED_LINEAGE else 0
        return found

    # --- Ingesting --------------------------------------------------------------------------------------------------

    async def _ingest(self, accepted: AcceptedSubmission, slots: asyncio.Semaphore) -> bool:
        """Return False where it must be tried again."""
        name = compute_receipt_id(accepted.receipt)
        if accepted.receipt.step > self.step:
            return False  # the next batch is still for an older checkpoint
        async with slots:
            try:
                graded = await self._fetch_and_grade(name, accepted)
            except RemoteError as error:
                self.refused[error.field] += 1
                log.warning("refused submission %s: %s", name, error)
            except LocalError as error:
                self.problem = str(error)
                log.warning("cannot read submission %s yet: %s", name, error)
                return False
            else:
                self.buffer.add(graded)
                self._changed.set()
        self._handled[name] = self.step
        return True

    async def _fetch_and_grade(self, name: Digest, accepted: AcceptedSubmission) -> GradedSubmission:
        config, receipt = self._config, accepted.receipt
        if receipt.run != config.run_id:
            raise RemoteError("receipt.run", f"is {receipt.run}")
        facts = await self._get_step_facts(receipt)
        family = await self._task_sets.open(facts.terms.task_set)
        data = await fetch_file(
            self._client,
            config.server,
            f"/objects/{receipt.file_digest}",
            receipt.file_digest,
            bytes_max=ROLLOUT_FILE_BYTES_MAX,
        )
        rows = await asyncio.to_thread(read_submission, data, accepted, facts, family)
        answers = await asyncio.to_thread(read_answers, rows, family, self._model_files)
        groups = [
            await self._grade(list(group), family)
            for _, group in groupby(zip(rows, answers, strict=True), key=lambda pair: pair[0].slot)
        ]
        # A skipped step has the root of an earlier checkpoint, so the root may name a later step than the receipt.
        return GradedSubmission(name, Step(min(facts.weights.step, receipt.step)), tuple(groups))

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

    async def _grade(self, answered: list[tuple[Rollout, str]], family: TaskFamily) -> RolloutGroup:
        rows, answers = [row for row, _ in answered], [answer for _, answer in answered]
        grades = await grade_answers(family, family.make(rows[0].task), answers, self._sandbox)
        return make_rollout_group(rows, [grade.reward for grade in grades], self._config.advantage)


def read_answers(rows: Sequence[Rollout], family: TaskFamily, model_files: ModelFiles) -> list[str]:
    """The text of every answer. Only a share of submissions is audited, so the prompt of every row is checked here.

    RemoteError: a prompt is not its task's. It waits for the tokenizer's process: use a thread.
    """
    tasks = sorted({row.task for row in rows})
    encoded = model_files.encode_prompts([family.make(task).prompt for task in tasks])
    prompts = dict(zip(tasks, encoded, strict=True))
    for row in rows:
        if row.prompt_tokens.tolist() != prompts[row.task]:
            raise RemoteError("prompt_tokens", f"of slot {row.slot} differ from the prompt of task {row.task}")
    return model_files.decode([row.output_tokens.tolist() for row in rows])


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
