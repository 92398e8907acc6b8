"""A validator's audit: fetch the file and the checkpoint, read it again, grade it, and put evidence on disk.

Whatever breaks on this machine, or on the way to it, is no verdict: only the file itself can be found bad.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from prime_node.briefing import Briefing, Briefings
from prime_node.checks import Judgement, Rewards
from prime_node.engine.keeper import EngineKeeper
from prime_node.events import AuditDone, AuditFailed, Finding
from prime_node.evidence import build_evidence, check_receipt, digest_metrics, open_evidence
from prime_node.examination import Examination, examine
from prime_node.grading import grade_rows
from prime_node.shelf import Shelf
from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX
from prime_protocol.entries import Outcome
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.looks import Onlookers
from prime_protocol.messages import AuditTask
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.signing import Signature
from prime_runtime.clock import Clock
from prime_runtime.fetching import fetch_file
from prime_runtime.http_client import HttpClient, Server
from prime_runtime.sandbox import Sandbox

log = logging.getLogger(__name__)

FindReceipt = Callable[[Digest], Awaitable[tuple[SubmissionReceipt, Signature] | None]]
"""The worker's signed word for a submission, from the public log; None where it cannot be had."""


class Auditor:
    """Carries out Audit."""

    def __init__(
        self,
        client: HttpClient,
        server: Server,
        network: NetworkId,
        run: RunId,
        *,
        node: NodeId,
        briefings: Briefings,
        keeper: EngineKeeper,
        shelf: Shelf,
        sandbox: Sandbox,
        find_receipt: FindReceipt,
        clock: Clock,
    ) -> None:
        self._client = client
        self._server = server
        self._network = network
        self._run = run
        self._node = node
        self._briefings = briefings
        self._keeper = keeper
        self._shelf = shelf
        self._sandbox = sandbox
        self._find_receipt = find_receipt
        self._clock = clock
        self.given: Counter[str] = Counter()
        """Findings of this process by outcome, and how many were inspections or broke."""
        self.problem = ""
        """Why the last audit broke; empty where it did not."""

    async def audit(self, task: AuditTask) -> AuditDone | AuditFailed:
        left_ms = max(1, task.deadline_ms - self._clock.now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                finding = await self._find(task)
        except TimeoutError:
            return self._break_off(task, "it was not done in time")
        except (LocalError, RemoteError) as error:
            return self._break_off(task, str(error))
        except Exception as error:  # boundary: a stranger's file that finds a bug here costs its verdict, not the node
            log.exception("the audit of %s failed", task.submission)
            return self._break_off(task, f"a fault of this program: {error!r}")
        self.problem = ""
        self.given["inspected" if task.readers else str(finding.outcome)] += 1
        if task.readers:
            log.info("submission %s: inspected for %d validators", task.submission, len(task.readers))
        else:
            log.info("submission %s: %s %s", task.submission, finding.outcome, finding.reason)
        return AuditDone(task.submission, finding)

    def _break_off(self, task: AuditTask, problem: str) -> AuditFailed:
        self.problem = problem
        self.given["broken"] += 1
        log.warning("no verdict on %s: %s", task.submission, problem)
        return AuditFailed(task.submission)

    async def _find(self, task: AuditTask) -> Finding:
        path = f"/objects/{task.file_digest}"
        data = await fetch_file(self._client, self._server, path, task.file_digest, bytes_max=ROLLOUT_FILE_BYTES_MAX)
        async with self._briefings.about(task.step, task.checkpoint_root) as briefing:
            examined = await self._examine(data, briefing, task)
            if task.readers:
                return inspection_of(examined)
            rewards = None
            if examined.is_good and examined.file is not None:
                rewards = await grade_rows(examined.file.rows, briefing, self._sandbox)
            judged = examined.judge(rewards)
            if judged.outcome is Outcome.ACCEPT:
                return as_finding(examined, judged, digest_metrics(judged.metrics))
            if examined.numbers:
                await self._confirm(data, briefing, task, judged, rewards)
            return as_finding(examined, judged, await self._keep(task, data, examined, judged), has_bundle=True)

    async def _examine(self, data: bytes, briefing: Briefing, task: AuditTask) -> Examination:
        header = briefing.header(task.lease, task.node)
        limits = briefing.limits(task.first_slot, task.slots)
        onlookers = Onlookers(task.submission, task.readers or (self._node,))
        return await examine(data, briefing, header, limits, self._keeper, task.seed, onlookers)

    async def _confirm(
        self, data: bytes, briefing: Briefing, task: AuditTask, judged: Judgement, rewards: Rewards | None
    ) -> None:
        """A stake hangs on it: before a file is rejected it is read once more, with weights checked and loaded anew.

        A bit that flipped on this machine is no fault of the worker.
        """
        await self._keeper.drop_weights()
        await self._briefings.check_weights(briefing.root)
        again = (await self._examine(data, briefing, task)).judge(rewards)
        if again.outcome is not judged.outcome:
            raise LocalError(
                f"the file was found {judged.outcome} ({judged.reason}) and, read once more, {again.outcome}: "
                "this machine's memory or its engine errs"
            )

    async def _keep(self, task: AuditTask, data: bytes, examined: Examination, judged: Judgement) -> Digest:
        """The evidence, on this disk before the verdict is signed."""
        signed = await self._find_receipt(task.submission)
        if signed is not None:
            try:
                check_receipt(signed[0], task)
            except RemoteError as error:
                log.warning("the log's receipt for %s is left out of the evidence: %s", task.submission, error)
                signed = None
        bundle = build_evidence(
            network=self._network,
            run=self._run,
            task=task,
            facts=await self._briefings.facts(task.step, task.checkpoint_root),
            file=data,
            signed=signed,
            examined=examined,
            judged=judged,
        )
        # What nobody can read is no evidence, and without evidence there is no rejection.
        await asyncio.to_thread(open_evidence, bundle)
        return await asyncio.to_thread(self._shelf.put, bundle)


def as_finding(examined: Examination, judged: Judgement, evidence: Digest, *, has_bundle: bool = False) -> Finding:
    return Finding(
        outcome=judged.outcome,
        reason=judged.reason,
        metrics=judged.metrics,
        evidence=evidence,
        has_bundle=has_bundle,
        looks=examined.looks,
    )


def inspection_of(examined: Examination) -> Finding:
    """What others must have seen in the file. What it is worth was judged before."""
    judged = examined.judge()
    return as_finding(examined, judged, digest_metrics(judged.metrics))
