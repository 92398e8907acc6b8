"""A run, a model and the parties of one submission, for attacks on the real checks: intake's process and an engine's.

A file goes the way it goes in a network: to the process that checks every file, then to the examination that every
validator runs, with an engine in a process of its own. Only the network between them is missing.
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

from prime_attacks.bent_files import Honest, Sent
from prime_attacks.gallery import Outcome, Verdict
from prime_coordinator.checker import CheckJob
from prime_coordinator.checkers import Checkers
from prime_coordinator.intake import Expected
from prime_coordinator.run_terms import TermsConfig, to_terms
from prime_devnet import forgery
from prime_node.briefing import Briefing
from prime_node.engine.engine_config import EngineConfig
from prime_node.engine.keeper import EngineKeeper
from prime_node.engine.seam import Engine, Text
from prime_node.examination import Examination, examine
from prime_node.worker import list_rows, make_orders, put_together
from prime_protocol.digests import digest_fields
from prime_protocol.entries import Outcome as Finding
from prime_protocol.entries import Submitted
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.rollout_file import read_rollouts
from prime_protocol.rollout_root import rollout_root
from prime_protocol.rollouts import Rollout, RolloutHeader
from prime_protocol.signing import WalletKey
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec
from prime_protocol.terms import RunTerms
from prime_protocol.tolerance import Tolerance
from prime_protocol.typed_data import EMBEDDED, sign_document
from prime_protocol.units import context_tokens
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import ModelFiles

NETWORK, RUN = NetworkId("gallery"), RunId("attacked")
STEP, OTHER_STEP = Step(7), Step(6)
TASK_SET = "sort-digits"
SAMPLES = 8
"""As a run has by default."""
CHECK_MS, CHECK_MEMORY_MB = 60_000, 4096
INDEX = re.compile(r"\[[0-9]+\]")


def digest(*words: object) -> Digest:
    return digest_fields("gallery/1", *(str(word).encode() for word in words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a worker was asked for."""

    number: int
    first_slot: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a gallery is shown with."""

    checkpoint: Path
    folder: Path
    """For the engine's process and for files on their way."""
    tokens_max: int
    tolerance: Tolerance
    prompt_tokens_max: int = 64


class Scene:
    """One run with one checkpoint."""

    def __init__(self, setting: Setting, keeper: EngineKeeper, checkers: Checkers) -> None:
        self.setting = setting
        self._keeper = keeper
        self._checkers = checkers
        self.model = ModelFiles.open(setting.checkpoint)
        self.root = digest("root", setting.checkpoint)
        self.key = WalletKey.from_secret(sha256(b"a worker of the gallery").digest())
        self.briefing = self._brief(STEP)
        self._number = 0

    def _brief(self, step: Step) -> Briefing:
        return Briefing(
            run=RUN,
            step=step,
            terms=make_terms(
                vocabulary=self.model.vocabulary,
                model=self.setting.checkpoint.name,
                tokens_max=self.setting.tokens_max,
                prompt_tokens_max=self.setting.prompt_tokens_max,
                tolerance=self.setting.tolerance,
            ),
            beacon=digest("beacon", step),
            root=self.root,
            folder=self.setting.checkpoint,
            family=open_family(TaskSetSpec.parse(TASK_SET)),
            model=self.model,
        )

    def hold_to(self, tolerance: Tolerance) -> None:
        """From here on everything is judged by these bounds."""
        self.briefing = replace(self.briefing, terms=replace(self.briefing.terms, tolerance=tolerance))

    # --- Making files -----------------------------------------------------------------------------------------------

    def lease(self, slots: int) -> Lease:
        """The next one, of slots that nobody had."""
        self._number += 1
        return Lease(number=self._number, first_slot=self._number * 64, slots=slots)

    def go_to(self, number: int) -> None:
        """The next lease has this number, so that a piece of work is the same whatever was done before."""
        self._number = number - 1

    def make_rows(self, engine: Engine, lease: Lease, step: Step = STEP) -> list[Rollout]:
        """What an engine makes of a lease."""
        briefing = self.briefing if step == STEP else self._brief(step)
        rows = list_rows(lease.first_slot, lease.slots, briefing)
        orders = make_orders(rows, briefing)
        done = sorted(engine.generate(orders, briefing.sampling), key=lambda completion: completion.number)
        return put_together(rows, orders, done, briefing)

    def read_states(self, engine: Engine, rows: Sequence[Rollout]) -> NDArray[np.uint16]:
        """Hidden states of rows, end to end."""
        texts = [
            Text(number=number, prompt=row.prompt_tokens, output=row.output_tokens, seed=0)
            for number, row in enumerate(rows)
        ]
        found = {reading.number: reading.hidden_bits for reading in engine.read(texts, self.briefing.sampling)}
        return np.concatenate([found[number] for number in sorted(found)])

    def header(self, lease: Lease, node: NodeId | None = None) -> RolloutHeader:
        return self.briefing.header(lease.number, node or self.key.node)

    def gather(self, engine: Engine, lease: Lease) -> Honest:
        """What a cheater who can also work honestly starts from."""
        others = self.make_rows(engine, self.lease(lease.slots + 1))
        return Honest(
            header=self.header(lease),
            rows=self.make_rows(engine, lease),
            others=others,
            other_step=self.make_rows(engine, lease, OTHER_STEP),
            known=forgery.learn(self.read_states(engine, others)),
            hidden=self.model.hidden,
            eos=min(self.model.eos),
        )

    # --- The way of a file ------------------------------------------------------------------------------------------

    async def submit(self, sent: Sent, lease: Lease) -> Outcome:
        """Intake, then an audit."""
        try:
            await self._take_in(sent, lease)
        except RemoteError as error:
            check = INDEX.sub("", error.field).removeprefix("rows.").removeprefix("receipt.")
            return Outcome(verdict=Verdict.REFUSED, checks=(check,), reason=str(error))
        examined = await self.audit(sent.data, lease)
        judged = examined.judge()
        checks = tuple(dict.fromkeys(flaw.check for flaw in judged.flaws))
        if judged.outcome is Finding.SOFT:
            return Outcome(verdict=Verdict.REFUSED, checks=("order",), reason=judged.reason)
        verdict = Verdict.HARD if judged.outcome is Finding.HARD else None
        tokens = sum(row.tokens for row in examined.numbers)
        return Outcome(verdict=verdict, checks=checks, reason=judged.reason, tokens=tokens)

    async def audit(self, data: bytes, lease: Lease) -> Examination:
        """As a validator does, with a seed that the file's maker did not know."""
        briefing = self.briefing
        header, limits = self.header(lease), briefing.limits(lease.first_slot, lease.slots)
        seed = digest("audit", sha256(data).hexdigest())
        return await examine(data, briefing, header, limits, self._keeper, seed)

    async def _take_in(self, sent: Sent, lease: Lease) -> None:
        """The cheap checks, in the process that the coordinator runs them in."""
        briefing = self.briefing
        expected = Expected(
            self.header(lease), briefing.limits(lease.first_slot, lease.slots), briefing.terms, briefing.beacon
        )
        path = self.setting.folder / f"lease-{lease.number}"
        await asyncio.to_thread(path.write_bytes, sent.data)
        try:
            await self._checkers.check(CheckJob(path, self._sign(sent, lease, expected), expected, None))
        finally:
            path.unlink()

    def _sign(self, sent: Sent, lease: Lease, expected: Expected) -> Submitted:
        """The receipt of a worker who knows what it sends; what cannot be read is claimed to be empty."""
        root, outputs, context = Digest(bytes(32)), 0, 0
        try:
            file = read_rollouts(sent.data, expected.limits)
        except RemoteError:
            pass
        else:
            root = rollout_root(file)
            outputs = sum(len(row.output_tokens) for row in file.rows) + sent.more_tokens
            context = sum(context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows)
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
            signature=sign_document(self.key, receipt, EMBEDDED),
            file_bytes=len(sent.data),
            output_tokens=outputs,
            context_tokens=context,
        )


@asynccontextmanager
async def open_scene(setting: Setting) -> AsyncIterator[Scene]:
    """With the processes that it needs."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    keeper = EngineKeeper(EngineConfig(device="cpu", threads=1), setting.folder / "engine", SystemClock())
    checkers = Checkers(count=1, check_ms=CHECK_MS, memory_mb=CHECK_MEMORY_MB)
    try:
        yield Scene(setting, keeper, checkers)
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
