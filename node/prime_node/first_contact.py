"""The first questions of a process to its coordinator, asked until they are answered: who are you, whom to follow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from prime_node.config import NodeConfig
from prime_node.home import read_trainer
from prime_node.joining import complete, explain, may_pass, read_domain, read_greeting
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.records import RECORDS, RecordsWanted
from prime_protocol.typed_data import EMBEDDED
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient
from prime_runtime.json_client import open_json_client

log = logging.getLogger(__name__)

ASK_MS = 1_000
ASK_MS_MAX = 30_000
"""Between two questions, doubling, while the coordinator does not answer."""

T = TypeVar("T")
Say = Callable[[str], None]


class FirstContact:
    """One process's."""

    def __init__(self, config: NodeConfig, stop: asyncio.Event, clock: Clock, say: Say) -> None:
        self._config = config
        self._stop = stop
        self._clock = clock
        self._say = say
        self._is_first = read_trainer(config) is None
        self.problem = ""
        """Why there is no answer yet."""

    async def find_out(self) -> NodeConfig | None:
        """The settings with what the coordinator says of itself; None if we are stopped before it answers."""
        if self._config.is_complete:
            return self._config
        return await self._ask(self._ask_greeting)

    async def find_trainer(self, config: NodeConfig, client: HttpClient) -> NodeId | None:
        """Whose weights count in the run, as was learnt before or as the coordinator says now."""
        return read_trainer(config) or await self._ask(lambda: self._ask_trainer(config, client))

    async def _ask_greeting(self) -> NodeConfig:
        config = self._config
        async with open_json_client(config.coordinator, config.authority) as client:
            answer = await client.get("/status")
            settlement = await client.get("/settlement")
        try:
            greeting = replace(read_greeting(answer), domain=read_domain(settlement))
        except RemoteError as error:
            raise LocalError(f"{config.coordinator} is no coordinator of ours: {error}; is the URL right?") from None
        found = complete(config, greeting)
        self._say(f"network {found.network}, run {found.run}")
        self._say(f"coordinator {found.coordinator_id}")
        if found.signing_domain != EMBEDDED:
            self._say(f"settles on chain {greeting.domain.chain_id}, court {greeting.domain.contract}")
        self._say(f"log key {found.log_key}")
        self._say("  so it says itself: compare that with what its operator publishes. From now on it is held to it.")
        return found

    async def _ask_trainer(self, config: NodeConfig, client: HttpClient) -> NodeId:
        wanted = RecordsWanted(seen=0, wait_ms=0)
        answer = await client.call(config.server, RECORDS, wanted, run=config.run_id)
        return answer.message.trainer

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """Until it is answered, or we are stopped. A first start gives up where trying again is of no use."""
        wait_ms = ASK_MS
        while not self._stop.is_set():
            try:
                return await question()
            except (LocalError, RemoteError) as error:
                problem = explain(error, self._clock.now_ms())
                if self._is_first and not may_pass(error):
                    raise LocalError(problem) from None
                self._note(problem)
            await self._wait(wait_ms)
            wait_ms = min(ASK_MS_MAX, 2 * wait_ms)
        return None

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot join yet: %s", problem)
            self._say(f"not joined yet, trying again until it works: {problem}")
        self.problem = problem

    async def _wait(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._stop.wait()
        except TimeoutError:
            pass
