"""An engine on a GPU in virtual time: how long a step takes, what the KV cache holds, and which rows it generates.

The time of a step follows from the data sheet of a card and the sizes of a model, at the lower end of what
`prime-node plan` says. Rows are admitted while the cache has room for their prompts; when it overflows, the youngest is
preempted and computed again later, as vLLM does. Rows of one checkpoint leave before those of another enter. The jump
from one event to the next costs the same however many tokens lie between.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prime_node.planning.cards import GpuCard
from prime_node.planning.plan import BATCH_MAX, FLOP_WORST, PlannedMachine, PlanWishes, estimate_step_s, make_plan
from prime_node.planning.sizes import ModelSizes

SWAP_S = 5.0
"""New weights into the engine."""
WATERMARK = 0.01
"""Share of the cache that stays free when a row is admitted, as in vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A model on a card, in the numbers that the time of a step is made of."""

    step_s: float
    row_s: float
    """For each row of the batch."""
    context_s: float
    """For each token of context, of all rows together."""
    prefill_s: float
    """For each token that is read: prompts, and rows that are computed again."""
    kv_tokens: int
    sequences_max: int = BATCH_MAX

    @classmethod
    def of(cls, model: ModelSizes, card: GpuCard, *, sequence_tokens: int) -> "GpuModel":
        """Of a dense model on one GPU."""
        assert not model.experts, "the time of a step would not be a sum of terms"
        machine = PlannedMachine(name=card.name, gpus=1, memory_bytes=card.memory_bytes, card=card)
        plan = make_plan(model, machine, PlanWishes(sequence_tokens=sequence_tokens, tensor_parallel=1))
        assert plan.placement is not None, plan.problem

        def worst_s(batch: int, context: float) -> float:
            return estimate_step_s(model, card, 1, batch=batch, context=context)[0]

        row_s = worst_s(2, 0) - worst_s(1, 0)
        return cls(
            step_s=worst_s(1, 0) - row_s,
            row_s=row_s,
            context_s=worst_s(1, 1) - worst_s(1, 0),
            prefill_s=2 * model.parameters / card.flop_per_s / FLOP_WORST,
            kv_tokens=plan.placement.kv_tokens,
        )


@dataclass(slots=True, eq=False)
class GpuRow:
    """One completion, from its request to its last token."""

    job: int
    prompt: int
    length: int
    """Output tokens that it will have."""
    written: int = 0
    """Before it entered the batch."""
    entered_step: int = 0

    def is_in_batch_at(self, end_step: int) -> bool:
        """Whether an entry of the heap is about this stay in the batch: a preempted row has left it."""
        return end_step == self.entered_step + self.length - self.written


@dataclass(slots=True)
class GpuJob:
    """The rows of one lease."""

    number: int
    checkpoint: object
    rows: list[GpuRow]
    done: int = 0
    done_tokens: int = 0


@dataclass(slots=True)
class GpuEngine:
    """Completions of several jobs, generated together. Times are seconds since the engine started."""

    model: GpuModel
    now_s: float = 0.0
    tokens: int = 0
    """Generated so far, without those of jobs that were cancelled."""
    preempted: int = 0
    jobs: dict[int, GpuJob] = field(default_factory=dict)
    _checkpoint: object = None
    _queue: deque[GpuJob] = field(default_factory=deque)
    """Jobs whose rows may not enter yet: they need other weights, or came behind one that does."""
    _waiting: deque[GpuRow] = field(default_factory=deque)
    _running: dict[int, GpuRow] = field(default_factory=dict)
    """By identity, the oldest first."""
    _ends: list[tuple[int, int, GpuRow]] = field(default_factory=list)
    _step: int = 0
    _context: int = 0
    """Tokens in the cache."""
    _pushed: int = 0

    # --- Asked by the node ------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, number: int, checkpoint: object, rows: Sequence[tuple[int, int]]) -> None:
        """Prompt and output tokens of each row."""
        job = GpuJob(number, checkpoint, [GpuRow(number, prompt, length) for prompt, length in rows])
        self.jobs[number] = job
        self._queue.append(job)
        self._admit_jobs()

    def cancel(self, number: int) -> None:
        job = self.jobs.pop(number, None)
        if job is None:
            return
        self._queue = deque(each for each in self._queue if each is not job)
        self._waiting = deque(row for row in self._waiting if row.job != number)
        dropped = [row for row in self._running.values() if row.job == number]
        for row in dropped:
            self._remove(row)
        self.tokens -= job.done_tokens + sum(row.written for row in job.rows)
        self.tokens -= sum(self._step - row.entered_step for row in dropped)
        self._admit_jobs()

    def is_begun(self, number: int) -> bool:
        """Whether the rows of a job may enter the batch."""
        return number in self.jobs and all(job.number != number for job in self._queue)

    def advance(self, until_s: float) -> list[int]:
        """Generate until then; the jobs that were finished."""
        finished: list[int] = []
        while self.now_s < until_s:
            self._admit_rows()
            if not self._running:
                self.now_s = until_s
                break
            steps = min(self._count_steps(until_s - self.now_s), self._steps_to_end(), self._steps_to_overflow())
            self._run_steps(max(1, steps))
            finished += self._finish_rows()
            while self._context > self.model.kv_tokens and len(self._running) > 1:
                self._preempt()
        return finished

    # --- Steps ------------------------------------------------------------------------------------------------------

    def _step_s(self) -> float:
        """Of the next step."""
        model = self.model
        return model.step_s + model.row_s * len(self._running) + model.context_s * self._context

    def _run_steps(self, steps: int) -> None:
        batch = len(self._running)
        grown = self.model.context_s * batch * steps * (steps - 1) / 2
        self.now_s += steps * self._step_s() + grown
        self._step += steps
        self.tokens += batch * steps
        self._context += batch * steps

    def _count_steps(self, time_s: float) -> int:
        """As many as it takes to fill this time: each is longer than the one before, as the context grows."""
        a, b = self.model.context_s * len(self._running) / 2, self._step_s()
        return math.ceil((-b + math.sqrt(b * b + 4 * a * time_s)) / (2 * a)) if a else math.ceil(time_s / b)

    def _steps_to_end(self) -> int:
        """Until the next row ends."""
        while not (row := self._ends[0][2]).is_in_batch_at(self._ends[0][0]) or id(row) not in self._running:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self._step

    def _steps_to_overflow(self) -> int:
        return (self.model.kv_tokens - self._context) // len(self._running) + 1

    # --- Rows -------------------------------------------------------------------------------------------------------

    def _admit_rows(self) -> None:
        model, room = self.model, int(self.model.kv_tokens * (1 - WATERMARK))
        while self._waiting and len(self._running) < model.sequences_max:
            row = self._waiting[0]
            held = row.prompt + row.written
            if self._context + held > room and self._running:
                return
            self._waiting.popleft()
            self._running[id(row)] = row
            row.entered_step = self._step
            self._context += held
            self.now_s += held * model.prefill_s
            self._pushed += 1
            heapq.heappush(self._ends, (self._step + row.length - row.written, self._pushed, row))

    def _remove(self, row: GpuRow) -> None:
        del self._running[id(row)]
        self._context -= row.prompt + row.written + self._step - row.entered_step

    def _preempt(self) -> None:
        """The youngest leaves with the tokens it has, and comes back first."""
        row = self._running[next(reversed(self._running))]
        self._remove(row)
        row.written += self._step - row.entered_step
        self._waiting.appendleft(row)
        self.preempted += 1

    def _finish_rows(self) -> list[int]:
        finished = []
        while self._ends and self._ends[0][0] <= self._step:
            end, _, row = heapq.heappop(self._ends)
            if id(row) not in self._running or not row.is_in_batch_at(end):
                continue
            self._remove(row)
            job = self.jobs[row.job]
            job.done += 1
            job.done_tokens += row.length - row.written
            if job.done == len(job.rows):
                finished.append(row.job)
                del self.jobs[row.job]
        if finished:
            self._admit_jobs()
        return finished

    def _admit_jobs(self) -> None:
        """Jobs enter in their order; weights are swapped once all rows of the others are done."""
        while self._queue:
            job = self._queue[0]
            is_idle = len(self.jobs) == len(self._queue)
            if job.checkpoint != self._checkpoint and not is_idle:
                return
            if job.checkpoint != self._checkpoint:
                self._checkpoint = job.checkpoint
                self.now_s += SWAP_S
            self._queue.popleft()
            self._waiting.extend(job.rows)


def measure_full_engine(model: GpuModel, lengths: Sequence[tuple[int, int]], *, warm_s: float, until_s: float) -> float:
    """Output tokens per second of an engine that rows always wait for: what its KV cache allows.

    `lengths` are used again and again.
    """
    engine, taken = GpuEngine(model), 0
    before = 0
    while engine.now_s < until_s:
        while engine.waiting < 8 * model.sequences_max:
            part = [lengths[(taken + number) % len(lengths)] for number in range(model.sequences_max)]
            taken += len(part)
            engine.add(taken, 0, part)
        engine.advance(engine.now_s + 4.0)
        if not before and engine.now_s >= warm_s:
            before, warm_s = engine.tokens, engine.now_s
    return (engine.tokens - before) / (engine.now_s - warm_s)
