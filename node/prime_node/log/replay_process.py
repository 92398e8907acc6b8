"""A process of its own that holds the replayed ledger: `python -m prime_node.log.replay_process`.

Checking an entry takes about a fifth of a millisecond of processor time, and a snapshot of a large state a second: too
long for the process that answers peers. The process has a low priority, so that it never slows down an audit. The node
sends it verified entries; a request and a reply are each a length and a pickle, and only the two processes of one
program write to these pipes. When its input closes, it saves its state and ends.
"""

import asyncio
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar

from prime_node.log.replay import LedgerReplay, ReplayReport, TimeWindow
from prime_protocol.errors import LocalError
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.log_files import read_local_snapshot, write_local_snapshot

P = ParamSpec("P")
T = TypeVar("T")

LENGTH_BYTES = 8
CLOSE_S = 20.0
"""Time to save the state at the end. A state of 10^7 entries takes some seconds."""


# --- The process ------------------------------------------------------------------------------------------------------


class ReplayServer:
    """Answers requests. Each public method is one kind of request."""

    def __init__(self, network: NetworkId, coordinator: NodeId, snapshot: Path) -> None:
        self._network = network
        self._coordinator = coordinator
        self._snapshot = snapshot
        self._replay = LedgerReplay(network, coordinator, read_local_snapshot(snapshot, network))
        self._saved_size = self._replay.state.size

    def report(self) -> ReplayReport:
        return self._replay.report()

    def apply(self, leaves: Sequence[bytes], window: TimeWindow | None) -> ReplayReport:
        return self._replay.apply(leaves, window)

    def reset(self) -> ReplayReport:
        """Start again at entry 0."""
        self._replay = LedgerReplay(self._network, self._coordinator)
        self._saved_size = 0
        return self.report()

    def save(self) -> ReplayReport:
        if self._replay.state.size != self._saved_size:
            write_local_snapshot(self._snapshot, self._network, self._replay.state)
            self._saved_size = self._replay.state.size
        return self.report()

    def query(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(self._replay.state, *args, **kwargs)


def serve_requests(server: ReplayServer, requests: BinaryIO, replies: BinaryIO) -> None:
    """Until the node closes the pipe."""
    while head := requests.read(LENGTH_BYTES):
        name, args = pickle.loads(requests.read(int.from_bytes(head, "big")))
        started_ns = time.process_time_ns()
        reply = getattr(server, name)(*args)
        if isinstance(reply, ReplayReport):
            reply = replace(reply, cpu_ms=(time.process_time_ns() - started_ns) // 1_000_000)
        raw = pickle.dumps(reply)
        replies.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
        replies.flush()


def main(argv: Sequence[str]) -> int:
    network, coordinator, snapshot, niceness = argv[1:]
    os.nice(int(niceness))
    server = ReplayServer(NetworkId(network), NodeId.parse(coordinator), Path(snapshot))
    try:
        serve_requests(server, sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        pass  # the node was killed while this process computed
    server.save()
    return 0


# --- The node's side --------------------------------------------------------------------------------------------------


class ReplayProcess:
    """One request at a time. LocalError: the process has ended; start another, which continues from the snapshot."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls, network: NetworkId, coordinator: NodeId, snapshot: Path, *, niceness: int) -> "ReplayProcess":
        snapshot.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = (network, str(coordinator), str(snapshot), str(niceness))
        # A session of its own: Ctrl-C in a terminal must reach the node alone.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "prime_node.log.replay_process", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process)

    async def report(self) -> ReplayReport:
        return await self._request_report("report")

    async def apply(self, leaves: Sequence[bytes], window: TimeWindow | None) -> ReplayReport:
        return await self._request_report("apply", leaves, window)

    async def reset(self) -> ReplayReport:
        return await self._request_report("reset")

    async def save(self) -> ReplayReport:
        return await self._request_report("save")

    async def query(self, function: Callable[Concatenate[LedgerState, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(state, ...)` of the replayed state. A function of a module, with arguments that can be pickled."""
        result: T = await self._request("query", function, args, kwargs)
        return result

    async def _request_report(self, name: str, *args: Any) -> ReplayReport:
        report = await self._request(name, *args)
        assert isinstance(report, ReplayReport)
        return report

    async def _request(self, name: str, *args: Any) -> Any:
        # A caller that is cancelled must not leave its reply in the pipe for the next one.
        return await asyncio.shield(self._exchange(pickle.dumps((name, args))))

    async def _exchange(self, raw: bytes) -> Any:
        async with self._lock:
            try:
                self._input.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
                await self._input.drain()
                size = int.from_bytes(await self._output.readexactly(LENGTH_BYTES), "big")
                return pickle.loads(await self._output.readexactly(size))
            except (OSError, asyncio.IncompleteReadError):
                raise LocalError("the process that replays the log has ended; it is started again") from None

    async def close(self) -> None:
        """Let it save its state, but not for ever."""
        self._input.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
