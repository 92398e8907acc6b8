"""A step, a tiny checkpoint and the small engine, for tests of what is done with a lease or an audit. No network."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from prime_node.agent.events import Generate
from prime_node.engine.config import EngineConfig
from prime_node.engine.pool import EnginePool
from prime_node.jobs.generate import RolloutGenerator
from prime_node.jobs.self_check import PassedChecks, SelfCheck
from prime_node.jobs.step_context import StepContext
from prime_node.storage.journal import Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import LeaseGranted
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Slot, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef, StepReply
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.ledger_network import TERMS

NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
KEY = WalletKey.from_secret(sha256(b"a worker").digest())
VALIDATOR = WalletKey.from_secret(sha256(b"a validator").digest())
FAKE_ENGINE = str(Path(__file__).parent / "fake_engine.py")
SETUP_TERMS = replace(
    TERMS,
    task_set="sort-digits",
    output_tokens_max=40,
    tolerance=Tolerance(
        precision=Precision.FLOAT32,
        margin_max=0.05,
        margin_mean_max=0.01,
        logprob_error_max=0.05,
        logprob_error_mean_max=0.01,
    ),
)
FOREVER_MS = 2**50


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


BEACON, ROOT, SEED = digest("beacon"), digest("root"), digest("seed")


def run_fake_engine(config: EngineConfig, precision: Precision) -> Sequence[str]:
    return [sys.executable, FAKE_ENGINE, "--precision", precision]


def grant(lease: int = 0, slots: int = 1) -> LeaseGranted:
    return LeaseGranted(
        lease=lease,
        node=KEY.node,
        step=Step(0),
        checkpoint_step=Step(0),
        first_slot=Slot(2),
        slots=slots,
        deadline_ms=FOREVER_MS,
        speculative=False,
    )


def wanted(lease: int = 0, slots: int = 1) -> Generate:
    return Generate(grant(lease, slots), Step(0), ROOT, BEACON)


class JobSetup:
    """Everything on one disk."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        self.folder = folder
        self.checkpoint = make_tiny_checkpoint(folder / "checkpoint", vocabulary=TERMS.vocabulary, hidden=32)
        self.clock = SystemClock()
        self.spool = UploadSpool(folder / "files")
        self.journal = Journal(folder / "journal.db")
        config = EngineConfig(**{"start_ms": 30_000, "stall_ms": 20_000, **engine})
        self.engine = EnginePool(config, folder / "engine", self.clock, command=run_fake_engine)
        self.context = StepContext(
            run=RUN,
            step=Step(0),
            terms=SETUP_TERMS,
            beacon=BEACON,
            root=ROOT,
            folder=self.checkpoint,
            family=open_family(TaskSetSpec.parse(SETUP_TERMS.task_set)),
            model=ModelFiles.open(self.checkpoint),
        )
        self.drawn = bytes([1]) * 32
        """What the self-check draws: 0 as the first byte makes it read a whole file."""
        self.damage = ""
        """What is wrong with the weights on this disk."""
        self.generator = RolloutGenerator(
            KEY.node,
            NETWORK,
            RUN,
            contexts=self,
            engine=self.engine,
            spool=self.spool,
            journal=self.journal,
            self_check=SelfCheck(PassedChecks(folder / "self_checks.json"), self.draw_bytes),
            clock=self.clock,
        )

    def behave(self, how: str) -> None:
        """From the next load on."""
        (self.checkpoint / "behaviour").write_text(how)

    def draw_bytes(self, count: int) -> bytes:
        assert count == len(self.drawn)
        return self.drawn

    # --- As StepContexts

    @asynccontextmanager
    async def open(self, step: Step, root: Digest) -> AsyncIterator[StepContext]:
        assert (step, root) == (0, ROOT)
        yield self.context

    async def get_facts(self, step: Step, root: Digest) -> StepReply:
        weights = CheckpointRef(step=step, root=root, manifest=digest("manifest"), beacon=BEACON)
        return StepReply(terms=SETUP_TERMS, beacon=BEACON, weights=weights)

    async def check_weights(self, root: Digest) -> None:
        if self.damage:
            raise LocalError(self.damage)

    # --- What a validator is given ------------------------------------------------------------------------------------

    def receipt(self, data: bytes, lease: LeaseGranted) -> SubmissionReceipt:
        return SubmissionReceipt(
            network=NETWORK,
            run=RUN,
            step=lease.step,
            lease=lease.lease,
            node=KEY.node,
            checkpoint_root=ROOT,
            file_digest=Digest(sha256(data).digest()),
            rollout_root=digest("rows"),
        )

    def task(self, data: bytes, lease: LeaseGranted) -> AuditTask:
        return AuditTask(
            submission=compute_receipt_id(self.receipt(data, lease)),
            round=0,
            seed=SEED,
            file_digest=Digest(sha256(data).digest()),
            lease=lease.lease,
            node=KEY.node,
            step=lease.step,
            checkpoint_root=ROOT,
            first_slot=lease.first_slot,
            slots=lease.slots,
            deadline_ms=FOREVER_MS,
        )
