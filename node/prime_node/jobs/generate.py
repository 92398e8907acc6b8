"""Generates the rollout file of a lease: tasks and seeds from the beacon, completions from the engine, a self-check.

The file is on disk and in the journal before the agent hears of it. A file that an earlier process generated for the
same lease is reused, so that a crash never leads to two different answers.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from prime_node.agent.events import FinishedFile, Generate, Generated, GenerationFailed, GenerationProgressed
from prime_node.engine.interface import Completion, EngineFacts, GenerateRequest
from prime_node.engine.lifecycle import EngineSession
from prime_node.engine.machine_class import get_engine_class
from prime_node.engine.pool import EnginePool
from prime_node.engine.process import EngineDied
from prime_node.jobs.examination import check_format
from prime_node.jobs.self_check import SelfCheck
from prime_node.jobs.step_context import StepContext, StepContexts
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.constants import REASON_CHARS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import LeaseGranted
from prime_protocol.ledger.randomness import compute_sample_seed, compute_slot_task
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.rollouts.file import write_rollouts
from prime_protocol.rollouts.rollout import Rollout, RolloutFile, compute_rollout_root
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Sample, Slot
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.clock import Clock
from prime_runtime.http.client import Unreachable

log = logging.getLogger(__name__)

ENGINE_TRIES = 3
"""Attempts at one lease when the engine process dies."""
STEP_RETRY_MS = 2_000
"""Between two requests for a step's facts while the coordinator does not answer."""

OnProgress = Callable[[GenerationProgressed], None]


def require_known_class(context: StepContext, facts: EngineFacts) -> None:
    """LocalError: the run takes work of other engine classes only, so a file of this one would be refused."""
    table, name = context.terms.class_bounds, get_engine_class(facts)
    if table.is_closed and name not in table.classes:
        raise LocalError(
            f"the run {context.run} takes work of calibrated engines only, and {name or 'this engine'} is none of its "
            f"{len(table.classes)} classes: docs/operating/calibrate.md"
        )


@dataclass(frozen=True, slots=True)
class RequestedSample:
    """One completion that a lease asks for."""

    slot: Slot
    sample: Sample
    task: int


class RolloutGenerator:
    """Carries out the effect Generate."""

    def __init__(
        self,
        node: NodeId,
        network: NetworkId,
        run: RunId,
        *,
        contexts: StepContexts,
        engine: EnginePool,
        spool: UploadSpool,
        journal: Journal,
        self_check: SelfCheck,
        clock: Clock,
    ) -> None:
        self._node = node
        self._network = network
        self._run = run
        self._contexts = contexts
        self._engine = engine
        self._spool = spool
        self._journal = journal
        self._self_check = self_check
        self._clock = clock

    async def generate(self, wanted: Generate, on_progress: OnProgress) -> Generated | GenerationFailed:
        """Cancelling abandons the lease."""
        lease, started_ms = wanted.lease.lease, self._clock.now_ms()
        try:
            await self._wait_for_step_facts(wanted)
            async with self._contexts.open(wanted.lease.step, wanted.checkpoint_root) as context:
                if context.beacon != wanted.beacon:
                    raise RemoteError("StepReply.beacon", f"of step {context.step} differs from that of a heartbeat")
                work = await self._reuse_saved_file(wanted, context)
                if work is None:
                    data, file = await self._generate(wanted.lease, context, on_progress)
                    work = await self._save_file(wanted.lease, data, file, started_ms)
        except (LocalError, RemoteError) as error:
            log.warning("returning lease %d: %s", lease, error)
            self.record_returned(wanted.lease, str(error))
            return GenerationFailed(lease, str(error)[:REASON_CHARS_MAX])
        return Generated(lease, work)

    async def _wait_for_step_facts(self, wanted: Generate) -> None:
        """Retries until the lease's deadline, so that a restart of the coordinator costs no lease."""
        while True:
            try:
                await self._contexts.get_facts(wanted.lease.step, wanted.checkpoint_root)
                return
            except Unreachable:
                if self._clock.now_ms() + STEP_RETRY_MS >= wanted.lease.deadline_ms:
                    raise
            await self._clock.sleep_ms(STEP_RETRY_MS)

    async def _reuse_saved_file(self, wanted: Generate, context: StepContext) -> FinishedFile | None:
        """The file that an earlier process generated for this lease, if it is intact and still valid."""
        record = self._journal.get_by_lease(self._run, wanted.lease.lease)
        if record is None or record.file is None or record.state is not JobState.PRODUCED:
            return None
        data = await asyncio.to_thread(self._spool.get, record.file)
        if data is None:
            return None
        header = context.make_header(wanted.lease.lease, self._node)
        limits = context.get_limits(wanted.lease.first_slot, wanted.lease.slots)
        checked = await asyncio.to_thread(check_format, data, context, header, limits)
        if checked.file is None or not checked.is_valid:
            self._spool.remove(record.file)
            return None
        log.info("lease %d was generated before a restart; reusing its file", record.lease)
        return await asyncio.to_thread(describe_file, data, checked.file)

    async def _save_file(self, lease: LeaseGranted, data: bytes, file: RolloutFile, started_ms: int) -> FinishedFile:
        """Writes the file to disk, then the record to the journal: a record never names a missing file."""
        work = await asyncio.to_thread(describe_file, data, file)
        await asyncio.to_thread(self._spool.put, data)
        record = self._make_record(lease, started_ms, JobState.PRODUCED, work=work, rows=len(file.rows))
        self._journal.add(record, self._clock.now_ms())
        return work

    async def _generate(
        self, lease: LeaseGranted, context: StepContext, on_progress: OnProgress
    ) -> tuple[bytes, RolloutFile]:
        done: dict[int, Completion] = {}
        for left in reversed(range(ENGINE_TRIES)):
            try:
                async with context.lend(self._engine) as session:
                    return await self._generate_and_check(lease, context, session, done, on_progress)
            except EngineDied as error:
                if not left:
                    raise
                log.warning("restarting lease %d, which has %d rows: %s", lease.lease, len(done), error)
        raise AssertionError("the last attempt returns or raises")

    async def _generate_and_check(
        self,
        lease: LeaseGranted,
        context: StepContext,
        session: EngineSession,
        done: dict[int, Completion],
        on_progress: OnProgress,
    ) -> tuple[bytes, RolloutFile]:
        """Generates, encodes, and checks the file as a validator would: a faulty engine must not cost the stake.

        `done` has the rows that an engine finished before it died. They are of the same checkpoint.
        """
        require_known_class(context, session.facts)
        rows = list_samples(lease.first_slot, lease.slots, context)
        requests = await asyncio.to_thread(make_requests, rows, context)
        before = len(done)

        def keep(completion: Completion) -> None:
            done[completion.number] = completion

        on_progress(GenerationProgressed(lease.lease, before, len(rows)))
        await session.process.generate(
            [request for request in requests if request.number not in done],
            context.sampling,
            lambda count: on_progress(GenerationProgressed(lease.lease, before + count, len(rows))),
            keep,
        )
        header = context.make_header(lease.lease, self._node)
        made = [done[request.number] for request in requests]
        table = context.terms.class_bounds
        data = await asyncio.to_thread(
            write_rollouts,
            header,
            make_rollouts(rows, requests, made, context),
            get_engine_class(session.facts) if table.classes else None,
            names_class=bool(table.classes),
        )
        limits = context.get_limits(lease.first_slot, lease.slots)
        checked = await asyncio.to_thread(check_format, data, context, header, limits)
        await self._self_check.check(checked, context, session)
        assert checked.file is not None, "the self-check has passed"
        return data, checked.file

    def record_returned(self, lease: LeaseGranted, reason: str) -> None:
        """Records in the journal that the lease was returned, and why."""
        known = self._journal.get_by_lease(self._run, lease.lease)
        now_ms = self._clock.now_ms()
        if known is not None:
            self._journal.advance(known, JobState.RETURNED, now_ms, reason=reason)
        else:
            record = self._make_record(lease, now_ms, JobState.RETURNED, reason=reason)
            self._journal.add(record, now_ms)

    def _make_record(
        self,
        lease: LeaseGranted,
        started_ms: int,
        state: JobState,
        *,
        work: FinishedFile | None = None,
        rows: int = 0,
        reason: str = "",
    ) -> JobRecord:
        return JobRecord(
            run=self._run,
            lease=lease.lease,
            step=lease.step,
            first_slot=lease.first_slot,
            slots=lease.slots,
            deadline_ms=lease.deadline_ms,
            started_ms=started_ms,
            state=state,
            reason=reason,
            is_open=work is not None,
            submission=self._compute_submission(lease, work) if work else None,
            file=work.file_digest if work else None,
            checkpoint_root=work.checkpoint_root if work else None,
            rollout_root=work.rollout_root if work else None,
            rows=rows,
            file_bytes=work.file_bytes if work else 0,
            output_tokens=work.output_tokens if work else 0,
            context_tokens=work.context_tokens if work else 0,
        )

    def _compute_submission(self, lease: LeaseGranted, work: FinishedFile) -> Digest:
        """The id that the submission will have."""
        return compute_receipt_id(work.make_receipt(self._network, self._run, lease))


def list_samples(first_slot: int, slots: int, context: StepContext) -> list[RequestedSample]:
    """Every sample of every slot of the lease, in file order."""
    return [
        RequestedSample(Slot(slot), Sample(sample), compute_slot_task(context.beacon, Slot(slot), context.family.size))
        for slot in range(first_slot, first_slot + slots)
        for sample in range(context.terms.samples_per_slot)
    ]


def make_requests(rows: Sequence[RequestedSample], context: StepContext) -> list[GenerateRequest]:
    """Requests to the engine, numbered like the rows. It waits for the tokenizer's process: use a thread."""
    prompts = context.encode_prompts(row.task for row in rows)
    return [
        GenerateRequest(
            number=number, prompt=prompts[row.task], seed=compute_sample_seed(context.beacon, row.slot, row.sample)
        )
        for number, row in enumerate(rows)
    ]


def make_rollouts(
    rows: Sequence[RequestedSample],
    requests: Sequence[GenerateRequest],
    done: Sequence[Completion],
    context: StepContext,
) -> list[Rollout]:
    return [
        Rollout(
            slot=row.slot,
            sample=row.sample,
            task=row.task,
            temperature=context.terms.temperature,
            target_length=None,
            finish=completion.finish,
            prompt_tokens=request.prompt,
            output_tokens=completion.tokens,
            output_logprobs=completion.logprobs,
            proofs=completion.proofs,
        )
        for row, request, completion in zip(rows, requests, done, strict=True)
    ]


def describe_file(data: bytes, file: RolloutFile) -> FinishedFile:
    """Slow for a large file: use a thread."""
    return FinishedFile(
        checkpoint_root=file.header.checkpoint_root,
        file_digest=Digest(sha256(data).digest()),
        rollout_root=compute_rollout_root(file),
        file_bytes=len(data),
        output_tokens=sum(len(row.output_tokens) for row in file.rows),
        context_tokens=sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows),
    )
