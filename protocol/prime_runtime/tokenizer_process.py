"""A tokenizer in a process of its own: tokenizer.json is untrusted, and the library that reads it is not hardened.

    python -m prime_runtime.tokenizer_process CPU_S MEMORY_BYTES

The file comes from the run's trainer. A crafted one makes the library panic, abort the process when memory runs out, or
compute for hours. Here it costs only this child: the kernel limits its address space and processor time, the caller
kills it when it is slow, and Landlock and seccomp, where the kernel has them, take away files, network and programs.

A frame is its length (4 bytes, big-endian) and its body. The first frame to the child is tokenizer.json itself; after
that each body is the canonical msgpack of one message, and each job has one reply. Replies are parsed as strictly as
those of a peer.
"""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import IO, Annotated, Any

from prime_protocol.constants import ROLLOUT_ROWS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.codec import NUMBER_MAX, Range, Size, decode, encode
from prime_runtime.clock import read_uptime_ms
from prime_runtime.sandbox import isolation, syscalls
from prime_runtime.sandbox.launcher import get_held_bytes

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
PIPE_BYTES_MAX = 2**28 + 2**20
"""Longest frame: the text of the longest completion, 2**20 tokens, at 256 bytes a token. Public vocabularies have a few
tokens of 128 bytes; most have 4."""
BATCH_BYTES = 2**22
"""Input of one round trip. A single longer text or completion is a batch of its own."""
PROBLEM_BYTES_MAX = 2048
QUOTED_CHARS = 80

RESTART_PAUSE_MS = 5_000
RESTART_PAUSE_MS_MAX = 600_000
"""Pause after a failure of the child, doubled with each: the file is the same, so it will probably fail again."""
JOBS_FORGIVEN = 100
"""After this many jobs of one child the earlier failures no longer count."""

TextList = Annotated[tuple[Annotated[bytes, Size(0, PIPE_BYTES_MAX)], ...], Size(0, ROLLOUT_ROWS_MAX)]
"""UTF-8."""
TokenLists = TextList
"""Token ids as 32-bit unsigned integers in the byte order of this machine, which both sides share."""
JobNumber = Annotated[int, Range(0, NUMBER_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerLimits:
    """What one child may use. A file of 56 MiB with 720,000 tokens takes 5 s of processor time and 0.6 GiB to read."""

    wall_ms: int = 60_000
    """For reading the file, and for each job. Longer than the processor time, since the machine may be busy."""
    cpu_s: int = 20
    memory_bytes: int = 2 * 2**30
    """Address space beside that of the interpreter."""


DEFAULT_LIMITS = TokenizerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerJob:
    """Encode these texts and decode these tokens."""

    number: JobNumber
    texts: TextList
    tokens: TokenLists


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerReply:
    """Tokens of the job's texts and texts of its tokens, or a problem. Number 0: whether the file was read."""

    number: JobNumber
    tokens: TokenLists
    texts: TextList
    problem: Annotated[bytes, Size(0, PROBLEM_BYTES_MAX)]
    """Empty if the job is done."""
    is_last: bool
    """The child exits: after a panic the library's state is undefined."""


# --- The child --------------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    cpu_s, memory_bytes = int(argv[1]), int(argv[2])
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        write_frame(target, encode(make_problem(0, "needs the package tokenizers: pip install tokenizers", True)))
        return 1
    drop_privileges(memory_bytes)
    reply, tokenizer = load_tokenizer(Tokenizer, read_frame(source) or b"", cpu_s)
    while True:
        write_frame(target, encode(reply))
        if reply.is_last or (body := read_frame(source)) is None:
            return 0
        limit_cpu(cpu_s)
        reply = run_job(tokenizer, decode(TokenizerJob, body, bytes_max=PIPE_BYTES_MAX))


def drop_privileges(memory_bytes: int) -> None:
    """After this the process can use its pipes, its memory and the processor. A layer that fails here is skipped."""
    set_limit(resource.RLIMIT_AS, get_held_bytes() + memory_bytes)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_FSIZE, 0)
    layers = isolation.IsolationLayers(None)
    layers.apply("no new privileges", lambda: syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1))
    layers.apply("landlock", lambda: isolation.restrict_files(readable=(), writable=()))
    layers.apply("capabilities", syscalls.drop_capabilities)
    layers.apply("seccomp", isolation.install_seccomp_filter)


def limit_cpu(cpu_s: int) -> None:
    """The kernel ends the process that uses more, even if the caller is gone and kills nothing."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    set_limit(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + cpu_s, is_final=False)


def set_limit(limit: int, value: int, *, is_final: bool = True) -> None:
    """A lower limit that the caller has stays. One that is not final may be raised again."""
    _, ceiling = resource.getrlimit(limit)
    value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
    resource.setrlimit(limit, (value, value if is_final else ceiling))


def load_tokenizer(library: Any, file: bytes, cpu_s: int) -> tuple[TokenizerReply, Any]:
    limit_cpu(cpu_s)
    try:
        tokenizer = library.from_buffer(file)
        # Never truncate or pad a prompt, whatever settings the file was saved with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except BaseException as error:  # boundary: a panic of the library is a BaseException
        return make_problem(0, f"cannot be read: {describe_error(error)}", True), None
    return TokenizerReply(number=0, tokens=(), texts=(), problem=b"", is_last=False), tokenizer


def run_job(tokenizer: Any, job: TokenizerJob) -> TokenizerReply:
    try:
        tokens = tuple(limit_size(encode_text(tokenizer, text) for text in job.texts))
        texts = tuple(limit_size(decode_tokens(tokenizer, each) for each in job.tokens))
    except LocalError as error:
        return make_problem(job.number, str(error), False)
    except BaseException as error:  # boundary: see load_tokenizer
        return make_problem(job.number, f"fails: {describe_error(error)}", True)
    return TokenizerReply(number=job.number, tokens=tokens, texts=texts, problem=b"", is_last=False)


def encode_text(tokenizer: Any, raw: bytes) -> bytes:
    text = raw.decode()
    try:
        return array("I", tokenizer.encode(text, add_special_tokens=False).ids).tobytes()
    except MemoryError:
        raise
    except Exception as error:  # boundary: the library raises nothing narrower
        raise LocalError(f"cannot encode the text {text[:QUOTED_CHARS]!r}: {describe_error(error)}") from None


def decode_tokens(tokenizer: Any, raw: bytes) -> bytes:
    tokens = array("I", raw).tolist()
    try:
        text: str = tokenizer.decode(tokens, skip_special_tokens=False)
        return text.encode()
    except MemoryError:
        raise
    except Exception as error:  # boundary: the library raises nothing narrower
        raise LocalError(f"cannot decode the tokens {tokens[:10]}: {describe_error(error)}") from None


def limit_size(items: Iterator[bytes]) -> Iterator[bytes]:
    """LocalError once they would no longer fit into a reply."""
    total = 0
    for item in items:
        total += len(item)
        if total > PIPE_BYTES_MAX - 2**20:
            raise LocalError(f"turns a batch into more than {PIPE_BYTES_MAX - 2**20} bytes")
        yield item


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def make_problem(number: int, problem: str, is_last: bool) -> TokenizerReply:
    raw = problem.encode(errors="replace")[:PROBLEM_BYTES_MAX]
    return TokenizerReply(number=number, tokens=(), texts=(), problem=raw, is_last=is_last)


# --- Frames -----------------------------------------------------------------------------------------------------------


def write_frame(target: IO[bytes], body: bytes) -> None:
    target.write(len(body).to_bytes(LENGTH_BYTES, "big"))
    target.write(body)
    target.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """None where the other side closed the pipe, even in the middle of a frame. RemoteError: it is too long."""
    head = source.read(LENGTH_BYTES)
    length = int.from_bytes(head, "big")
    if length > PIPE_BYTES_MAX:
        raise RemoteError("frame", f"is {length} bytes, the limit is {PIPE_BYTES_MAX}")
    body = source.read(length)
    return body if len(head) == LENGTH_BYTES and len(body) == length else None


def decode_results(reply: TokenizerReply) -> tuple[list[list[int]], list[str]]:
    """Tokens and texts of a reply. RemoteError."""
    try:
        return [array("I", each).tolist() for each in reply.tokens], [each.decode() for each in reply.texts]
    except ValueError as error:
        raise RemoteError("TokenizerReply", f"is not made of whole tokens and UTF-8: {error}") from None


# --- The caller's side ------------------------------------------------------------------------------------------------


class TokenizerDied(LocalError):
    """The child ended, was too slow, or sent something other than the reply to its job."""


class TokenizerChild:
    """One child process. Every failure ends it."""

    def __init__(self, command: Sequence[str], tokenizer_json: bytes, limits: TokenizerLimits) -> None:
        """Starts it and waits until it has read the file. TokenizerDied."""
        self._wall_ms = limits.wall_ms
        self._is_late = False
        self.jobs = 0
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=build_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise TokenizerDied(f"has no process: {command[0]} cannot be started: {error.strerror}") from None
        # Runs also when this object is garbage, and when the program exits.
        self.kill = weakref.finalize(self, kill_process, self.process)
        self._exchange(tokenizer_json)

    def run(self, texts: Sequence[bytes], tokens: Sequence[bytes]) -> tuple[list[list[int]], list[str]]:
        """Tokens of the texts, texts of the tokens. LocalError: it cannot do this job. TokenizerDied: nor any other."""
        self.jobs += 1
        reply = self._exchange(encode(TokenizerJob(number=self.jobs, texts=tuple(texts), tokens=tuple(tokens))))
        if len(reply.tokens) != len(texts) or len(reply.texts) != len(tokens):
            raise self._end("replied to another number of texts than its job has")
        try:
            return decode_results(reply)
        except RemoteError as error:
            raise self._end(f"sent a malformed reply: {error}") from None

    def _exchange(self, body: bytes) -> TokenizerReply:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # Killing the process ends a read or a write that waits for it.
        timer = threading.Timer(self._wall_ms / 1000, self._expire)
        timer.daemon = True
        timer.start()
        try:
            write_frame(self.process.stdin, body)
            raw = read_frame(self.process.stdout)
            if raw is None:
                raise BrokenPipeError
            reply = decode(TokenizerReply, raw, bytes_max=PIPE_BYTES_MAX)
        except OSError:
            # Its pipes are closed, so it has exited or is about to; if not, the timer still runs.
            self.process.wait()
            raise self._end(f"took longer than {self._wall_ms} ms" if self._is_late else "crashed") from None
        except RemoteError as error:
            raise self._end(f"sent a malformed reply: {error}") from None
        finally:
            timer.cancel()
        if reply.number != self.jobs:
            raise self._end(f"replied to job {reply.number} instead of {self.jobs}")
        if reply.is_last:
            self.kill()
            raise TokenizerDied(reply.problem.decode(errors="replace"))
        if reply.problem:
            raise LocalError(reply.problem.decode(errors="replace"))
        return reply

    def _expire(self) -> None:
        self._is_late = True
        self.process.kill()

    def _end(self, what: str) -> TokenizerDied:
        self.kill()
        code = self.process.returncode
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return TokenizerDied(f"{what} ({ended}; its process has limits of memory and processor time)")


def kill_process(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        try:
            stream.close()
        except OSError:  # a frame that was not sent
            pass


def build_environment() -> dict[str, str]:
    """Nothing of the caller's environment, which may hold a password, except where its packages are."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LC_ALL": "C.UTF-8",
        "TOKENIZERS_PARALLELISM": "false",
    }


def build_command(limits: TokenizerLimits) -> list[str]:
    module = "prime_runtime.tokenizer_process"
    return [sys.executable, "-s", "-P", "-B", "-m", module, str(limits.cpu_s), str(limits.memory_bytes)]


class TokenizerProcess:
    """The tokenizer of one tokenizer.json. Its child starts at the first use, and again after a failure.

    Calls block, for at most the time limit a batch, so a program with an event loop makes them in a thread. Threads
    take turns. After a failure calls fail at once until a pause is over.
    """

    def __init__(
        self,
        tokenizer_json: bytes,
        name: str,
        *,
        limits: TokenizerLimits,
        command: Callable[[TokenizerLimits], Sequence[str]] = build_command,
        uptime_ms: Callable[[], int] = read_uptime_ms,
    ) -> None:
        """`name` says in errors which file it is."""
        self._json = tokenizer_json
        self._name = name
        self._limits = limits
        self._command = command
        self._uptime_ms = uptime_ms
        self._lock = threading.Lock()
        self._child: TokenizerChild | None = None
        self._failures = 0
        self._retry_at_ms = 0
        self.problem = ""
        """Why it failed last; empty once it works again."""

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, without special tokens of the tokenizer's own. LocalError."""
        try:
            raw = [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            raise LocalError(f"a text has no tokens, because it is not valid Unicode: {error}") from None
        return [tokens for batch in split_batches(raw) for tokens in self._run(batch, ())[0]]

    def decode(self, token_lists: Sequence[Sequence[int]]) -> list[str]:
        """Text of each list of tokens, special tokens included. LocalError."""
        raw = [array("I", tokens).tobytes() for tokens in token_lists]
        return [text for batch in split_batches(raw) for text in self._run((), batch)[1]]

    def close(self) -> None:
        """End the child, even in the middle of a job. A later call would start another."""
        if (child := self._child) is not None:
            child.process.kill()

    def _run(self, texts: Sequence[bytes], tokens: Sequence[bytes]) -> tuple[list[list[int]], list[str]]:
        with self._lock:
            if self._child is not None and self._child.process.poll() is not None:
                # It was killed between two jobs, so the file is not to blame.
                self._child = None
            wait_ms = self._retry_at_ms - self._uptime_ms()
            if self._child is None and wait_ms > 0:
                raise LocalError(f"{self.problem} It is tried again in {ceil(wait_ms / 1000)} s.")
            try:
                if self._child is None:
                    self._child = TokenizerChild(self._command(self._limits), self._json, self._limits)
                found = self._child.run(texts, tokens)
            except TokenizerDied as error:
                self._record_failure(error)
                raise LocalError(self.problem) from None
            except LocalError as error:
                raise LocalError(f"{self._name} {error}") from None
            if self._child.jobs >= JOBS_FORGIVEN:
                self._failures = 0
            self.problem = ""
            return found

    def _record_failure(self, error: TokenizerDied) -> None:
        self._child = None
        pause_ms = min(RESTART_PAUSE_MS_MAX, RESTART_PAUSE_MS << min(self._failures, 10))
        self._failures += 1
        self._retry_at_ms = self._uptime_ms() + pause_ms
        self.problem = f"{self._name} {error}. The run's trainer published this file: tell the run's operator."
        log.warning("%s It may be tried again in %.1f s", self.problem, pause_ms / 1000)


def split_batches(items: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Consecutive items, as many as one round trip takes."""
    batch: list[bytes] = []
    total = 0
    for item in items:
        if batch and (total + len(item) > BATCH_BYTES or len(batch) == ROLLOUT_ROWS_MAX):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += len(item)
    if batch:
        yield batch


if __name__ == "__main__":
    sys.exit(main(sys.argv))
