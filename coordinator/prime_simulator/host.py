"""The coordinator as a machine: the real Core, a disk of committed leaves, group commits, and crashes at any point.

The rim's duties are kept as the server keeps them: a caller is answered after the entries that its answer rests on are
on disk, and never if they did not get there. After a crash everything is made anew from the leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.core import Core
from prime_coordinator.plants import Plants
from prime_node.events import Event, Refused, ReplyReceived
from prime_protocol.codec import decode
from prime_protocol.entries import Submitted
from prime_protocol.envelope import Letter, ReplayGuard, open_envelope
from prime_protocol.errors import RemoteError
from prime_protocol.exchange import Refusal, RefusalCode
from prime_protocol.ids import Digest, NetworkId, RunId
from prime_protocol.ledger import Ledger
from prime_protocol.merkle import Frontier, leaf_hash
from prime_protocol.messages import AUTHORED, Heartbeat, LeaseRequest
from prime_protocol.note import VerifierKey
from prime_protocol.signing import WalletKey
from prime_protocol.treehead import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_simulator.chronicle import Chronicle
from prime_simulator.files import FileStore, check_file

HEAD_MS = 1_000
"""Least time between two signed heads."""

KINDS: dict[str, type] = {kind.__name__: kind for kind in AUTHORED}
GUARD_CODES = {
    "Letter.sequence": RefusalCode.REPLAYED,
    "Letter.issued_at_ms": RefusalCode.RESTARTED,
    "Letter.sender": RefusalCode.RATE_LIMITED,
}


@dataclass(slots=True)
class Packet:
    """A request on the wire. An entry has its sealed frame; a letter that the frame would give spares opening it."""

    letter: Letter | None
    message: Any
    frame: bytes | None
    address_group: str


@dataclass(slots=True)
class Call:
    """A request that arrived, and how to answer it."""

    packet: Packet
    request: int
    answer: Callable[[Event], None]
    drop: Callable[[], None]
    """No answer will come."""


class Host:
    """One coordinator process after the other, on one disk."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        run: RunId,
        files: FileStore,
        dice: Random,
        *,
        opens_all: bool,
        inspect_share: int = 0,
    ) -> None:
        self.key = key
        self.network = network
        self.run = run
        self._files = files
        self._dice = dice
        self._opens_all = opens_all
        """Open also the frames that were sealed in this process a moment ago."""
        self._inspect_share = inspect_share
        self.log_key = Ed25519PrivateKey.from_private_bytes(sha256(b"log key").digest())
        self.origin = ORIGIN_PREFIX + network
        self.verifier = VerifierKey.of(self.origin, self.log_key)
        self.plants = Plants.of(key)
        self.disk: list[bytes] = []
        self.chronicle = Chronicle()
        self._frontier = Frontier()
        self.core: Core | None = None
        self._head = b""
        self._head_size = 0
        self._head_ms = -HEAD_MS
        self._fresh: list[bytes] = []
        self._waiting: list[tuple[Call, Event]] = []
        self._batch: tuple[list[bytes], list[tuple[Call, Event]]] | None = None
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
        self.core = Core(self.key, ledger, now_ms=now_ms, plants=self.plants, inspect_share=self._inspect_share)
        self.core.head, self.core.head_size = self._head, self._head_size
        self._guard = ReplayGuard(since_ms=now_ms)

    def crash(self) -> None:
        """Everything but the disk is gone. A batch that was being written is there whole, or not at all."""
        waiting, self._waiting = self._waiting, []
        self.core = None
        self._fresh = []
        if self._batch is not None:
            leaves, callers = self._batch
            self._batch = None
            if self._dice.random() < 0.5:
                self._commit(leaves)
            waiting += callers
        for call, _ in waiting:
            call.drop()

    # --- Requests ---------------------------------------------------------------------------------------------------

    def receive(self, call: Call, now_ms: int) -> None:
        if self.core is None:
            call.drop()
            return
        self._finish(call, self._handle(self.core, call, now_ms))

    def _handle(self, core: Core, call: Call, now_ms: int) -> Event:
        try:
            letter, message = self._open(call.packet)
        except RemoteError as error:
            return refused(call.request, RefusalCode.MALFORMED, error, now_ms)
        try:
            self._guard.admit(letter, now_ms)
        except RemoteError as error:
            return refused(call.request, GUARD_CODES.get(error.field, RefusalCode.CLOCK), error, now_ms)
        try:
            return ReplyReceived(call.request, self._decide(core, letter, message, call.packet, now_ms))
        except RemoteError as error:
            return refused(call.request, RefusalCode.MALFORMED, error, now_ms)

    def _open(self, packet: Packet) -> tuple[Letter, Any]:
        if packet.frame is None or (packet.letter is not None and not self._opens_all):
            assert packet.letter is not None
            return packet.letter, packet.message
        letter = open_envelope(packet.frame, network=self.network).letter
        kind = {"heartbeat": Heartbeat, "lease": LeaseRequest, **KINDS}.get(letter.kind)
        if kind is None:
            raise RemoteError("Letter.kind", f"{letter.kind} has no endpoint")
        return letter, decode(kind, letter.body)

    def _decide(self, core: Core, letter: Letter, message: Any, packet: Packet, now_ms: int) -> Any:
        if isinstance(message, Heartbeat):
            return core.beat(letter.sender, self.run, message, now_ms)
        if isinstance(message, LeaseRequest):
            return core.request_lease(letter.sender, self.run, message, now_ms)
        if letter.kind not in KINDS:
            raise RemoteError("Letter.kind", f"{letter.kind} has no endpoint")
        if isinstance(message, Submitted):
            self._take_in(core, letter, message, now_ms)
        assert packet.frame is not None
        return core.take(letter, message, packet.frame, address_group=packet.address_group, now_ms=now_ms)

    def _take_in(self, core: Core, letter: Letter, entry: Submitted, now_ms: int) -> None:
        """The file, before its entry; what is in the log already is not read again."""
        if core.repeated(letter, entry) is not None:
            return
        expected = core.expect_file(letter.sender, self.run, entry, now_ms)
        try:
            check_file(self._files.get(entry.receipt.file_digest), entry, expected)
        except RemoteError:
            core.file_refused(letter.sender, self.run, entry.receipt.lease, now_ms)
            raise

    def tick(self, now_ms: int) -> None:
        if self.core is not None:
            self.core.tick(now_ms)
            self.collect()

    # --- The disk ---------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take over what the core has decided."""
        if self.core is not None:
            self._fresh += self.core.scribe.drain()

    def _finish(self, call: Call, event: Event) -> None:
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
            self._frontier = self._frontier.append(leaf_hash(leaf))
            self.chronicle.read(leaf)

    def root(self) -> Digest:
        """Of the log on disk."""
        return self._frontier.root()

    def _sign_head(self, now_ms: int) -> None:
        if now_ms - self._head_ms < HEAD_MS or self._frontier.size == self._head_size or self.core is None:
            return
        self._head_ms, self._head_size = now_ms, self._frontier.size
        head = TreeHead(self.origin, self._frontier.size, self._frontier.root())
        self._head = sign_tree_head(head, self.log_key)
        self.core.head, self.core.head_size = self._head, self._head_size


def refused(request: int, code: RefusalCode, error: RemoteError, now_ms: int) -> Refused:
    refusal = Refusal(code=code, field=error.field[:500], problem=error.problem[:500], retry_after_ms=0, now_ms=now_ms)
    return Refused(request, refusal)
