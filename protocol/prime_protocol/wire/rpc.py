"""A request and its reply: how they are bound to each other, and what a refusal says.

A request is an envelope of the endpoint's kind. Its reply is an envelope of kind `<kind>.reply` or `<kind>.refusal`,
whose body names the digest of the request's frame. So a reply answers one request, and a node can prove what it was
told. Transport is in prime_runtime.http.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

from prime_protocol.constants import KIND_CHARS_MAX, PROBLEM_CHARS_MAX, REPLY_LIFE_MS
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Size, decode, encode_flat
from prime_protocol.wire.envelope import Uint, open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey

Q = TypeVar("Q")
R = TypeVar("R")

REPLY_SUFFIX = ".reply"
REFUSAL_SUFFIX = ".refusal"


class RefusalCode(StrEnum):
    """Why a request was refused. Each reason has one HTTP status; see docs/protocol/http.md."""

    MALFORMED = "malformed"
    UNAUTHENTIC = "unauthentic"
    CLOCK = "clock"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"
    SLOW = "slow"
    CONFLICT = "conflict"
    REPLAYED = "replayed"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    INTERNAL = "internal"
    OVERLOADED = "overloaded"
    RESTARTED = "restarted"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request was refused, for its sender."""

    code: RefusalCode
    field: Annotated[str, Size(0, PROBLEM_CHARS_MAX)]
    """Path of the offending value, empty where there is none."""
    problem: Annotated[str, Size(1, PROBLEM_CHARS_MAX)]
    retry_after_ms: Uint
    """When to try again; 0 if unknown."""
    now_ms: Uint
    """The server's clock, so that the sender can see how far its own is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyBody:
    """The body of every reply."""

    request: Digest
    """SHA-256 of the request's frame."""
    body: bytes
    """Canonical encoding of the reply message, or of a Refusal."""


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, R]):
    """One kind of request: the message, and the message that answers it. The same value serves client and server."""

    kind: str
    request: type[Q]
    reply: type[R]
    is_idempotent: bool = False
    """Idempotent: a client may repeat it if it does not know whether it was executed."""

    def __post_init__(self) -> None:
        assert len(self.kind) + len(REFUSAL_SUFFIX) <= KIND_CHARS_MAX, f"the kind {self.kind} is too long"

    @property
    def path(self) -> str:
        """A path serves one kind only, so an envelope caught on one route is of no use on another."""
        return f"/api/{self.kind}"


def seal_reply(
    key: WalletKey,
    *,
    kind: str,
    body: bytes,
    request: Digest,
    network: NetworkId,
    run: RunId | None,
    sequence: int,
    now_ms: int,
) -> bytes:
    """The frame of a reply, whose body is a ReplyTo; `kind` is the whole kind, suffix included."""
    return seal_envelope(
        key,
        kind=kind,
        body=encode_flat({"body": body, "request": request}),
        network=network,
        run=run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=REPLY_LIFE_MS,
    )


class UnexpectedServer(RemoteError):
    """A reply is valid, but by another key than the server's. The client asks whether the server's key was rotated."""

    def __init__(self, signer: NodeId, server: NodeId) -> None:
        super().__init__("Payload.sender", f"is {signer}, expected the server {server}")
        self.signer = signer


def open_reply(frame: bytes, *, kind: str, request: Digest, server: NodeId, network: NetworkId) -> bytes:
    """The body of a reply by this server to this request, or RemoteError."""
    return open_versioned_reply(frame, kind=kind, request=request, server=server, network=network)[1]


def open_versioned_reply(
    frame: bytes, *, kind: str, request: Digest, server: NodeId, network: NetworkId
) -> tuple[int, bytes]:
    """The version that the server wrote with, and the body. RemoteError: it is no reply by this server to this request.

    The time is not checked: the request's digest is fresh, so nothing old can carry it, and a client whose clock is
    wrong must still be able to read that it is wrong.
    """
    payload = open_envelope(frame, network=network).payload
    if payload.kind != kind:
        raise RemoteError("Payload.kind", f"is {payload.kind}, expected {kind}")
    reply = decode(ReplyBody, payload.body)
    if reply.request != request:
        raise RemoteError("ReplyBody.request", "names another request")
    if payload.sender != server:
        raise UnexpectedServer(payload.sender, server)
    return payload.version, reply.body
