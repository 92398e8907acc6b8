"""The node's side of the engine's process: start it in a minimal environment, run one job at a time, watch it, end it.

If the process fails, its job raises EngineDied with the last lines of its standard error, and the node continues.
lifecycle.py decides whether the process is started again.
"""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import prime_node
import prime_protocol
import prime_runtime
from prime_node.engine import frames
from prime_node.engine.config import EngineConfig
from prime_node.engine.interface import Completion, EngineFacts, GenerateRequest, Sampling
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
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

OnProgress = Callable[[frames.EngineProgress], None]


class EngineDied(LocalError):
    """The engine's process exited or was killed before its job was done."""


def build_command(config: EngineConfig, precision: Precision) -> list[str]:
    return [
        str(config.python or sys.executable),
        *("-m", "prime_node.engine.child"),
        *("--engine", config.engine, "--device", config.device, "--precision", precision),
        *("--threads", str(config.threads), "--batch-max", str(config.batch_max)),
        *("--memory-mb-max", str(config.memory_mb_max)),
    ]


def build_environment(config: EngineConfig, folder: Path) -> dict[str, str]:
    """Nothing is inherited from the node's environment, which may hold its password. Caches go into `folder`."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": link_packages(folder),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(config.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **dict(variable.split("=", 1) for variable in config.variables),
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


class EngineProcess:
    """One process. It runs one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process, *, stall_ms: int, load_ms: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._stall_ms = stall_ms
        self._load_ms = load_ms
        self._job = 0
        self.software: tuple[str, ...] = ()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stderr_task = asyncio.create_task(self._collect_stderr(process.stderr))

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, *, start_ms: int, stall_ms: int
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
        engine = cls(process, stall_ms=stall_ms, load_ms=start_ms)
        try:
            reply = await engine._read(start_ms)
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
        return engine

    # --- Jobs -------------------------------------------------------------------------------------------------------

    async def load(self, folder: Path, changed: frozenset[str] | None = None) -> EngineFacts:
        """LocalError if the engine cannot load this checkpoint."""
        names = None if changed is None else tuple(sorted(changed))
        found: list[EngineFacts] = []

        def take(reply: frames.EngineReply) -> None:
            if isinstance(reply, frames.ModelLoaded):
                found.append(frames.decode_facts(reply))

        await self._run_job(
            frames.LoadJob(job=self._next(), folder=os.fsencode(folder), changed=names), self._load_ms, take
        )
        if len(found) != 1:
            raise await self._kill_and_describe("it loaded a checkpoint and did not describe it")
        return found[0]

    async def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, on_progress: OnProgress = lambda progress: None
    ) -> list[Completion]:
        """All completions, in the order of the requests. If the caller is cancelled, the engine's job is too."""
        wanted = frames.GenerateJob(
            job=self._next(),
            sampling=frames.encode_sampling(sampling),
            requests=tuple(frames.encode_request(request) for request in requests),
        )
        found: dict[int, Completion] = {}

        def take(reply: frames.EngineReply) -> None:
            if isinstance(reply, frames.CompletionFrame):
                found[reply.number] = frames.decode_completion(reply)
            elif isinstance(reply, frames.EngineProgress):
                on_progress(reply)

        await self._run_job(wanted, self._stall_ms, take)
        if found.keys() != {request.number for request in requests}:
            raise await self._kill_and_describe(f"it made {len(found)} of {len(requests)} completions")
        return [found[request.number] for request in requests]

    async def check(self, claims: Sequence[ClaimedRow], sampling: Sampling, seed: Digest) -> list[RowMeasurement]:
        """The measurement of every claim, in their order."""
        numbers, _ = await self.check_block(claims, sampling, seed, NO_READ_PROOFS)
        return numbers

    async def check_block(
        self, claims: Sequence[ClaimedRow], sampling: Sampling, seed: Digest, wanted_proofs: ReadProofRequest
    ) -> tuple[list[RowMeasurement], dict[NodeId, tuple[float, ...]]]:
        """The measurement of every claim, in their order, and the requested readers' projections of all of them."""
        wanted = frames.CheckRowsJob(
            job=self._next(),
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

        await self._run_job(wanted, self._stall_ms, take)
        if found.keys() != {claim.sequence.number for claim in claims}:
            raise await self._kill_and_describe(f"it read {len(found)} of {len(claims)} rows")
        if proofs.keys() != set(wanted_proofs.readers):
            raise await self._kill_and_describe(
                f"it made the read proofs of {len(proofs)} of {len(wanted_proofs.readers)} readers"
            )
        return [found[claim.sequence.number] for claim in claims], proofs

    def _next(self) -> int:
        self._job += 1
        return self._job

    async def _run_job(
        self, request: frames.EngineCommand, stall_ms: int, take: Callable[[frames.EngineReply], None]
    ) -> None:
        """Pass replies to `take` until the job ends. Without a reply for `stall_ms` the process is killed."""
        try:
            self._input.write(frames.encode_frame(request))
            async with asyncio.timeout(stall_ms / 1000):
                await self._input.drain()
            while not isinstance(reply := await self._read(stall_ms), frames.JobDone):
                if isinstance(reply, frames.JobFailed):
                    raise LocalError(f"the engine cannot do this: {decode_problem(reply)}")
                take(reply)
        except asyncio.CancelledError:
            await self._cancel_job(request.job)
            raise
        except RemoteError as error:
            raise await self._kill_and_describe(f"it sent a malformed frame: {error}") from None
        except (TimeoutError, OSError):
            raise await self._kill_and_describe("it takes no more requests") from None

    async def _read(self, stall_ms: int) -> frames.EngineReply:
        try:
            async with asyncio.timeout(stall_ms / 1000):
                kind, length = frames.decode_frame_header(await self._output.readexactly(frames.HEADER_BYTES))
                reply: frames.EngineReply = frames.decode_frame_body(kind, await self._output.readexactly(length))
                return reply
        except TimeoutError:
            raise await self._kill_and_describe(f"it showed no progress for {stall_ms} ms and was ended") from None
        except (asyncio.IncompleteReadError, OSError):
            raise await self._kill_and_describe("it ended") from None

    # --- End of the process -----------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _cancel_job(self, job: int) -> None:
        """Cancel the job, or kill the process."""
        try:
            self._input.write(frames.encode_frame(frames.CancelJob(job=job)))
            async with asyncio.timeout(CANCEL_MS / 1000):
                while not isinstance(await self._read(CANCEL_MS), frames.JobDone | frames.JobFailed):
                    pass
        except (LocalError, RemoteError, OSError, TimeoutError):
            await self.kill()
        except asyncio.CancelledError:
            self._kill_process_group()
            raise

    async def _kill_and_describe(self, what: str) -> EngineDied:
        """Kill the process; returns the error with its exit code and last output."""
        await self.kill()
        code, tail = self._process.returncode, " | ".join(self._tail)
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return EngineDied(f"the engine, process {self.pid}, failed: {what} ({ended})" + (f": {tail}" if tail else ""))

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
