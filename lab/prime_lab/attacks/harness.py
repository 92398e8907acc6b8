"""A run, a model and the parties of one submission, for attacks on the real checks: intake's process and an engine's.

A file goes the way it goes in a network: to the process that checks every file, then to the examination that every
validator runs, with an engine in a process of its own. Only the network between them is missing.

Runs the attacks of workers against the real checks, and honest work beside them.

Bounds are calibrated first, from honest work of this model on this machine, by the code of `prime-node calibrate`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prime_coordinator.admin.run_terms import TermsConfig, to_terms
from prime_coordinator.intake.checker import CheckerPool, CheckJob
from prime_coordinator.intake.checks import ExpectedSubmission
from prime_lab.attacks.catalog import ENGINE_ATTACKS, FILE_ATTACKS, ROW_ATTACKS, Attack, AttackResult, AttackVerdict
from prime_lab.attacks.forged_files import FILE_FORGERS, HonestWork, SentFile
from prime_lab.cheats import proof_forgery as forgery
from prime_lab.cheats.engines import open_cheat
from prime_node.calibration.fit import CalibrationTarget, collect_noise, fit_tolerance
from prime_node.engine.config import EngineConfig
from prime_node.engine.interface import Engine, TokenSequence
from prime_node.engine.manager import EngineManager
from prime_node.engine.measurement import RowMeasurement
from prime_node.engine.torch.engine import TorchEngine
from prime_node.jobs.examination import Examination, examine
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
"""As a run has by default."""
CHECK_MS, CHECK_MEMORY_MB = 60_000, 4096
ROW_INDEX = re.compile(r"\[[0-9]+\]")


def digest_words(*words: object) -> Digest:
    return digest_fields("gallery/1", *(str(word).encode() for word in words))


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessLease:
    """What a worker was asked for."""

    number: int
    first_slot: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig:
    """What a gallery is shown with."""

    checkpoint: Path
    folder: Path
    """For the engine's process and for files on their way."""
    tokens_max: int
    tolerance: Tolerance
    prompt_tokens_max: int = 64


class AttackHarness:
    """One run with one checkpoint."""

    def __init__(self, setting: HarnessConfig, keeper: EngineManager, checkers: CheckerPool) -> None:
        self.setting = setting
        self._keeper = keeper
        self._checkers = checkers
        self.model = ModelFiles.open(setting.checkpoint)
        self.root = digest_words("root", setting.checkpoint)
        self.key = WalletKey.from_secret(sha256(b"a worker of the gallery").digest())
        self.briefing = self._brief(STEP)
        self._number = 0

    def _brief(self, step: Step) -> StepContext:
        return StepContext(
            run=RUN,
            step=step,
            terms=make_terms(
                vocabulary=self.model.vocabulary,
                model=self.setting.checkpoint.name,
                tokens_max=self.setting.tokens_max,
                prompt_tokens_max=self.setting.prompt_tokens_max,
                tolerance=self.setting.tolerance,
            ),
            beacon=digest_words("beacon", step),
            root=self.root,
            folder=self.setting.checkpoint,
            family=open_family(TaskSetSpec.parse(TASK_SET)),
            model=self.model,
        )

    def hold_to(self, tolerance: Tolerance) -> None:
        """From here on everything is judged by these bounds."""
        self.briefing = replace(self.briefing, terms=replace(self.briefing.terms, tolerance=tolerance))

    # --- Making files -----------------------------------------------------------------------------------------------

    def lease(self, slots: int) -> HarnessLease:
        """The next one, of slots that nobody had."""
        self._number += 1
        return HarnessLease(number=self._number, first_slot=self._number * 64, slots=slots)

    def go_to(self, number: int) -> None:
        """The next lease has this number, so that a piece of work is the same whatever was done before."""
        self._number = number - 1

    def make_rows(self, engine: Engine, lease: HarnessLease, step: Step = STEP) -> list[Rollout]:
        """What an engine makes of a lease."""
        briefing = self.briefing if step == STEP else self._brief(step)
        rows = list_samples(lease.first_slot, lease.slots, briefing)
        orders = make_requests(rows, briefing)
        done = sorted(engine.generate(orders, briefing.sampling), key=lambda completion: completion.number)
        return make_rollouts(rows, orders, done, briefing)

    def read_states(self, engine: Engine, rows: Sequence[Rollout]) -> NDArray[np.uint16]:
        """Hidden states of rows, end to end."""
        texts = [
            TokenSequence(number=number, prompt=row.prompt_tokens, output=row.output_tokens, seed=0)
            for number, row in enumerate(rows)
        ]
        found = {reading.number: reading.hidden_bits for reading in engine.read(texts, self.briefing.sampling)}
        return np.concatenate([found[number] for number in sorted(found)])

    def header(self, lease: HarnessLease, node: NodeId | None = None) -> RolloutHeader:
        return self.briefing.make_header(lease.number, node or self.key.node)

    def gather(self, engine: Engine, lease: HarnessLease) -> HonestWork:
        """What a cheater who can also work honestly starts from."""
        others = self.make_rows(engine, self.lease(lease.slots + 1))
        return HonestWork(
            header=self.header(lease),
            rows=self.make_rows(engine, lease),
            others=others,
            other_step=self.make_rows(engine, lease, OTHER_STEP),
            known=forgery.learn_statistics(self.read_states(engine, others)),
            hidden=self.model.hidden,
            eos=min(self.model.eos),
        )

    # --- The way of a file ------------------------------------------------------------------------------------------

    async def submit(self, sent: SentFile, lease: HarnessLease) -> AttackResult:
        """Intake, then an audit."""
        try:
            await self._take_in(sent, lease)
        except RemoteError as error:
            check = ROW_INDEX.sub("", error.field).removeprefix("rows.").removeprefix("receipt.")
            return AttackResult(verdict=AttackVerdict.REFUSED, checks=(check,), reason=str(error))
        examined = await self.audit(sent.data, lease)
        judged = examined.judge()
        checks = tuple(dict.fromkeys(flaw.check for flaw in judged.flaws))
        if judged.outcome is Finding.INVALID:
            return AttackResult(verdict=AttackVerdict.REFUSED, checks=("order",), reason=judged.reason)
        verdict = AttackVerdict.FRAUDULENT if judged.outcome is Finding.FRAUDULENT else None
        tokens = sum(row.tokens for row in examined.numbers)
        return AttackResult(verdict=verdict, checks=checks, reason=judged.reason, tokens=tokens)

    async def audit(self, data: bytes, lease: HarnessLease) -> Examination:
        """As a validator does, with a seed that the file's maker did not know."""
        briefing = self.briefing
        header, limits = self.header(lease), briefing.get_limits(lease.first_slot, lease.slots)
        seed = digest_words("audit", sha256(data).hexdigest())
        return await examine(data, briefing, header, limits, self._keeper, seed)

    async def _take_in(self, sent: SentFile, lease: HarnessLease) -> None:
        """The cheap checks, in the process that the coordinator runs them in."""
        briefing = self.briefing
        expected = ExpectedSubmission(
            self.header(lease), briefing.get_limits(lease.first_slot, lease.slots), briefing.terms, briefing.beacon
        )
        path = self.setting.folder / f"lease-{lease.number}"
        await asyncio.to_thread(path.write_bytes, sent.data)
        try:
            await self._checkers.check(CheckJob(path, self._sign(sent, lease, expected), expected, None))
        finally:
            path.unlink()

    def _sign(self, sent: SentFile, lease: HarnessLease, expected: ExpectedSubmission) -> Submitted:
        """The receipt of a worker who knows what it sends; what cannot be read is claimed to be empty."""
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
async def open_harness(setting: HarnessConfig) -> AsyncIterator[AttackHarness]:
    """With the processes that it needs."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    keeper = EngineManager(EngineConfig(device="cpu", threads=1), setting.folder / "engine", SystemClock())
    checkers = CheckerPool(count=1, check_ms=CHECK_MS, memory_mb=CHECK_MEMORY_MB)
    try:
        yield AttackHarness(setting, keeper, checkers)
    finally:
        await keeper.close()
        await checkers.close()


def make_terms(
    *, vocabulary: int, model: str, tokens_max: int, prompt_tokens_max: int, tolerance: Tolerance
) -> RunTerms:
    """A run's defaults, around the model that is attacked."""
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
"""Sequences that honest workers write at once: what makes them differ from a validator, who reads whole texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestSummary:
    """What became of honest work."""

    files: int
    rows: int
    chunks: int
    refused: tuple[str, ...]
    """Reasons."""


def open_engine(scene: AttackHarness, batch: int | None = None) -> TorchEngine:
    precision = scene.setting.tolerance.precision.value
    return TorchEngine(device="cpu", precision=precision, threads=1, batch_max=batch)


def open_honest_engines(scene: AttackHarness) -> list[Engine]:
    engines: list[Engine] = []
    for batch in BATCHES:
        engine = open_engine(scene, batch)
        engine.load(scene.setting.checkpoint)
        engines.append(engine)
    return engines


async def calibrate(scene: AttackHarness, engines: Sequence[Engine], leases: int, slots: int) -> Tolerance:
    """Bounds from honest work, which the scene holds everybody to from here on."""
    rows: list[RowMeasurement] = []
    for number in range(leases):
        lease = scene.lease(slots)
        data = write_rollouts(scene.header(lease), scene.make_rows(engines[number % len(engines)], lease))
        rows += (await scene.audit(data, lease)).numbers
    tolerance = fit_tolerance(
        [collect_noise("torch → torch", rows)],
        CalibrationTarget(),
        precision=scene.setting.tolerance.precision,
        hidden=scene.model.hidden,
    )
    scene.hold_to(tolerance)
    return tolerance


async def submit_honest_work(scene: AttackHarness, engines: Sequence[Engine], leases: int, slots: int) -> HonestSummary:
    """Honest files through intake and audit."""
    files = rows = chunks = 0
    refused: list[str] = []
    for number in range(leases):
        lease = scene.lease(slots)
        made = scene.make_rows(engines[number % len(engines)], lease)
        outcome = await scene.submit(SentFile(data=write_rollouts(scene.header(lease), made)), lease)
        files += 1
        rows += len(made)
        chunks += sum(-(-len(row.output_tokens) // 32) for row in made)
        if outcome.verdict is not None:
            refused.append(outcome.reason)
    return HonestSummary(files=files, rows=rows, chunks=chunks, refused=tuple(refused))


async def attack_with_engines(scene: AttackHarness, slots: int) -> AsyncIterator[tuple[Attack, AttackResult]]:
    for attack in ENGINE_ATTACKS:
        cheat = open_cheat(attack.name, open_engine(scene))
        cheat.load(scene.setting.checkpoint)
        lease = scene.lease(slots)
        data = write_rollouts(scene.header(lease), scene.make_rows(cheat, lease))
        yield attack, await scene.submit(SentFile(data=data), lease)


async def attack_with_files(
    scene: AttackHarness, honest: Engine, slots: int
) -> AsyncIterator[tuple[Attack, AttackResult]]:
    lease = scene.lease(slots)
    start = scene.gather(honest, lease)
    for attack in (*ROW_ATTACKS, *FILE_ATTACKS):
        yield attack, await scene.submit(FILE_FORGERS[attack.name](start), lease)
