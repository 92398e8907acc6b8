"""A validator's audit: fetch the file and the checkpoint, check it with the model, grade it, write the evidence.

Only the file itself can cause a rejection. A failure of this machine or of the network ends the audit without a
verdict. Rewards are computed here, never read from the worker's file.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from prime_node.agent.events import AuditDone, AuditFailed, AuditFinding
from prime_node.engine.pool import EnginePool
from prime_node.jobs.evidence_bundle import (
    decode_evidence,
    digest_metrics,
    encode_evidence,
    verify_receipt,
)
from prime_node.jobs.examination import (
    Examination,
    ReadingPlan,
    examine,
    read_again,
)
from prime_node.jobs.file_checks import Judgement, RewardSummary
from prime_node.jobs.step_context import StepContext, StepContexts
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.rollouts.rollout import Rollout
from prime_protocol.tasks.family import MACHINE_DEPENDENT, Grade
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.messages import AuditTask
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import SubmissionReceipt
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.task_sets import grade_answers

log = logging.getLogger(__name__)

FetchReceipt = Callable[[Digest], Awaitable[tuple[SubmissionReceipt, Signature] | None]]
"""Fetches the worker's signed receipt of a submission from the public log; None where that fails."""


async def grade_rows(rows: Sequence[Rollout], context: StepContext, sandbox: Sandbox) -> RewardSummary:
    """LocalError where this machine cannot decode or run a sandbox job: that says nothing about the answers."""
    answers = await asyncio.to_thread(context.model.decode, [row.output_tokens.tolist() for row in rows])

    async def grade(row: Rollout, answer: str) -> Grade:
        (found,) = await grade_answers(context.family, context.family.make(row.task), [answer], sandbox)
        return found

    grades = await asyncio.gather(*map(grade, rows, answers))
    return RewardSummary(
        mean=sum(grade.reward for grade in grades) / len(grades),
        right=sum(grade.reward == 1.0 for grade in grades),
        machine_dependent=sum(grade.reason in MACHINE_DEPENDENT for grade in grades),
    )


class Auditor:
    """Carries out the effect Audit."""

    def __init__(
        self,
        client: HttpClient,
        server: ServerAddress,
        network: NetworkId,
        run: RunId,
        *,
        node: NodeId,
        contexts: StepContexts,
        engine: EnginePool,
        spool: UploadSpool,
        sandbox: Sandbox,
        fetch_receipt: FetchReceipt,
        clock: Clock,
    ) -> None:
        self._client = client
        self._server = server
        self._network = network
        self._run = run
        self._node = node
        self._contexts = contexts
        self._engine = engine
        self._spool = spool
        self._sandbox = sandbox
        self._fetch_receipt = fetch_receipt
        self._clock = clock
        self.counts: Counter[str] = Counter()
        """Audits of this process by outcome; also those that were inspections, and those that failed."""
        self.problem = ""
        """Why the last audit failed; empty where it did not."""

    async def audit(self, task: AuditTask) -> AuditDone | AuditFailed:
        left_ms = max(1, task.deadline_ms - self._clock.now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                finding = await self._check_submission(task)
        except TimeoutError:
            return self._fail(task, "it was not finished in time")
        except (LocalError, RemoteError) as error:
            return self._fail(task, str(error))
        except Exception as error:  # boundary: a hostile file that hits a bug here costs its verdict, not the node
            log.exception("the audit of %s failed", task.submission)
            return self._fail(task, f"a bug in this program: {error!r}")
        self.problem = ""
        self.counts["inspected" if task.readers else str(finding.outcome)] += 1
        if task.readers:
            log.info("submission %s: inspected for %d validators", task.submission, len(task.readers))
        else:
            log.info("submission %s: %s %s", task.submission, finding.outcome, finding.reason)
        return AuditDone(task.submission, finding)

    def _fail(self, task: AuditTask, problem: str) -> AuditFailed:
        self.problem = problem
        self.counts["failed"] += 1
        log.warning("no verdict on %s: %s", task.submission, problem)
        return AuditFailed(task.submission)

    async def _check_submission(self, task: AuditTask) -> AuditFinding:
        path = f"/objects/{task.file_digest}"
        data = await fetch_file(self._client, self._server, path, task.file_digest, bytes_max=ROLLOUT_FILE_BYTES_MAX)
        async with self._contexts.open(task.step, task.checkpoint_root) as context:
            examined = await self._examine(data, context, task)
            if task.readers:
                return make_inspection(examined)
            if examined.numbers:
                examined = await self._confirm(context, task, examined)
            rewards = None
            if examined.is_valid and examined.file is not None:
                rewards = await grade_rows(examined.file.rows, context, self._sandbox)
            judged = examined.judge(rewards)
            if judged.outcome is Outcome.ACCEPT:
                return make_finding(examined, judged, digest_metrics(judged.metrics))
            return make_finding(
                examined, judged, await self._save_evidence(task, data, examined, judged), has_bundle=True
            )

    async def _examine(self, data: bytes, context: StepContext, task: AuditTask) -> Examination:
        header = context.make_header(task.lease, task.node)
        limits = context.get_limits(task.first_slot, task.slots)
        readers = task.readers or (ReadCoverage(self._node, 0),)
        plan = ReadingPlan(task.submission, readers, is_inspection=bool(task.readers))
        examined = await examine(data, context, header, limits, self._engine, task.seed, plan)
        return replace(examined, sums=task.sums)

    async def _confirm(self, context: StepContext, task: AuditTask, examined: Examination) -> Examination:
        """Reads the deciding rows again; of a file to be rejected, with weights that are verified and loaded afresh.

        A rejection can cost the worker its stake, and a bit that flipped in this machine's memory is not its fault.
        """
        if not examined.is_valid:
            await self._engine.invalidate_weights()
            await self._contexts.check_weights(context.root)
        async with context.lend(self._engine) as session:
            return await read_again(examined, context, session, task.seed)

    async def _save_evidence(self, task: AuditTask, data: bytes, examined: Examination, judged: Judgement) -> Digest:
        """Writes the evidence to this disk, before the verdict is signed."""
        signed = await self._fetch_receipt(task.submission)
        if signed is not None:
            try:
                verify_receipt(signed[0], task)
            except RemoteError as error:
                log.warning("the evidence omits the log's receipt of %s: %s", task.submission, error)
                signed = None
        bundle = encode_evidence(
            network=self._network,
            run=self._run,
            task=task,
            facts=await self._contexts.get_facts(task.step, task.checkpoint_root),
            file=data,
            signed=signed,
            examined=examined,
            judged=judged,
        )
        # Evidence that others cannot decode proves nothing, and there is no rejection without evidence.
        await asyncio.to_thread(decode_evidence, bundle)
        return await asyncio.to_thread(self._spool.put, bundle)


def make_finding(
    examined: Examination, judged: Judgement, evidence: Digest, *, has_bundle: bool = False
) -> AuditFinding:
    return AuditFinding(
        outcome=judged.outcome,
        reason=judged.reason,
        metrics=judged.metrics,
        evidence=evidence,
        has_bundle=has_bundle,
        read_proofs=examined.read_proofs,
        blocks_read=examined.blocks_read,
        bets=examined.weighed.bets if examined.weighed else (),
    )


def make_inspection(examined: Examination) -> AuditFinding:
    """An inspection only yields read proofs: the file's outcome was decided before."""
    judged = examined.judge()
    return make_finding(examined, judged, digest_metrics(judged.metrics))
