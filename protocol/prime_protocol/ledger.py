"""The books as a pure function of the log: who may write which entry, and the fold that applies them in order.

`Ledger.apply` takes one leaf, as anybody reads it from a mirror, and either changes the state or refuses the leaf and
changes nothing. It trusts nobody: signatures, authors, order and every rule are checked again for each leaf.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

from prime_protocol import accounts, entries, judgement, rewards, work
from prime_protocol.codec import decode, encode
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.digests import hash_bytes
from prime_protocol.entries import Entry, Record
from prime_protocol.envelope import Letter, check_time, open_envelope
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NetworkId, NodeId
from prime_protocol.merkle import leaf_hash
from prime_protocol.state import State
from prime_protocol.turn import Turn


class Author(Enum):
    """Who may write an entry. Where it is ANYONE, the rule itself says whose word counts."""

    COORDINATOR = "coordinator"
    ANYONE = "anyone"


class Scope(Enum):
    """Whether an entry names a run."""

    NETWORK = "network"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one type of entry is applied."""

    author: Author
    scope: Scope
    apply: Callable[[State, Turn, Any], None]


RULES: dict[type, Rule] = {
    entries.NetworkCreated: Rule(Author.ANYONE, Scope.NETWORK, accounts.create_network),
    entries.Deposited: Rule(Author.COORDINATOR, Scope.NETWORK, accounts.deposit),
    entries.Withdrawn: Rule(Author.ANYONE, Scope.NETWORK, accounts.withdraw),
    entries.NodeRegistered: Rule(Author.ANYONE, Scope.NETWORK, accounts.register_node),
    entries.NodeStatusSet: Rule(Author.COORDINATOR, Scope.NETWORK, accounts.set_node_status),
    entries.Delegated: Rule(Author.ANYONE, Scope.NETWORK, accounts.delegate),
    entries.DelegationRevoked: Rule(Author.ANYONE, Scope.NETWORK, accounts.revoke_delegation),
    entries.Staked: Rule(Author.ANYONE, Scope.NETWORK, accounts.stake),
    entries.Unbonded: Rule(Author.ANYONE, Scope.NETWORK, accounts.unbond),
    entries.Released: Rule(Author.ANYONE, Scope.NETWORK, accounts.release),
    entries.HeadNoted: Rule(Author.COORDINATOR, Scope.NETWORK, accounts.note_head),
    entries.RunCreated: Rule(Author.COORDINATOR, Scope.RUN, work.create_run),
    entries.RunUpdated: Rule(Author.COORDINATOR, Scope.RUN, work.update_run),
    entries.RunStatusSet: Rule(Author.COORDINATOR, Scope.RUN, work.set_run_status),
    entries.RunFunded: Rule(Author.ANYONE, Scope.RUN, rewards.fund_run),
    entries.PoolReturned: Rule(Author.ANYONE, Scope.RUN, rewards.return_pool),
    entries.CheckpointPublished: Rule(Author.ANYONE, Scope.RUN, work.publish_checkpoint),
    entries.StepMeasured: Rule(Author.ANYONE, Scope.RUN, work.measure_step),
    entries.LeaseGranted: Rule(Author.COORDINATOR, Scope.RUN, work.grant_lease),
    entries.LeaseEnded: Rule(Author.ANYONE, Scope.RUN, work.end_lease),
    entries.Submitted: Rule(Author.ANYONE, Scope.RUN, work.submit),
    entries.AuditDrawn: Rule(Author.COORDINATOR, Scope.RUN, judgement.draw_audit),
    entries.VerdictGiven: Rule(Author.ANYONE, Scope.RUN, judgement.give_verdict),
    entries.PlantRevealed: Rule(Author.ANYONE, Scope.RUN, judgement.reveal_plant),
    entries.Settled: Rule(Author.COORDINATOR, Scope.RUN, judgement.settle),
    entries.Credited: Rule(Author.COORDINATOR, Scope.RUN, rewards.credit),
    entries.PaidOut: Rule(Author.COORDINATOR, Scope.RUN, rewards.pay_out),
    entries.ValidatorScored: Rule(Author.COORDINATOR, Scope.RUN, judgement.score_validator),
    entries.Inspected: Rule(Author.ANYONE, Scope.RUN, judgement.inspect),
    entries.SlashProposed: Rule(Author.COORDINATOR, Scope.RUN, judgement.propose_slash),
    entries.Appealed: Rule(Author.ANYONE, Scope.RUN, judgement.appeal),
    entries.SlashExecuted: Rule(Author.COORDINATOR, Scope.RUN, judgement.execute_slash),
    entries.SlashOverturned: Rule(Author.COORDINATOR, Scope.RUN, judgement.overturn_slash),
}
ENTRY_TYPES: dict[str, type] = {kind.__name__: kind for kind in RULES}
assert set(RULES) == set(get_args(Entry)), "every entry has a rule"


class Ledger:
    """The state after the entries so far, and the one way to add another."""

    def __init__(self, network: NetworkId) -> None:
        self.network = network
        self.state = State()

    def apply(self, leaf: bytes) -> Entry:
        """Check a leaf as a stranger would, and fold it in."""
        record = decode(Record, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        envelope = open_envelope(record.frame, network=self.network, version_min=0)
        return self._fold(leaf, record.at_ms, envelope.letter)

    def append(self, letter: Letter, record: Record) -> bytes:
        """Fold in an envelope that this process has opened itself; its signature is not checked twice."""
        leaf = encode(record)
        if len(leaf) > LOG_ENTRY_BYTES_MAX:
            raise RemoteError("Record", f"is {len(leaf)} bytes, the limit is {LOG_ENTRY_BYTES_MAX}")
        self._fold(leaf, record.at_ms, letter)
        return leaf

    def restore(self, leaf: bytes) -> Entry:
        """Fold in a leaf that this party has applied before and covered with a head of its own.

        Every rule is checked again, but no signature. For a restart; whoever reads another's log uses `apply`.
        """
        record = decode(Record, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        return self._fold(leaf, record.at_ms, decode(Letter, record.frame[SIGNATURE_BYTES:]), is_signed=True)

    def _fold(self, leaf: bytes, at_ms: int, letter: Letter, *, is_signed: bool = False) -> Entry:
        state = self.state
        kind = ENTRY_TYPES.get(letter.kind)
        if kind is None:
            raise RemoteError("Letter.kind", f"{letter.kind} is no entry of the log")
        entry: Entry = decode(kind, letter.body)
        rule = RULES[kind]
        self._check_turn(letter, at_ms, rule)
        turn = Turn(
            network=self.network,
            run=letter.run,
            author=letter.sender,
            at_ms=at_ms,
            index=state.size,
            version=letter.version,
            body=hash_bytes(letter.body),
            is_signed=is_signed,
        )
        rule.apply(state, turn, entry)
        state.sequences[letter.sender] = letter.sequence
        state.at_ms = at_ms
        state.frontier = state.frontier.append(leaf_hash(leaf))
        return entry

    def _check_turn(self, letter: Letter, at_ms: int, rule: Rule) -> None:
        """Order, time, scope and author: what every entry has to keep."""
        state = self.state
        if at_ms < state.at_ms:
            raise RemoteError("Record.at_ms", f"is {state.at_ms - at_ms} ms before the entry before it")
        check_time(letter, at_ms)
        if letter.sequence <= state.sequences.get(letter.sender, -1):
            raise RemoteError("Letter.sequence", f"{letter.sequence} is not above the last of {letter.sender}")
        if (letter.run is None) != (rule.scope is Scope.NETWORK):
            raise RemoteError("Letter.run", f"is {letter.run}, but {letter.kind} is about the {rule.scope.value}")
        if state.coordinator is None and rule.apply is not accounts.create_network:
            raise RemoteError("Letter.kind", f"is {letter.kind}, but the first entry must be NetworkCreated")
        if rule.author is Author.COORDINATOR and letter.sender != state.coordinator:
            raise RemoteError("Letter.sender", f"is {letter.sender}, only {state.coordinator} may write {letter.kind}")


def replay(network: NetworkId, leaves: Iterable[bytes], *, coordinator: NodeId | None = None) -> Ledger:
    """Fold a whole log. With `coordinator`, refuse a log that another key has started."""
    ledger = Ledger(network)
    for index, leaf in enumerate(leaves):
        try:
            ledger.apply(leaf)
        except RemoteError as error:
            raise RemoteError(f"entry {index}: {error.field}", error.problem) from None
        if coordinator not in (None, ledger.state.coordinator):
            raise RemoteError("entry 0: Letter.sender", f"is {ledger.state.coordinator}, expected {coordinator}")
    return ledger
