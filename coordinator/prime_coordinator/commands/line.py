"""The line from a command to the running coordinator: signed with the key in its folder, and only it can answer."""

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

from prime_coordinator.commands.context import Context, NotReached
from prime_coordinator.home import load_key, read_lock
from prime_coordinator.operator import ASK, HASTEN, ORDER_ENDPOINTS, Asked, Given, Hasten, Hastened
from prime_protocol.errors import LocalError
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.messages import Logged
from prime_protocol.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http_client import Server, open_client
from prime_runtime.http_errors import Refused, Unreachable
from prime_runtime.http_limits import ClientLimits

LIMITS = ClientLimits(deadline_ms=30_000, attempts_max=2)
ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}
"""A coordinator that listens everywhere is called on this machine."""


class Line:
    """Calls to one coordinator."""

    def __init__(self, context: Context) -> None:
        config = context.with_password(context.load_config())
        self._url = context.args.url or find_url(context)
        self._authority = context.args.authority
        self._network: NetworkId = config.network_id
        self._key: WalletKey = load_key(config)
        self._folder = context.folder

    @property
    def coordinator(self) -> NodeId:
        return self._key.node

    def ask(self, question: str, given: Mapping[str, str]) -> Any:
        """The answer to a question of questions.py, as JSON."""
        params = tuple(Given(name=name, value=value) for name, value in given.items())
        told = self._call(ASK, Asked(question=question, given=params), None)
        return json.loads(told.body)

    def order(self, entry: Any, run: RunId | None) -> Logged:
        """Have an entry written to the log."""
        logged: Logged = self._call(ORDER_ENDPOINTS[type(entry)], entry, run)
        return logged

    def hasten(self) -> Hastened:
        """Have the log's head brought to the chain at once."""
        hastened: Hastened = self._call(HASTEN, Hasten(), None)
        return hastened

    def _call(self, endpoint: Any, message: Any, run: RunId | None) -> Any:
        async def call() -> Any:
            async with open_client(
                key=self._key,
                network=self._network,
                clock=SystemClock(),
                dice=random.Random(),
                limits=LIMITS,
                authority=self._authority,
            ) as client:
                answer = await client.call(Server(self._url, self._key.node), endpoint, message, run=run)
                return answer.message

        try:
            return asyncio.run(call())
        except Unreachable as error:
            raise NotReached(f"{error}. Its folder is {self._folder}") from None
        except Refused as error:
            refusal = error.refusal
            raise LocalError(f"refused: {refusal.field} {refusal.problem}".replace("  ", " ")) from None


def find_url(context: Context) -> str:
    """Where the coordinator of this folder listens, by its lock file."""
    url = read_lock(context.folder).get("url")
    if not isinstance(url, str):
        raise NotReached(
            f"the coordinator in {context.folder} is not running;"
            f" start it with: prime-coordinator start --folder {context.folder}"
        )
    scheme, _, place = url.partition("://")
    host, _, port = place.rpartition(":")
    return f"{scheme}://{ANY_HOST.get(host, host)}:{port}"
