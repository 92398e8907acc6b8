"""A validator with a real engine process, and the honest file of a lease to forge and audit. No network."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from prime_node.agent.events import AuditDone, AuditFailed, AuditFinding, Generated
from prime_node.jobs.audit import Auditor
from prime_protocol.ledger.entries import LeaseGranted
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import Rollout, RolloutFile, RolloutLimits
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, SubmissionReceipt, sign_document
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from prime_runtime.sandbox.sandbox import Sandbox
from support.job_setup import KEY, NETWORK, RUN, JobSetup, grant, wanted


class Shop:
    """Serves one file, as a coordinator would, or another one, or none."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    async def get(self, server: ServerAddress, path: str, **limits: object) -> bytes | None:
        return self.data


class Bench:
    """A validator and the honest file of a lease."""

    def __init__(self, setup: JobSetup, data: bytes, lease: LeaseGranted) -> None:
        self.setup = setup
        self.data = data
        self.lease = lease
        self.signed: tuple[SubmissionReceipt, Signature] | None = None

    async def audit(self, data: bytes | None, **changes: object) -> AuditDone | AuditFailed:
        """`data` is what the coordinator hands out for it; None: nothing."""
        given = self.data if data is None else data
        auditor = Auditor(
            Shop(data),  # type: ignore[arg-type]
            ServerAddress("http://127.0.0.1:1", KEY.node),
            NETWORK,
            RUN,
            node=KEY.node,
            contexts=self.setup,  # type: ignore[arg-type]
            engine=self.setup.engine,
            spool=self.setup.spool,
            sandbox=Sandbox(),
            fetch_receipt=self._find_receipt,
            clock=SystemClock(),
        )
        self.auditor = auditor
        return await auditor.audit(replace(self.setup.task(given, self.lease), **changes))

    async def find(self, data: bytes, *, is_signed: bool = True) -> AuditFinding:
        receipt = self.setup.receipt(data, self.lease)
        if is_signed:
            self.signed = receipt, sign_document(KEY, receipt, EMBEDDED_DOMAIN)
        event = await self.audit(data)
        assert isinstance(event, AuditDone), self.auditor.problem
        return event.finding

    async def _find_receipt(self, submission: Digest) -> tuple[SubmissionReceipt, Signature] | None:
        return self.signed

    def forge(self, change: Callable[[Rollout], Rollout], rows: Collection[int] = (1,)) -> bytes:
        """The honest file with these rows changed."""
        file = self.read()
        changed = [change(row) if number in rows else row for number, row in enumerate(file.rows)]
        return write_rollouts(file.header, changed)

    def read(self) -> RolloutFile:
        return self.read_with(self.setup.context.get_limits(self.lease.first_slot, self.lease.slots))

    def read_with(self, limits: RolloutLimits, data: bytes | None = None) -> RolloutFile:
        """The honest file, or another one."""
        return read_rollouts(self.data if data is None else data, limits)


async def make_bench(folder: Path, slots: int = 1) -> Bench:
    """Ends with `bench.setup.engine.close()`."""
    setup = JobSetup(folder)
    event = await setup.generator.generate(wanted(slots=slots), lambda progress: None)
    assert isinstance(event, Generated)
    data = setup.spool.get(event.file.file_digest)
    assert data is not None
    setup.spool.remove(event.file.file_digest)
    return Bench(setup, data, grant(slots=slots))
