"""A lease becomes a rollout file: tasks and seeds from the beacon, completions from the engine, and the public checks.

The file is on disk and in the journal before the agent hears of it. What an earlier process made for the same lease is
taken up, not made again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from prime_node.briefing import Briefing, Briefings
from prime_node.engine.keeper import EngineKeeper, Seat
from prime_node.engine.process import EngineDied
from prime_node.engine.seam import Completion, Order
from prime_node.events import Generate, Generated, GenerationFailed, Progressed, Work
from prime_node.examination import open_file, read_again
from prime_node.journal import Journal, Piece, PieceState
from prime_node.shelf import Shelf
from prime_protocol.beacon import sample_seed, slot_task
from prime_protocol.constants import REASON_CHARS_MAX
from prime_protocol.entries import LeaseGranted
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId, Sample, Slot
from prime_protocol.receipts import SubmissionReceipt, receipt_id
from prime_protocol.rollout_file import write_rollouts
from prime_protocol.rollout_root import rollout_root
from prime_protocol.rollouts import Rollout, RolloutFile
from prime_protocol.units import context_tokens
from prime_runtime.clock import Clock
from prime_runtime.http_errors import Unreachable

log = logging.getLogger(__name__)

TRIES = 3
"""An engine that dies under a lease is given so many tries with it, while there is time."""
ASK_MS = 2_000
"""Between two questions about a step, while the coordinator does not answer."""
SELF_CHECK = b"prime-node self-check"

OnProgress = Callable[[Progressed], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One completion that a lease asks for."""

    slot: Slot
    sample: Sample
    task: int


class Worker:
    """Carries out Generate."""

    def __init__(
        self,
        node: NodeId,
        network: NetworkId,
        run: RunId,
        *,
        briefings: Briefings,
        keeper: EngineKeeper,
        shelf: Shelf,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._node = node
        self._network = network
        self._run = run
        self._briefings = briefings
        self._keeper = keeper
        self._shelf = shelf
        self._journal = journal
        self._clock = clock

    async def generate(self, wanted: Generate, on_progress: OnProgress) -> Generated | GenerationFailed:
        """Cancelling abandons the lease."""
        lease, started_ms = wanted.lease.lease, self._clock.now_ms()
        try:
            await self._learn_step(wanted)
            async with self._briefings.about(wanted.lease.step, wanted.checkpoint_root) as briefing:
                if briefing.beacon != wanted.beacon:
                    raise RemoteError("StepFacts.beacon", f"of step {briefing.step} is not what a heartbeat said")
                work = await self._take_up(wanted, briefing)
                if work is None:
                    data, file = await self._generate(wanted.lease, briefing, on_progress)
                    work = await self._keep(wanted.lease, data, file, started_ms)
        except (LocalError, RemoteError) as error:
            log.warning("lease %d is given back: %s", lease, error)
            self.note_given_back(wanted.lease, str(error))
            return GenerationFailed(lease, str(error)[:REASON_CHARS_MAX])
        return Generated(lease, work)

    async def _learn_step(self, wanted: Generate) -> None:
        """Ask until it is answered, while there is time: a coordinator that starts again costs no lease."""
        while True:
            try:
                await self._briefings.facts(wanted.lease.step, wanted.checkpoint_root)
                return
            except Unreachable:
                if self._clock.now_ms() + ASK_MS >= wanted.lease.deadline_ms:
                    raise
            await self._clock.sleep_ms(ASK_MS)

    async def _take_up(self, wanted: Generate, briefing: Briefing) -> Work | None:
        """What an earlier process made for this lease, if it is whole and still answers to it."""
        piece = self._journal.of_lease(self._run, wanted.lease.lease)
        if piece is None or piece.file is None or piece.state is not PieceState.PRODUCED:
            return None
        data = await asyncio.to_thread(self._shelf.get, piece.file)
        if data is None:
            return None
        header = briefing.header(wanted.lease.lease, self._node)
        limits = briefing.limits(wanted.lease.first_slot, wanted.lease.slots)
        opened = await asyncio.to_thread(open_file, data, briefing, header, limits)
        if opened.file is None or not opened.is_good:
            self._shelf.remove(piece.file)
            return None
        log.info("lease %d was done before a restart; its file is sent as it is", piece.lease)
        return await asyncio.to_thread(describe, data, opened.file)

    async def _keep(self, lease: LeaseGranted, data: bytes, file: RolloutFile, started_ms: int) -> Work:
        """On disk, then in the journal."""
        work = await asyncio.to_thread(describe, data, file)
        await asyncio.to_thread(self._shelf.put, data)
        piece = self._piece(lease, started_ms, PieceState.PRODUCED, work=work, rows=len(file.rows))
        self._journal.add(piece, self._clock.now_ms())
        return work

    async def _generate(
        self, lease: LeaseGranted, briefing: Briefing, on_progress: OnProgress
    ) -> tuple[bytes, RolloutFile]:
        for left in reversed(range(TRIES)):
            try:
                async with self._keeper.turn(
                    briefing.root, briefing.folder, briefing.terms.tolerance.precision
                ) as seat:
                    return await self._write(lease, briefing, seat, on_progress)
            except EngineDied as error:
                if not left:
                    raise
                log.warning("lease %d is begun again: %s", lease.lease, error)
        raise AssertionError("the last try returns or raises")

    async def _write(
        self, lease: LeaseGranted, briefing: Briefing, seat: Seat, on_progress: OnProgress
    ) -> tuple[bytes, RolloutFile]:
        """Generate, write down, and look at it as a validator would."""
        rows = list_rows(lease.first_slot, lease.slots, briefing)
        orders = make_orders(rows, briefing)
        done = await seat.process.generate(
            orders,
            briefing.sampling,
            lambda progress: on_progress(Progressed(lease.lease, progress.rows, len(rows))),
        )
        header = briefing.header(lease.lease, self._node)
        data = await asyncio.to_thread(write_rollouts, header, put_together(rows, orders, done, briefing))
        limits = briefing.limits(lease.first_slot, lease.slots)
        opened = await asyncio.to_thread(open_file, data, briefing, header, limits)
        seed = Digest(sha256(SELF_CHECK + header.checkpoint_root).digest())
        examined = await read_again(opened, briefing, seat, seed)
        if not examined.is_good or examined.file is None:
            raise LocalError(f"its own check does not pass: {examined.judge().reason}")
        return data, examined.file

    def note_given_back(self, lease: LeaseGranted, reason: str) -> None:
        """For the owner: nothing came of it, and why."""
        known = self._journal.of_lease(self._run, lease.lease)
        now_ms = self._clock.now_ms()
        if known is not None:
            self._journal.advance(known, PieceState.GIVEN_BACK, now_ms, reason=reason)
        else:
            piece = self._piece(lease, now_ms, PieceState.GIVEN_BACK, reason=reason)
            self._journal.add(piece, now_ms)

    def _piece(
        self,
        lease: LeaseGranted,
        started_ms: int,
        state: PieceState,
        *,
        work: Work | None = None,
        rows: int = 0,
        reason: str = "",
    ) -> Piece:
        return Piece(
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
            submission=self._name(lease, work) if work else None,
            file=work.file_digest if work else None,
            checkpoint_root=work.checkpoint_root if work else None,
            rollout_root=work.rollout_root if work else None,
            rows=rows,
            file_bytes=work.file_bytes if work else 0,
            output_tokens=work.output_tokens if work else 0,
            context_tokens=work.context_tokens if work else 0,
        )

    def _name(self, lease: LeaseGranted, work: Work) -> Digest:
        """What the submission will be called."""
        receipt = SubmissionReceipt(
            network=self._network,
            run=self._run,
            step=lease.step,
            lease=lease.lease,
            node=self._node,
            checkpoint_root=work.checkpoint_root,
            file_digest=work.file_digest,
            rollout_root=work.rollout_root,
        )
        return receipt_id(receipt)


def list_rows(first_slot: int, slots: int, briefing: Briefing) -> list[Row]:
    """Every sample of every slot of a lease, in the order of the file."""
    return [
        Row(Slot(slot), Sample(sample), slot_task(briefing.beacon, Slot(slot), briefing.family.size))
        for slot in range(first_slot, first_slot + slots)
        for sample in range(briefing.terms.samples_per_slot)
    ]


def make_orders(rows: Sequence[Row], briefing: Briefing) -> list[Order]:
    """What the engine is asked for, numbered as the rows are."""
    prompts = {task: briefing.encode_prompt(task) for task in {row.task for row in rows}}
    return [
        Order(number=number, prompt=prompts[row.task], seed=sample_seed(briefing.beacon, row.slot, row.sample))
        for number, row in enumerate(rows)
    ]


def put_together(
    rows: Sequence[Row], orders: Sequence[Order], done: Sequence[Completion], briefing: Briefing
) -> list[Rollout]:
    return [
        Rollout(
            slot=row.slot,
            sample=row.sample,
            task=row.task,
            temperature=briefing.terms.temperature,
            target_length=None,
            finish=completion.finish,
            prompt_tokens=order.prompt,
            output_tokens=completion.tokens,
            output_logprobs=completion.logprobs,
            proofs=completion.proofs,
        )
        for row, order, completion in zip(rows, orders, done, strict=True)
    ]


def describe(data: bytes, file: RolloutFile) -> Work:
    """Slow for a large file: use a thread."""
    return Work(
        checkpoint_root=file.header.checkpoint_root,
        file_digest=Digest(sha256(data).digest()),
        rollout_root=rollout_root(file),
        file_bytes=len(data),
        output_tokens=sum(len(row.output_tokens) for row in file.rows),
        context_tokens=sum(context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows),
    )
