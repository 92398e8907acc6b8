"""Settlement: how value comes into the books and leaves them. One interface; what is outside is an implementation's.

The books themselves are in the log, whatever settles them. A deposit counts once by its reference, so telling one twice
is no harm.
"""

from typing import Any, Protocol

from prime_protocol.entries import Appealed, Deposited, NodeStatusSet
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.state import State

Order = Deposited | NodeStatusSet
"""What settlement has the coordinator write."""


class Settlement(Protocol):
    """What the server asks of it."""

    def welcome(self, state: State, node: NodeId) -> list[Deposited]:
        """What a node that has just registered is to be given."""
        ...

    async def collect(self, state: State) -> list[Order]:
        """What happened outside and does not stand in the books yet. It never waits for the outside."""
        ...

    def appeals(self, state: State) -> list[tuple[RunId, Appealed]]:
        """Appeals that were made outside and that the log has not heard of."""
        ...

    def is_appealable(self, submission: Digest) -> bool:
        """Whether an appeal against a slash may still come from outside: the log must not end it before."""
        ...

    async def run(self, books: Any) -> None:
        """As long as the coordinator: whatever has to be done outside. `books` is a ledger_view.Books."""
        ...

    async def close(self) -> None:
        """The coordinator ends."""
        ...

    def hasten(self) -> None:
        """Bring the books outside as soon as can be, if they are brought there at all."""
        ...

    def describe(self) -> dict[str, Any]:
        """For people and their programs: where value is kept, and how far the books have been brought there."""
        ...
