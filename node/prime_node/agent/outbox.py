"""The queue of entries that this node sends to the log, and the entries about itself: registration and stake. Pure.

The log limits how often a key may write about itself. An entry that has to wait for that is held back, and the others
pass it: work goes on, under the old registration where there is one.

Entries are sent one at a time, in order, each until it is answered: the log takes an author's entries only with rising
sequence numbers, so that of two in flight the later could overtake the earlier, which would then be refused.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from prime_node.agent.events import PendingEntry
from prime_protocol.ledger.entries import Delegated, NodeRegistered, Role, Staked
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain

BACKOFF_MS = 1_000
BACKOFF_MS_MAX = 30_000
"""Between two attempts, doubling. A coordinator that restarts is back within seconds; one that is down must not be
flooded when it returns."""

TRANSIENT_CODES = frozenset(
    {
        RefusalCode.SLOW,
        RefusalCode.RATE_LIMITED,
        RefusalCode.INTERNAL,
        RefusalCode.OVERLOADED,
        RefusalCode.RESTARTED,
        RefusalCode.TIMED_OUT,
        RefusalCode.REPLAYED,
        RefusalCode.CLOCK,
    }
)
"""Refusals that say nothing about the request itself: in a new envelope it may pass."""

STALE_FIELDS = frozenset({"Payload.sequence", "Payload.expires_at_ms", "Payload.issued_at_ms"})
"""The envelope came too late or out of order; its content was not examined."""


def is_final(refusal: Refusal) -> bool:
    """Whether sending it again would get the same answer."""
    return refusal.code not in TRANSIENT_CODES and refusal.field not in STALE_FIELDS


def backoff_ms(attempts: int, rng: Random) -> int:
    """Half fixed, half random, so that nodes that failed together do not retry together."""
    span_ms = min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(attempts, 10))
    return int(span_ms * (0.5 + 0.5 * rng.random()))


class Outbox:
    """First in, first out, but for entries that are held back."""

    def __init__(self, entries: Iterable[PendingEntry] = ()) -> None:
        self._entries = deque(entries)
        self._held: list[tuple[int, PendingEntry]] = []
        """Entries that a limit refuses for long, and when each may be sent again."""
        self._attempts = 0
        self.due_ms = 0
        """When the first entry may be sent; meaningless while it is in flight."""

    def __len__(self) -> int:
        """Without what is held back: a node that stops does not wait for that."""
        return len(self._entries)

    def list_entries(self) -> tuple[PendingEntry, ...]:
        return (*self._entries, *(entry for _, entry in self._held))

    def list_held(self) -> tuple[tuple[int, PendingEntry], ...]:
        return tuple(self._held)

    def release_held(self, now_ms: int) -> None:
        """Queue again what may be sent now."""
        self._entries.extend(entry for due_ms, entry in self._held if due_ms <= now_ms)
        self._held = [(due_ms, entry) for due_ms, entry in self._held if due_ms > now_ms]

    def push(self, entry: PendingEntry) -> None:
        self._entries.append(entry)

    def drop_stale(self, server_ms: int) -> list[PendingEntry]:
        """Removes expired entries from the front. Not while the first is in flight."""
        stale = []
        while self._entries and server_ms > self._entries[0].until_ms:
            stale.append(self.pop())
        return stale

    def first(self) -> PendingEntry:
        return self._entries[0]

    def pop(self) -> PendingEntry:
        """The first entry was answered."""
        self._attempts = 0
        self.due_ms = 0
        return self._entries.popleft()

    def schedule_retry(self, now_ms: int, rng: Random, retry_after_ms: int = 0) -> None:
        """The first entry has to be sent again; after a long wait the others go first."""
        if retry_after_ms > BACKOFF_MS_MAX:
            entry = self.pop()
            due_ms = now_ms + retry_after_ms + backoff_ms(0, rng)
            # The time for which it is held back does not count.
            self._held.append((due_ms, replace(entry, until_ms=entry.until_ms + retry_after_ms)))
            return
        self.due_ms = now_ms + retry_after_ms + backoff_ms(self._attempts, rng)
        self._attempts += 1


REGISTRATION_TTL_MS = 3_600_000
"""How long the node tries to send an entry about itself."""

STAKE_RETRY_MS = 30_000
"""Between two attempts to stake: the deposit may arrive after the node has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """Who this node is, and what its owner has configured."""

    network: NetworkId
    run: RunId
    roles: tuple[Role, ...]
    runs_audited: tuple[RunId, ...] = ()
    """Sorted: the runs that a validator registers for. Empty: its own run alone."""
    hardware: str = ""
    addresses: tuple[str, ...] = ()
    """Where others fetch weights from this node; empty: outbound only."""
    delegation: Delegated | None = None
    stake_nano: int = 0
    """What the node stakes from its own balance; 0 where its owner stakes."""
    tokens_per_s: int = 1
    """As measured on this machine."""
    audits_at_once: int = 1
    registers: bool = True
    """False for all but one agent of a node with several runs: entries about the node itself are not the run's."""
    domain: Domain = EMBEDDED_DOMAIN
    witness_key: bytes = b""
    """Public key with which this node cosigns tree heads as a validator."""


class Membership:
    """Registration and stake of one node. The log is the authority; a changed registration is sent again."""

    def __init__(self, node: NodeId, profile: NodeProfile) -> None:
        self._node = node
        self._delegation = profile.delegation
        self._stake_nano = profile.stake_nano
        self._stake_ms = 0
        is_validator = Role.VALIDATOR in profile.roles
        self.registration = NodeRegistered(
            roles=profile.roles,
            hardware=profile.hardware,
            addresses=profile.addresses,
            runs=(profile.runs_audited or (profile.run,)) if is_validator else (),
            witness_key=profile.witness_key if is_validator else b"",
        )
        self.registered: NodeRegistered | None = None
        """The registration that the log has, as far as this node knows."""
        self.is_known = False
        """The coordinator has answered a heartbeat."""
        self.is_staked = profile.stake_nano == 0

    def restore(self, registered: NodeRegistered | None, is_staked: bool) -> None:
        self.registered = registered
        self.is_staked = self.is_staked or is_staked

    @property
    def is_outdated(self) -> bool:
        """The log has another registration than this node now offers."""
        return self.registered not in (None, self.registration)

    def set_missing_stake(self, amount_nano: int) -> None:
        """The run requires this much more stake; 0: no more."""
        self._stake_nano = amount_nano
        self.is_staked = amount_nano == 0

    def make_registration(self, waiting: tuple[PendingEntry, ...], until_ms: int) -> list[PendingEntry]:
        """Entries that register this node; none while such an entry is pending."""
        self.is_known = False
        if any(isinstance(entry.entry, NodeRegistered) for entry in waiting):
            return []
        entries = [self.registration] if self._delegation is None else [self.registration, self._delegation]
        return [PendingEntry(entry, None, until_ms) for entry in entries]

    def make_stake(self, waiting: tuple[PendingEntry, ...], now_ms: int, until_ms: int) -> list[PendingEntry]:
        """The entry that stakes, where one is due."""
        if self.is_staked or not self.is_known or now_ms < self._stake_ms:
            return []
        self._stake_ms = now_ms + STAKE_RETRY_MS
        if any(isinstance(entry.entry, Staked) for entry in waiting):
            return []
        return [PendingEntry(Staked(node=self._node, amount_nano=self._stake_nano), None, until_ms)]
