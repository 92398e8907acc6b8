"""The coordinator as a machine: the real Core, a disk of committed leaves, group commits, and crashes at any point.

It keeps the server's rules: a caller is answered after the entries that the answer depends on are on disk, and never if
they did not get there. After a crash all state is rebuilt from the leaves. Rollout files are fake: they hold what the
intake can see of one, and the truth that only an audit can find.

"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.core import Core
from prime_coordinator.intake.checks import ExpectedSubmission
from prime_lab.simulator.log_history import LogHistory
from prime_node.agent.events import Event, ReplyReceived, SendRefused
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.ledger.randomness_chain import make_own_chain, sign_round
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from prime_protocol.rollouts.rollout import RolloutHeader
from prime_protocol.rollouts.verify import verify_header
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload, ReplayGuard, open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.messages import AUTHORED_ENTRIES, Heartbeat, LeaseRequest
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.signing import WalletKey

HONEST = ""
FORGERY_KINDS = ("cheaper model", "best of many", "edited answer", "older weights", "cut short", "forged proof")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeFile:
    """A file without rows."""

    run: RunId
    step: Step
    lease: int
    node: NodeId
    checkpoint_root: Digest
    first_slot: int
    slots: int
    output_tokens: int
    context_tokens: int
    forgery: str = HONEST
    """What an audit finds in it; no cheap check does."""
    salt: int = 0

    @property
    def digest(self) -> Digest:
        return Digest(sha256(repr(self).encode()).digest())

    @property
    def rollout_root(self) -> Digest:
        return Digest(sha256(b"rows" + self.digest).digest())

    @property
    def size_bytes(self) -> int:
        return 16 * self.output_tokens

    def header(self) -> RolloutHeader:
        return RolloutHeader(
            run=self.run, step=self.step, checkpoint_root=self.checkpoint_root, lease=self.lease, node=self.node
        )


class FakeFileStore:
    """Every file, by digest."""

    def __init__(self) -> None:
        self._files: dict[Digest, FakeFile] = {}

    def add(self, file: FakeFile) -> Digest:
        digest = file.digest
        self._files[digest] = file
        return digest

    def get(self, digest: Digest) -> FakeFile | None:
        return self._files.get(digest)


def verify_fake_file(file: FakeFile | None, entry: Submitted, expected: ExpectedSubmission) -> None:
    """The cheap checks, in the order of the coordinator's intake."""
    if file is None or file.size_bytes != entry.file_bytes:
        raise RemoteError("receipt.file_digest", "the file has another digest or size")
    verify_header(file.header(), expected.header)
    if (file.first_slot, file.slots) != (expected.limits.first_slot, expected.limits.slots):
        raise RemoteError("rows", "are not those of the lease")
    if file.rollout_root != entry.receipt.rollout_root:
        raise RemoteError("receipt.rollout_root", "the rows have another root")
    if (file.output_tokens, file.context_tokens) != (entry.output_tokens, entry.context_tokens):
        raise RemoteError("output_tokens", "the file has others")


def forge_file(file: FakeFile, kind: str) -> FakeFile:
    return replace(file, forgery=kind)


CHAIN_GENESIS_S = 1_799_000_000
make_round_signature = lru_cache(maxsize=65_536)(sign_round)
"""Worlds share a clock and a chain, so they share its rounds."""

HEAD_MS = 1_000
"""Least time between two signed heads."""

ENTRY_KINDS: dict[str, type] = {kind.__name__: kind for kind in AUTHORED_ENTRIES}
REPLAY_REFUSAL_CODES = {
    "Payload.sequence": RefusalCode.REPLAYED,
    "Payload.issued_at_ms": RefusalCode.RESTARTED,
    "Payload.sender": RefusalCode.RATE_LIMITED,
}


@dataclass(slots=True)
class SimulatedPacket:
    """A request on the wire. An entry has its sealed frame; a payload that the frame would give spares opening it."""

    payload: Payload | None
    message: Any
    frame: bytes | None
    address_group: str


@dataclass(slots=True)
class PendingCall:
    """A request that arrived, and how to answer it."""

    packet: SimulatedPacket
    request: int
    answer: Callable[[Event], None]
    drop: Callable[[], None]
    """No answer will come."""


class CoordinatorHost:
    """One coordinator process after the other, on one disk."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        run: RunId,
        files: FakeFileStore,
        rng: Random,
        *,
        opens_all: bool,
        inspect_share: int = 0,
    ) -> None:
        self.key = key
        self.network = network
        self.run = run
        self._files = files
        self._rng = rng
        self._opens_all = opens_all
        """Open also the frames that were sealed in this process a moment ago."""
        self._inspect_share = inspect_share
        self.log_key = Ed25519PrivateKey.from_private_bytes(sha256(b"log key").digest())
        self.origin = ORIGIN_PREFIX + network
        self.verifier = VerifierKey.of(self.origin, self.log_key)
        self._chain_secret = sha256(b"simulator randomness").digest()
        self.chain = make_own_chain(self._chain_secret, network, genesis_s=CHAIN_GENESIS_S, period_s=3)
        self.disk: list[bytes] = []
        self.history = LogHistory()
        self._frontier = Frontier()
        self.core: Core | None = None
        self._head = b""
        self._head_size = 0
        self._head_ms = -HEAD_MS
        self._fresh: list[bytes] = []
        self._waiting: list[tuple[PendingCall, Event]] = []
        self._batch: tuple[list[bytes], list[tuple[PendingCall, Event]]] | None = None
        self._guard = ReplayGuard(since_ms=0)

    # --- Life -------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.core is not None

    def boot(self, now_ms: int) -> None:
        """Restart is replay. Envelopes were opened before they got here and are checked once more at a run's end."""
        ledger = Ledger(self.network)
        for leaf in self.disk:
            ledger.restore(leaf)
        self.core = Core(self.key, ledger, now_ms=now_ms, inspect_share=self._inspect_share)
        self.core.set_head(self._head, self._head_size)
        self._guard = ReplayGuard(since_ms=now_ms)

    def crash(self) -> None:
        """Everything but the disk is gone. A batch that was being written is there whole, or not at all."""
        waiting, self._waiting = self._waiting, []
        self.core = None
        self._fresh = []
        if self._batch is not None:
            leaves, callers = self._batch
            self._batch = None
            if self._rng.random() < 0.5:
                self._commit(leaves)
            waiting += callers
        for call, _ in waiting:
            call.drop()

    # --- Requests ---------------------------------------------------------------------------------------------------

    def receive(self, call: PendingCall, now_ms: int) -> None:
        if self.core is None:
            call.drop()
            return
        self._finish(call, self._handle(self.core, call, now_ms))

    def _handle(self, core: Core, call: PendingCall, now_ms: int) -> Event:
        try:
            payload, message = self._open(call.packet)
        except RemoteError as error:
            return make_refusal(call.request, RefusalCode.MALFORMED, error, now_ms)
        try:
            self._guard.admit(payload, now_ms)
        except RemoteError as error:
            return make_refusal(call.request, REPLAY_REFUSAL_CODES.get(error.field, RefusalCode.CLOCK), error, now_ms)
        try:
            return ReplyReceived(call.request, self._decide(core, payload, message, call.packet, now_ms))
        except RemoteError as error:
            code = RefusalCode.RATE_LIMITED if error.retry_after_ms else RefusalCode.MALFORMED
            return make_refusal(call.request, code, error, now_ms)

    def _open(self, packet: SimulatedPacket) -> tuple[Payload, Any]:
        if packet.frame is None or (packet.payload is not None and not self._opens_all):
            assert packet.payload is not None
            return packet.payload, packet.message
        payload = open_envelope(packet.frame, network=self.network).payload
        kind = {"heartbeat": Heartbeat, "lease": LeaseRequest, **ENTRY_KINDS}.get(payload.kind)
        if kind is None:
            raise RemoteError("Payload.kind", f"{payload.kind} has no endpoint")
        return payload, decode(kind, payload.body)

    def _decide(self, core: Core, payload: Payload, message: Any, packet: SimulatedPacket, now_ms: int) -> Any:
        if isinstance(message, Heartbeat):
            return core.handle_heartbeat(payload.sender, self.run, message, now_ms)
        if isinstance(message, LeaseRequest):
            return core.request_lease(payload.sender, self.run, message, now_ms)
        if payload.kind not in ENTRY_KINDS:
            raise RemoteError("Payload.kind", f"{payload.kind} has no endpoint")
        if isinstance(message, Submitted):
            self._take_in(core, payload, message, now_ms)
        assert packet.frame is not None
        return core.append_entry(payload, message, packet.frame, address_group=packet.address_group, now_ms=now_ms)

    def _take_in(self, core: Core, payload: Payload, entry: Submitted, now_ms: int) -> None:
        """The file, before its entry; what is in the log already is not read again."""
        if core.find_repeat(payload, entry) is not None:
            return
        expected = core.get_expected_submission(payload.sender, self.run, entry, now_ms)
        try:
            verify_fake_file(self._files.get(entry.receipt.file_digest), entry, expected)
        except RemoteError:
            core.record_refused_file(payload.sender, self.run, entry.receipt.lease, now_ms)
            raise

    def tick(self, now_ms: int) -> None:
        if self.core is not None:
            self.core.tick(now_ms)
            while (number := self.core.witnesses.get_wanted_round(now_ms)) is not None:
                self.core.record_round(number, self.sign_round(number), now_ms)
                self.core.tick(now_ms)
            self.collect()

    def sign_round(self, number: int) -> bytes:
        """Of the coordinator's own randomness chain."""
        return make_round_signature(self._chain_secret, number)

    # --- The disk ---------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take over what the core has decided."""
        if self.core is not None:
            self._fresh += self.core.entry_writer.drain()
            self.core.retention.drain()  # the simulated disk has no files

    def _finish(self, call: PendingCall, event: Event) -> None:
        self.collect()
        if self._fresh or self._batch is not None:
            self._waiting.append((call, event))
        else:
            call.answer(event)

    @property
    def wants_to_write(self) -> bool:
        return self._batch is None and bool(self._fresh or self._waiting)

    def begin_write(self) -> None:
        assert self._batch is None
        self._batch = (self._fresh, self._waiting)
        self._fresh, self._waiting = [], []

    def end_write(self, now_ms: int) -> None:
        """The batch is on disk; now its callers may know."""
        assert self._batch is not None
        leaves, callers = self._batch
        self._batch = None
        self._commit(leaves)
        self._sign_head(now_ms)
        for call, event in callers:
            call.answer(event)

    def flush(self, now_ms: int) -> None:
        """Write everything that is still to be written."""
        self.collect()
        while self._batch is not None or self.wants_to_write:
            if self._batch is None:
                self.begin_write()
            self.end_write(now_ms)

    def _commit(self, leaves: list[bytes]) -> None:
        for leaf in leaves:
            self.disk.append(leaf)
            self._frontier = self._frontier.append(compute_leaf_hash(leaf))
            self.history.read(leaf)

    def root(self) -> Digest:
        """Of the log on disk."""
        return self._frontier.root()

    def _sign_head(self, now_ms: int) -> None:
        """Sign the newest noted head as soon as it is on disk, else one over everything now and then."""
        if self.core is None:
            return
        noted = self.core.state.noted_heads
        size = max((size for size in noted if size <= self._frontier.size), default=0)
        if size > self._head_size:
            self._publish_head(TreeHead(self.origin, size, noted[size]))
        elif now_ms - self._head_ms >= HEAD_MS and self._frontier.size > self._head_size:
            self._head_ms = now_ms
            self._publish_head(TreeHead(self.origin, self._frontier.size, self._frontier.root()))

    def _publish_head(self, head: TreeHead) -> None:
        assert self.core is not None
        self._head, self._head_size = sign_tree_head(head, self.log_key), head.size
        self.core.set_head(self._head, self._head_size)


def make_refusal(request: int, code: RefusalCode, error: RemoteError, now_ms: int) -> SendRefused:
    refusal = Refusal(
        code=code,
        field=error.field[:500],
        problem=error.problem[:500],
        retry_after_ms=error.retry_after_ms,
        now_ms=now_ms,
    )
    return SendRefused(request, refusal)
