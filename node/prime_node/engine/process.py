"""The node's side of the engine's process: start it in a minimal environment, hand it jobs, watch it, end it.

Completions of several jobs are generated together, so that the engine never drains. Forward passes are run one at a
time. If the process fails, its jobs raise EngineDied with the last lines of its standard error, and the node continues.
lifecycle.py decides whether the process is started again.
"""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import prime_node
import prime_protocol
import prime_runtime
from prime_node.engine import frames
from prime_node.engine.config import VISIBLE_GPUS, EngineConfig
from prime_node.engine.interface import (
    NO_CAPACITY,
    Completion,
    EngineFacts,
    EngineQueue,
    GenerateRequest,
    Sampling,
)
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_node.engine.shared_lock import SharedLock
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.read_proofs import NO_READ_PROOFS, ReadProofRequest
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest, NodeId

log = logging.getLogger(__name__)

TAIL_LINES = 20
TAIL_LINE_BYTES = 400
"""What is kept of the engine's standard error."""
CANCEL_MS = 5_000
"""How long an engine may take to cancel a job, or to exit when told to."""
READ_BYTES = 2**20
"""Buffer for the engine's output, so that a long frame arrives in few pieces."""

LIBRARY_OPTIONS = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # As nvidia-smi numbers GPUs. CUDA's own order puts the fastest first.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise vLLM would send usage statistics to its developers.
    "VLLM_NO_USAGE_STATS": "1",
    # Its default binds the ranks of a split model to different cores, of which there may be too few.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Of the sockets between those ranks, relative to the engine's folder: Unix allows 107 characters.
    "VLLM_RPC_BASE_PATH": ".",
}
"""What the libraries in the engine's process, and in those of its ranks, read from their environment."""

OnProgress = Callable[[int], None]
"""Called with the rows done so far, whenever the engine says that it is at work."""
OnQueue = Callable[[EngineQueue], None]


class EngineDied(LocalError):
    """The engine's process exited or was killed before its job was done."""


def build_command(config: EngineConfig, precision: Precision) -> list[str]:
    return [
        str(config.python or sys.executable),
        *("-m", "prime_node.engine.child"),
        *("--engine", config.engine, "--device", config.device, "--precision", precision),
        *("--threads", str(config.threads), "--batch-max", str(config.batch_max)),
        *("--memory-mb-max", str(config.memory_mb_max)),
        *("--memory-share", str(config.memory_share), "--kv-dtype", config.kv_dtype),
        *("--tensor-parallel", str(config.tensor_parallel or 1)),
    ]


def build_environment(config: EngineConfig, folder: Path, gpus: Sequence[str] = ()) -> dict[str, str]:
    """Nothing is inherited from the node's environment, which may hold its password. Caches go into `folder`.

    `gpus` are the only ones that the engine sees; nothing: all that the settings leave to it.
    """
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": link_packages(folder),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(config.threads),
        **LIBRARY_OPTIONS,
        **dict(variable.split("=", 1) for variable in config.variables),
        **(dict.fromkeys(VISIBLE_GPUS, ",".join(gpus)) if gpus else {}),
    }


def link_packages(folder: Path) -> str:
    """A folder of links to our packages only, so that another interpreter imports its own libraries."""
    place = folder / "packages"
    place.mkdir(parents=True, exist_ok=True)
    for package in (prime_protocol, prime_runtime, prime_node):
        source, link = Path(package.__path__[0]).resolve(), place / package.__name__
        if not link.is_symlink() or link.resolve() != source:
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    return str(place)


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job that the process has been given and has not ended."""

    number: int
    stall_ms: int
    """The process is ended if it shows no progress for so long."""
    take: Callable[[frames.EngineReply], None]
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class EngineProcess:
    """One process. It generates completions of several jobs together, and runs other jobs one at a time."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        stall_ms: int,
        load_ms: int,
        on_queue: OnQueue = lambda queue: None,
    ) -> None:
        """`on_queue` hears about the completions in progress, a few times a second."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._stall_ms = stall_ms
        self._load_ms = load_ms
        self._on_queue = on_queue
        self._last_job = self._last_row = 0
        self._jobs: dict[int, PendingJob] = {}
        self._rows: dict[int, int] = {}
        """The job of each completion in progress."""
        self._samplings = SharedLock[Sampling]()
        """The engine generates with one sampling at a time."""
        self._alone = asyncio.Lock()
        """Held by a job that is not generation: its replies do not name it."""
        self._watch: asyncio.Timeout | None = None
        """Ends the process if no reply comes; None while its replies are not read."""
        self._alarm_ms = 0
        self._replies: asyncio.Task[None] | None = None
        self._error: EngineDied | None = None
        """Why it ended."""
        self.capacity = NO_CAPACITY
        """With the loaded checkpoint."""
        self.software: tuple[str, ...] = ()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stderr_task = asyncio.create_task(self._collect_stderr(process.stderr))

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        start_ms: int,
        stall_ms: int,
        on_queue: OnQueue = lambda queue: None,
    ) -> "EngineProcess":
        """Start it and wait until it is ready. LocalError if it cannot be started."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=READ_BYTES,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise LocalError(f"cannot start the engine with {command[0]}: {error.strerror}") from None
        engine = cls(process, stall_ms=stall_ms, load_ms=start_ms, on_queue=on_queue)
        try:
            async with asyncio.timeout(start_ms / 1000):
                reply = await engine._read()
        except TimeoutError:
            raise await engine._kill_and_describe(f"it was not ready after {start_ms} ms and was ended") from None
        except (RemoteError, OSError, asyncio.IncompleteReadError) as error:
            raise await engine._kill_and_describe(describe_end(error)) from None
        except BaseException:  # boundary: if the start fails or is cancelled, the process must not survive
            await engine.kill()
            raise
        if not isinstance(reply, frames.EngineReady):
            why = (
                decode_problem(reply)
                if isinstance(reply, frames.JobFailed)
                else f"its first reply was {type(reply).__name__}"
            )
            await engine.kill()
            raise LocalError(f"the engine does not start: {why}")
        engine.software = reply.software
        engine._replies = asyncio.create_task(engine._serve_replies())
        return engine

    # --- Jobs -------------------------------------------------------------------------------------------------------

    async def load(self, folder: Path, changed: frozenset[str] | None = None) -> EngineFacts:
        """LocalError if the engine cannot load this checkpoint."""
        names = None if changed is None else tuple(sorted(changed))
        found: list[EngineFacts] = []

        def take(reply: frames.EngineReply) -> None:
            if isinstance(reply, frames.ModelLoaded):
                found.append(frames.decode_facts(reply))
            elif isinstance(reply, frames.CapacityFrame):
                self.capacity = frames.decode_capacity(reply)

        async with self._alone:
            job = frames.LoadJob(job=self._next(), folder=os.fsencode(folder), changed=names)
            await self._run_job(job, self._load_ms, take)
        if len(found) != 1:
            raise await self._kill_and_describe("it loaded a checkpoint and did not describe it")
        return found[0]

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        sampling: Sampling,
        on_progress: OnProgress = lambda rows: None,
        on_completion: Callable[[Completion], None] = lambda completion: None,
    ) -> list[Completion]:
        """All completions, in the order of the requests. They join those of other callers with the same sampling, and
        wait for those with another. If the caller is cancelled, the engine's job is too."""
        if not requests:
            return []
        found: dict[int, Completion] = {}
        async with self._samplings.hold(sampling), self._number_rows(requests) as (job, numbered):

            def take(reply: frames.EngineReply) -> None:
                if isinstance(reply, frames.CompletionFrame):
                    done = frames.decode_completion(reply)
                    found[done.number] = replace(done, number=numbered[done.number].number)
                    on_completion(found[done.number])
                on_progress(len(found))

            wanted = frames.GenerateJob(
                job=job,
                sampling=frames.encode_sampling(sampling),
                requests=tuple(
                    frames.encode_request(replace(request, number=row)) for row, request in numbered.items()
                ),
            )
            await self._run_job(wanted, self._stall_ms, take)
        if found.keys() != numbered.keys():
            raise await self._kill_and_describe(f"it made {len(found)} of {len(requests)} completions")
        return [found[row] for row in numbered]

    @asynccontextmanager
    async def _number_rows(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncIterator[tuple[int, dict[int, GenerateRequest]]]:
        """A new job, and its requests by numbers that no other completion in progress has."""
        job, first = self._next(), self._last_row + 1
        self._last_row += len(requests)
        numbered = dict(enumerate(requests, first))
        self._rows.update(dict.fromkeys(numbered, job))
        try:
            yield job, numbered
        finally:
            for row in numbered:
                del self._rows[row]

    async def check(self, claims: Sequence[ClaimedRow], sampling: Sampling, seed: Digest) -> list[RowMeasurement]:
        """The measurement of every claim, in their order."""
        numbers, _ = await self.check_block(claims, sampling, seed, NO_READ_PROOFS)
        return numbers

    async def check_block(
        self, claims: Sequence[ClaimedRow], sampling: Sampling, seed: Digest, wanted_proofs: ReadProofRequest
    ) -> tuple[list[RowMeasurement], dict[NodeId, tuple[float, ...]]]:
        """The measurement of every claim, in their order, and the requested readers' projections of all of them."""
        job = self._next()
        wanted = frames.CheckRowsJob(
            job=job,
            sampling=frames.encode_sampling(sampling),
            seed=seed,
            claims=tuple(frames.encode_claim(claim) for claim in claims),
            submission=wanted_proofs.submission,
            readers=wanted_proofs.readers,
            block=wanted_proofs.block,
        )
        found: dict[int, RowMeasurement] = {}
        proofs: dict[NodeId, tuple[float, ...]] = {}

        def take(reply: frames.EngineReply) -> None:
            if isinstance(reply, frames.MeasurementFrame):
                found[reply.row] = frames.decode_measurement(reply)
            elif isinstance(reply, frames.ReadProofFrame):
                proofs[reply.reader] = frames.decode_projections(reply)

        async with self._alone:
            await self._run_job(wanted, self._stall_ms, take)
        if found.keys() != {claim.sequence.number for claim in claims}:
            raise await self._kill_and_describe(f"it read {len(found)} of {len(claims)} rows")
        if proofs.keys() != set(wanted_proofs.readers):
            raise await self._kill_and_describe(
                f"it made the read proofs of {len(proofs)} of {len(wanted_proofs.readers)} readers"
            )
        return [found[claim.sequence.number] for claim in claims], proofs

    def _next(self) -> int:
        self._last_job += 1
        return self._last_job

    async def _run_job(
        self, request: frames.EngineCommand, stall_ms: int, take: Callable[[frames.EngineReply], None]
    ) -> None:
        """Pass replies to `take` until the job ends. Without any reply for `stall_ms` the process is killed."""
        if self._error is not None:
            raise self._error
        job = self._jobs[request.job] = PendingJob(request.job, stall_ms, take)
        self._set_alarm()
        try:
            self._input.write(frames.encode_frame(request))
            async with asyncio.timeout(stall_ms / 1000):
                await self._input.drain()
            await asyncio.shield(job.ended)
        except asyncio.CancelledError:
            if not job.ended.done():
                await self._cancel_job(job)
            raise
        except (TimeoutError, OSError):
            raise await self._kill_and_describe("it takes no more requests") from None
        finally:
            self._jobs.pop(request.job, None)

    def _set_alarm(self) -> None:
        """From now on the process has this long to reply, if any job waits for it."""
        if self._watch is not None:
            self._alarm_ms = max((job.stall_ms for job in self._jobs.values()), default=0)
            due_s = asyncio.get_running_loop().time() + self._alarm_ms / 1000
            self._watch.reschedule(due_s if self._alarm_ms else None)

    async def _serve_replies(self) -> None:
        """Give each reply to its job, until the process ends or misbehaves."""
        try:
            while True:
                async with asyncio.timeout(None) as self._watch:
                    self._set_alarm()
                    self._hand_out(await self._read())
        except TimeoutError:
            problem = f"it showed no progress for {self._alarm_ms} ms and was ended"
        except (RemoteError, OSError, asyncio.IncompleteReadError) as error:
            problem = describe_end(error)
        self._watch = None
        await self._kill_and_describe(problem)

    def _hand_out(self, reply: frames.EngineReply) -> None:
        match reply:
            case frames.JobDone(job=number) | frames.JobFailed(job=number):
                job = self._jobs.pop(number, None)
                if job is not None and not job.ended.done():
                    if isinstance(reply, frames.JobFailed):
                        job.ended.set_exception(LocalError(f"the engine cannot do this: {decode_problem(reply)}"))
                    else:
                        job.ended.set_result(None)
            case frames.CompletionFrame(number=row):
                job = self._jobs.get(self._rows.get(row, 0))
                if job is not None:
                    job.take(reply)
            case frames.EngineProgress(running=running, waiting=waiting):
                self._on_queue(EngineQueue(running=running, waiting=waiting))
                for number in set(self._rows.values()) & self._jobs.keys():
                    self._jobs[number].take(reply)
            case _:
                for number in self._jobs.keys() - set(self._rows.values()):
                    self._jobs[number].take(reply)

    async def _read(self) -> frames.EngineReply:
        kind, length = frames.decode_frame_header(await self._output.readexactly(frames.HEADER_BYTES))
        reply: frames.EngineReply = frames.decode_frame_body(kind, await self._output.readexactly(length))
        return reply

    # --- End of the process -----------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _cancel_job(self, job: PendingJob) -> None:
        """Cancel the job, or kill the process."""
        try:
            self._input.write(frames.encode_frame(frames.CancelJob(job=job.number)))
            async with asyncio.timeout(CANCEL_MS / 1000):
                await asyncio.shield(job.ended)
        except (OSError, TimeoutError):
            await self._kill_and_describe("it did not cancel a job")
        except LocalError:
            pass
        except asyncio.CancelledError:
            self._kill_process_group()
            raise

    async def _kill_and_describe(self, what: str) -> EngineDied:
        """Kill the process and end its jobs; returns the error with its exit code and last output."""
        self._kill_process_group()
        await self._process.wait()
        await self._stderr_task
        if self._error is None:
            code, tail = self._process.returncode, " | ".join(self._tail)
            ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            text = f"the engine, process {self.pid}, failed: {what} ({ended})" + (f": {tail}" if tail else "")
            self._fail_jobs(EngineDied(text))
        assert self._error is not None
        await self.kill()
        return self._error

    def _fail_jobs(self, error: EngineDied) -> None:
        self._error = error
        for job in self._jobs.values():
            if not job.ended.done():
                job.ended.set_exception(error)
                job.ended.exception()  # a caller that was cancelled meanwhile does not retrieve it

    async def close(self) -> None:
        """Ask it to exit, then kill it."""
        try:
            self._input.write(frames.encode_frame(frames.StopEngine(job=self._next())))
            async with asyncio.timeout(CANCEL_MS / 1000):
                await self._process.wait()
        except (OSError, TimeoutError):
            pass
        await self.kill()

    async def kill(self) -> None:
        """Kill it. When this returns, it has exited and its output is collected."""
        self._kill_process_group()
        await self._process.wait()
        await self._stderr_task
        if self._error is None:
            self._fail_jobs(EngineDied(f"the engine, process {self.pid}, was ended"))
        if self._replies is not None and self._replies is not asyncio.current_task():
            self._replies.cancel()
            await asyncio.wait([self._replies])
        self._input.close()

    def _kill_process_group(self) -> None:
        """Kill the whole session: an engine may have worker processes of its own."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def _collect_stderr(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(2**16):
            for line in chunk.decode(errors="replace").splitlines():
                if line.strip():
                    log.debug("engine: %s", line)
                    self._tail.append(line.strip()[:TAIL_LINE_BYTES])


def decode_problem(reply: frames.JobFailed) -> str:
    return reply.problem.decode(errors="replace")


def describe_end(error: Exception) -> str:
    return f"it sent a malformed frame: {error}" if isinstance(error, RemoteError) else "it ended"
