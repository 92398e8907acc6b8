"""One run with one model, and the real checks of a submission: the intake process and a validator's engine process.

A file takes the same path as in a network: the process that checks every file, then the audit that every validator
runs, with an engine in its own process. Only the network between them is missing. Bounds are calibrated first, from
honest work of this model on this machine, by the code of `prime-node calibrate`.

"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prime_coordinator.admin.run_terms import TermsConfig, to_terms
from prime_coordinator.intake.checker import CheckerPool, CheckJob
from prime_coordinator.intake.checks import ExpectedSubmission
from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    ENGINE_ATTACKS,
    FILE_ATTACKS,
    ROW_ATTACKS,
)
from prime_lab.attacks.forged_files import FILE_FORGERS, HonestWork, SentFile
from prime_lab.cheats import proof_forgery as forgery
from prime_lab.cheats.registry import open_cheat
from prime_node.calibration.fit import CalibrationTarget, fit_tolerance
from prime_node.calibration.noise import collect_noise
from prime_node.engine.config import EngineConfig
from prime_node.engine.interface import Engine, TokenSequence
from prime_node.engine.lifecycle import EngineSession
from prime_node.engine.measurement import RowMeasurement
from prime_node.engine.pool import EnginePool
from prime_node.engine.torch.engine import TorchEngine
from prime_node.jobs.examination import Examination, examine, list_claims, read_again
from prime_node.jobs.generate import list_samples, make_requests, make_rollouts
from prime_node.jobs.step_context import StepContext
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Outcome as Finding
from prime_protocol.ledger.entries import Submitted
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import Rollout, RolloutHeader, compute_rollout_root
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step, digest_fields
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, SubmissionReceipt, sign_document
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import ModelFiles

NETWORK, RUN = NetworkId("gallery"), RunId("attacked")
STEP, OTHER_STEP = Step(7), Step(6)
TASK_SET = "sort-digits"
SAMPLES = 8
"""The default of a run."""
CHECK_MS, CHECK_MEMORY_MB = 60_000, 4096
ROW_INDEX = re.compile(r"\[[0-9]+\]")


def digest_words(*words: object) -> Digest:
    return digest_fields("gallery/1", *(str(word).encode() for word in words))


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessLease:
    """The slots that a worker has to fill."""

    number: int
    first_slot: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig:
    """The model under attack, and the limits of its run."""

    checkpoint: Path
    folder: Path
    """Of the engine process, and of files that are being checked."""
    tokens_max: int
    tolerance: Tolerance
    prompt_tokens_max: int = 64


class AttackHarness:
    """One run with one checkpoint."""

    def __init__(self, config: HarnessConfig, keeper: EnginePool, checkers: CheckerPool) -> None:
        self.config = config
        self._keeper = keeper
        self._checkers = checkers
        self.model = ModelFiles.open(config.checkpoint)
        self.root = digest_words("root", config.checkpoint)
        self.key = WalletKey.from_secret(sha256(b"a worker of the gallery").digest())
        self.briefing = self._brief(STEP)
        self._number = 0

    def _brief(self, step: Step) -> StepContext:
        return StepContext(
            run=RUN,
            step=step,
            terms=make_terms(
                vocabulary=self.model.vocabulary,
                model=self.config.checkpoint.name,
                tokens_max=self.config.tokens_max,
                prompt_tokens_max=self.config.prompt_tokens_max,
                tolerance=self.config.tolerance,
            ),
            beacon=digest_words("beacon", step),
            root=self.root,
            folder=self.config.checkpoint,
            family=open_family(TaskSetSpec.parse(TASK_SET)),
            model=self.model,
        )

    def hold_to(self, tolerance: Tolerance) -> None:
        """Judge everything from here on by these bounds."""
        self.briefing = replace(self.briefing, terms=replace(self.briefing.terms, tolerance=tolerance))

    # --- Making files -----------------------------------------------------------------------------------------------

    def lease(self, slots: int) -> HarnessLease:
        """The next lease, of slots that no other lease has."""
        self._number += 1
        return HarnessLease(number=self._number, first_slot=self._number * 64, slots=slots)

    def go_to(self, number: int) -> None:
        """Give the next lease this number, so that its work does not depend on what was done before."""
        self._number = number - 1

    def make_rows(self, engine: Engine, lease: HarnessLease, step: Step = STEP) -> list[Rollout]:
        """The rollouts that an engine generates for a lease."""
        briefing = self.briefing if step == STEP else self._brief(step)
        rows = list_samples(lease.first_slot, lease.slots, briefing)
        orders = make_requests(rows, briefing)
        done = sorted(engine.generate(orders, briefing.sampling), key=lambda completion: completion.number)
        return make_rollouts(rows, orders, done, briefing)

    def read_states(self, engine: Engine, rows: Sequence[Rollout]) -> NDArray[np.uint16]:
        """Hidden states of rows, concatenated."""
        texts = [
            TokenSequence(number=number, prompt=row.prompt_tokens, output=row.output_tokens, seed=0)
            for number, row in enumerate(rows)
        ]
        found = {reading.number: reading.hidden_bits for reading in engine.read(texts, self.briefing.sampling)}
        return np.concatenate([found[number] for number in sorted(found)])

    def header(self, lease: HarnessLease, node: NodeId | None = None) -> RolloutHeader:
        return self.briefing.make_header(lease.number, node or self.key.node)

    def gather(self, engine: Engine, lease: HarnessLease) -> HonestWork:
        """The honest work that a forger starts from."""
        others = self.make_rows(engine, self.lease(lease.slots + 1))
        return HonestWork(
            header=self.header(lease),
            rows=self.make_rows(engine, lease),
            others=others,
            other_step=self.make_rows(engine, lease, OTHER_STEP),
            known=forgery.learn_statistics(self.read_states(engine, others)),
            hidden=self.model.hidden,
            context=self.model.context_max,
            eos=min(self.model.eos),
        )

    # --- The way of a file ------------------------------------------------------------------------------------------

    async def submit(self, sent: SentFile, lease: HarnessLease) -> AttackResult:
        """Check a file as the intake does, then audit it."""
        try:
            await self._take_in(sent, lease)
        except RemoteError as error:
            check = ROW_INDEX.sub("", error.field).removeprefix("rows.").removeprefix("receipt.")
            return AttackResult(verdict=AttackVerdict.REFUSED, checks=(check,), reason=str(error))
        examined = await self.audit(sent.data, lease)
        judged = examined.judge()
        checks = tuple(dict.fromkeys(flaw.check for flaw in judged.flaws))
        if judged.outcome is Finding.INVALID:
            check = "order" if examined.file is None else "evidence"
            return AttackResult(verdict=AttackVerdict.REFUSED, checks=(check,), reason=judged.reason)
        verdict = AttackVerdict.FRAUDULENT if judged.outcome is Finding.FRAUDULENT else None
        return AttackResult(verdict=verdict, checks=checks, reason=judged.reason, tokens=examined.tokens_read)

    async def audit(self, data: bytes, lease: HarnessLease) -> Examination:
        """Audit as a validator does, with a seed that the worker did not know: two readings."""
        briefing = self.briefing
        header, limits = self.header(lease), briefing.get_limits(lease.first_slot, lease.slots)
        seed = digest_words("audit", sha256(data).hexdigest())
        examined = await examine(data, briefing, header, limits, self._keeper, seed)
        if not examined.numbers:
            return examined
        async with self._open_session() as session:
            return await read_again(examined, briefing, session, seed)

    async def measure(self, rows: Sequence[Rollout], seed: Digest) -> list[RowMeasurement]:
        """All rows, whatever they weigh."""
        async with self._open_session() as session:
            return await session.process.check(list_claims(rows, self.briefing.beacon), self.briefing.sampling, seed)

    def _open_session(self) -> AbstractAsyncContextManager[EngineSession]:
        context = self.briefing
        return self._keeper.acquire(context.root, context.folder, context.terms.tolerance.precision)

    async def _take_in(self, sent: SentFile, lease: HarnessLease) -> None:
        """The intake checks, in the process that the coordinator runs them in."""
        briefing = self.briefing
        expected = ExpectedSubmission(
            self.header(lease), briefing.get_limits(lease.first_slot, lease.slots), briefing.terms, briefing.beacon
        )
        path = self.config.folder / f"lease-{lease.number}"
        await asyncio.to_thread(path.write_bytes, sent.data)
        try:
            await self._checkers.check(CheckJob(path, self._sign(sent, lease, expected), expected, None))
        finally:
            path.unlink()

    def _sign(self, sent: SentFile, lease: HarnessLease, expected: ExpectedSubmission) -> Submitted:
        """The receipt of a worker that knows what it sends; it claims no tokens for a file that cannot be read."""
        root, outputs, context = Digest(bytes(32)), 0, 0
        try:
            file = read_rollouts(sent.data, expected.limits)
        except RemoteError:
            pass
        else:
            root = compute_rollout_root(file)
            outputs = sum(len(row.output_tokens) for row in file.rows) + sent.more_tokens
            context = sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows)
        receipt = SubmissionReceipt(
            network=NETWORK,
            run=RUN,
            step=STEP,
            lease=lease.number,
            node=self.key.node,
            checkpoint_root=self.root,
            file_digest=Digest(sha256(sent.data).digest()),
            rollout_root=root,
        )
        return Submitted(
            receipt=receipt,
            signature=sign_document(self.key, receipt, EMBEDDED_DOMAIN),
            file_bytes=len(sent.data),
            output_tokens=outputs,
            context_tokens=context,
        )


@asynccontextmanager
async def open_harness(config: HarnessConfig) -> AsyncIterator[AttackHarness]:
    """Start the processes of a harness, and stop them at the end."""
    config.folder.mkdir(parents=True, exist_ok=True)
    keeper = EnginePool(EngineConfig(device="cpu", threads=1), config.folder / "engine", SystemClock())
    checkers = CheckerPool(count=1, check_ms=CHECK_MS, memory_mb=CHECK_MEMORY_MB)
    try:
        yield AttackHarness(config, keeper, checkers)
    finally:
        await keeper.close()
        await checkers.close()


def make_terms(
    *, vocabulary: int, model: str, tokens_max: int, prompt_tokens_max: int, tolerance: Tolerance
) -> RunTerms:
    """The default terms of a run, for the model under attack."""
    config = TermsConfig(
        trainer=str(NodeId(bytes(20))),
        model=model,
        task_set=TASK_SET,
        vocabulary=vocabulary,
        units_per_token=10**9,
        samples_per_slot=SAMPLES,
        prompt_tokens_max=prompt_tokens_max,
        output_tokens_max=tokens_max,
        tolerance=tolerance,
    )
    return to_terms(config, is_devnet=False)


BATCHES = (5, 16, 64)
"""Sequences that honest workers generate at once. Batching makes their numbers differ from those of a validator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestSummary:
    """How the checks judged honest work."""

    files: int
    rows: int
    chunks: int
    refused: tuple[str, ...]
    """Reasons."""


def open_engine(harness: AttackHarness, batch: int | None = None) -> TorchEngine:
    precision = harness.config.tolerance.precision.value
    return TorchEngine(device="cpu", precision=precision, threads=1, batch_max=batch)


def open_honest_engines(harness: AttackHarness) -> list[Engine]:
    engines: list[Engine] = []
    for batch in BATCHES:
        engine = open_engine(harness, batch)
        engine.load(harness.config.checkpoint)
        engines.append(engine)
    return engines


async def calibrate(harness: AttackHarness, engines: Sequence[Engine], leases: int, slots: int) -> Tolerance:
    """Fit bounds to honest work, and judge by them from here on."""
    rows: list[RowMeasurement] = []
    for number in range(leases):
        lease = harness.lease(slots)
        made = harness.make_rows(engines[number % len(engines)], lease)
        rows += await harness.measure(made, digest_words("calibration", number))
    tolerance = fit_tolerance(
        [collect_noise("torch → torch", rows)],
        CalibrationTarget(),
        precision=harness.config.tolerance.precision,
        hidden=harness.model.hidden,
    )
    harness.hold_to(tolerance)
    return tolerance


async def submit_honest_work(
    harness: AttackHarness, engines: Sequence[Engine], leases: int, slots: int
) -> HonestSummary:
    """Submit honest files to intake and audit."""
    files = rows = chunks = 0
    refused: list[str] = []
    for number in range(leases):
        lease = harness.lease(slots)
        made = harness.make_rows(engines[number % len(engines)], lease)
        outcome = await harness.submit(SentFile(data=write_rollouts(harness.header(lease), made)), lease)
        files += 1
        rows += len(made)
        chunks += sum(-(-len(row.output_tokens) // 32) for row in made)
        if outcome.verdict is not None:
            refused.append(outcome.reason)
    return HonestSummary(files=files, rows=rows, chunks=chunks, refused=tuple(refused))


async def attack_with_engines(harness: AttackHarness, slots: int) -> AsyncIterator[tuple[Attack, AttackResult]]:
    for attack in ENGINE_ATTACKS:
        cheat = open_cheat(attack.name, open_engine(harness))
        cheat.load(harness.config.checkpoint)
        lease = harness.lease(slots)
        data = write_rollouts(harness.header(lease), harness.make_rows(cheat, lease))
        yield attack, await harness.submit(SentFile(data=data), lease)


async def attack_with_files(
    harness: AttackHarness, honest: Engine, slots: int
) -> AsyncIterator[tuple[Attack, AttackResult]]:
    lease = harness.lease(slots)
    start = harness.gather(honest, lease)
    for attack in (*ROW_ATTACKS, *FILE_ATTACKS):
        if attack.name == BIG_FILE:
            yield attack, await attack_with_size(harness, honest, start)
        else:
            yield attack, await harness.submit(FILE_FORGERS[attack.name](start), lease)


BIG_FILE = "big-file"
BIG_SLOTS = 24
"""Several blocks of READ_BLOCK_TOKENS."""


async def attack_with_size(harness: AttackHarness, honest: Engine, start: HonestWork) -> AttackResult:
    """A large file whose last row is forged. It succeeds where rejecting costs a validator more than accepting."""
    lease = harness.lease(BIG_SLOTS)
    large = replace(start, header=harness.header(lease), rows=harness.make_rows(honest, lease))
    accepted = await harness.submit(SentFile(data=write_rollouts(large.header, large.rows)), lease)
    rejected = await harness.submit(FILE_FORGERS[BIG_FILE](large), lease)
    cost = f"{rejected.tokens} tokens read to reject, {accepted.tokens} to accept"
    is_dearer = accepted.verdict is not None or rejected.tokens > accepted.tokens
    return replace(rejected, verdict=None if is_dearer else rejected.verdict, reason=f"{rejected.reason}; {cost}")
