"""Asking others whether they can connect to us: the request, and what is answered. Pure values.

A node asks a server to connect to one of its URLs. The server connects only to the address from which the request came,
so nobody can be made to connect to a third party. It fetches `/reached/<proof>` there. Only the node knows the bytes
whose SHA-256 is the proof: with them a server shows that it was this node that it reached. The node in turn believes no
answer: what counts is that the request for its proof arrived.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.constants import ADDRESS_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.codec import Size
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.rpc import Endpoint

REACHED_PATH = "/reached"
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DialBack:
    """Node: try to connect to me here."""

    url: Annotated[str, Size(1, ADDRESS_CHARS_MAX)]
    proof: Digest
    """SHA-256 of the secret that the node answers with."""

    def __post_init__(self) -> None:
        try:
            ServerUrl.parse(self.url)
        except RemoteError as error:
            raise RemoteError("url", error.problem) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DialBackReply:
    """What became of it."""

    address: Annotated[str, Size(1, ADDRESS_CHARS_MAX)]
    """From where the request came, as the server sees it."""
    is_reached: bool
    problem: Annotated[str, Size(0, 200)]
    """Why not; empty if it was reached."""


DIAL_BACK = Endpoint("dial-back", DialBack, DialBackReply)
