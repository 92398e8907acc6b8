"""Settlement: how value comes into the books and leaves them. One interface; what is outside is an implementation's.

The books themselves are in the log, whatever settles them. A deposit counts once by its reference, so telling one twice
is no harm.
"""

from typing import Protocol

from prime_protocol.entries import Deposited
from prime_protocol.ids import NodeId
from prime_protocol.state import State


class Settlement(Protocol):
    """What the server asks of it."""

    def welcome(self, state: State, node: NodeId) -> list[Deposited]:
        """What a node that has just registered is to be given."""
        ...

    async def collect(self, state: State) -> list[Deposited]:
        """What came in from outside and does not stand in the books yet."""
        ...
