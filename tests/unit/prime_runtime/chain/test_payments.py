"""A payment that was made is awaited in the log, also by a coordinator that is not ready yet."""

from typing import Any, cast

from prime_protocol.wire.ids import Digest
from prime_runtime.chain.payments import wait_until_logged
from prime_runtime.clock import SystemClock
from prime_runtime.http.coordinator_api import JsonClient, NotReady


class Starting:
    """Its index is being built, then does not have the entry, then does."""

    def __init__(self) -> None:
        self.answers: list[Any] = [NotReady("the log is being read"), [], [{"idx": 7}]]

    async def get(self, path: str, **query: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"entries": {"rows": answer}}


async def test_a_payment_is_awaited_while_the_index_is_being_built() -> None:
    client = Starting()
    assert await wait_until_logged(cast(JsonClient, client), Digest(bytes(32)), SystemClock()) == 7
    assert not client.answers
