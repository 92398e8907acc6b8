"""The ledger state as a pure function of the log: who may write which entry, and the fold that applies them in order.

`Ledger.apply` takes one leaf, as anyone can read it from a mirror. It changes the state, or it refuses the leaf and
changes nothing. It checks signatures, authors, order and every rule for each leaf, independent of the server.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

from prime_protocol.constants import LOG_ENTRY_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import CoordinatorKeyRotated, LogKeyRotated
from prime_protocol.keys.rules import rotate_coordinator_key, rotate_log_key
from prime_protocol.ledger import accounts, audits, entries, findings, rewards, rounds, slashes, work
from prime_protocol.ledger.entries import Entry, FindingDismissed, FindingFiled, FindingUpheld, LogRecord
from prime_protocol.ledger.limits import apply_charge, compute_charge
from prime_protocol.ledger.randomness_chain import RandomnessChain, verify_round
from prime_protocol.ledger.state import EntryContext, LedgerState
from prime_protocol.ledger.versions.upgrades import check_form, decode_form
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, check_time, open_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, hash_bytes
from prime_protocol.wire.typed_data import Domain, verify_document


class EntryAuthor(Enum):
    """Who may write an entry. Where it is ANYONE, the rule itself says whose word counts."""

    COORDINATOR = "coordinator"
    ANYONE = "anyone"


class EntryScope(Enum):
    """Whether an entry names a run."""

    NETWORK = "network"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class EntryRule:
    """How one type of entry is applied."""

    author: EntryAuthor
    scope: EntryScope
    apply: Callable[[LedgerState, EntryContext, Any], None]


ENTRY_RULES: dict[type, EntryRule] = {
    entries.NetworkCreated: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.create_network),
    entries.RulesChanged: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.change_rules),
    entries.Deposited: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.deposit),
    entries.Withdrawn: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.withdraw),
    entries.NodeRegistered: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.register_node),
    entries.NodeStatusSet: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.set_node_status),
    entries.Delegated: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.delegate),
    entries.DelegationRevoked: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.revoke_delegation),
    entries.Staked: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.stake),
    entries.Unbonded: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.unbond),
    entries.Released: EntryRule(EntryAuthor.ANYONE, EntryScope.NETWORK, accounts.release),
    entries.HeadNoted: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.note_head),
    entries.SnapshotNoted: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.note_snapshot),
    entries.LogRestored: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, accounts.note_restore),
    entries.RoundRecorded: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, rounds.record_round),
    entries.RunCreated: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, work.create_run),
    entries.RunUpdated: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, work.update_run),
    entries.RunStatusSet: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, work.set_run_status),
    entries.RunFunded: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, rewards.fund_run),
    entries.PoolReturned: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, rewards.return_pool),
    entries.SubmissionsListed: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, work.list_submissions),
    entries.CheckpointPublished: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, work.publish_checkpoint),
    entries.StepMeasured: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, work.measure_step),
    entries.LeaseGranted: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, work.grant_lease),
    entries.LeaseEnded: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, work.end_lease),
    entries.Submitted: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, work.submit),
    entries.AuditDrawn: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, audits.draw_audit),
    entries.AcceptedUnaudited: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, audits.accept_unaudited),
    entries.VerdictCommitted: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, audits.commit_verdict),
    entries.VerdictGiven: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, audits.give_verdict),
    entries.Settled: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, audits.settle),
    entries.Credited: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, rewards.credit),
    entries.PaidOut: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, rewards.pay_out),
    entries.ValidatorScored: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, slashes.score_validator),
    entries.Inspected: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, slashes.record_inspection),
    entries.RulingGiven: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, slashes.give_ruling),
    entries.SlashProposed: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, slashes.propose_slash),
    entries.Appealed: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, slashes.appeal),
    entries.SlashExecuted: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, slashes.execute_slash),
    entries.SlashOverturned: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, slashes.overturn_slash),
    FindingFiled: EntryRule(EntryAuthor.ANYONE, EntryScope.RUN, findings.file_finding),
    FindingUpheld: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, findings.uphold_finding),
    FindingDismissed: EntryRule(EntryAuthor.COORDINATOR, EntryScope.RUN, findings.dismiss_finding),
    LogKeyRotated: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, rotate_log_key),
    CoordinatorKeyRotated: EntryRule(EntryAuthor.COORDINATOR, EntryScope.NETWORK, rotate_coordinator_key),
}
SIGNED_KINDS = (entries.Submitted, entries.VerdictGiven, entries.RoundRecorded)
"""Entries with a signature inside that needs no state to be verified."""
ENTRY_TYPES: dict[str, type] = {kind.__name__: kind for kind in ENTRY_RULES}
assert set(ENTRY_RULES) == set(get_args(Entry)), "every entry has a rule"


class Ledger:
    """The state after the entries so far, and the one way to add another.

    Each way refuses an invalid entry with RemoteError, and stops with UnknownRules where the log follows rules that
    this program does not know. Neither changes the state.
    """

    def __init__(self, network: NetworkId) -> None:
        self.network = network
        self.state = LedgerState()

    def apply(self, leaf: bytes) -> Entry:
        """Check a leaf as a stranger would, and fold it in."""
        record, payload = open_leaf(leaf, self.network)
        return self._apply_payload(leaf, record.at_ms, payload)

    def append(self, payload: Payload, record: LogRecord) -> bytes:
        """Fold in an envelope that this process has opened itself; its signature is not checked twice."""
        leaf = encode(record)
        if len(leaf) > LOG_ENTRY_BYTES_MAX:
            raise RemoteError("LogRecord", f"is {len(leaf)} bytes, the limit is {LOG_ENTRY_BYTES_MAX}")
        self._apply_payload(leaf, record.at_ms, payload)
        return leaf

    def restore(self, leaf: bytes) -> Entry:
        """Fold in a leaf that this party has applied before and covered with a head of its own.

        Every rule is checked again, but no signature. For a restart only; use `apply` for another party's log.
        """
        return self.apply_checked(leaf, is_cosignature_checked=True)

    def apply_checked(self, leaf: bytes, *, is_cosignature_checked: bool = False) -> Entry:
        """Fold in a leaf whose signatures `verify_leaf` has found good. Cosignatures are verified here."""
        record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        payload = decode(Payload, record.frame[SIGNATURE_BYTES:])
        return self._apply_payload(
            leaf, record.at_ms, payload, is_signed=True, is_cosignature_checked=is_cosignature_checked
        )

    def _apply_payload(
        self,
        leaf: bytes,
        at_ms: int,
        payload: Payload,
        *,
        is_signed: bool = False,
        is_cosignature_checked: bool = False,
    ) -> Entry:
        state = self.state
        rules = state.rules.check_known(at_ms=at_ms, index=state.size)
        entry = decode_entry(payload)
        rule = ENTRY_RULES[type(entry)]
        self._check_context(payload, at_ms, rule)
        check_form(type(entry), payload.version, rules)
        context = EntryContext(
            network=self.network,
            run=payload.run,
            author=payload.sender,
            at_ms=at_ms,
            index=state.size,
            version=payload.version,
            rules=rules,
            body=hash_bytes(payload.body),
            leaf_bytes=len(leaf),
            is_signature_checked=is_signed,
            is_cosignature_checked=is_cosignature_checked,
        )
        # The limits come first: they are cheaper than the signatures that some rules verify.
        charge = compute_charge(state, context, entry)
        rule.apply(state, context, entry)
        apply_charge(state, charge, at_ms)
        state.sequences[payload.sender] = payload.sequence
        state.at_ms = at_ms
        state.frontier = state.frontier.append(compute_leaf_hash(leaf))
        return entry

    def _check_context(self, payload: Payload, at_ms: int, rule: EntryRule) -> None:
        """Order, time, scope and author: what every entry has to keep."""
        state = self.state
        if at_ms < state.at_ms:
            raise RemoteError("LogRecord.at_ms", f"is {state.at_ms - at_ms} ms before the entry before it")
        if payload.sequence <= state.sequences.get(payload.sender, -1):
            raise RemoteError("Payload.sequence", f"{payload.sequence} is not above the last of {payload.sender}")
        if state.coordinator is None and rule.apply is not accounts.create_network:
            raise RemoteError("Payload.kind", f"is {payload.kind}, but the first entry must be NetworkCreated")
        _check_payload(payload, at_ms, rule, state.coordinator)


def open_leaf(leaf: bytes, network: NetworkId) -> tuple[LogRecord, Payload]:
    """The record, and its payload with a valid signature."""
    record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
    return record, open_envelope(record.frame, network=network, version_min=0).payload


def decode_entry(payload: Payload) -> Entry:
    """The entry in its newest form, whatever form its version selects."""
    kind = ENTRY_TYPES.get(payload.kind)
    if kind is None:
        raise RemoteError("Payload.kind", f"{payload.kind} is no entry of the log")
    entry: Entry = decode_form(kind, payload.version, payload.body)
    return entry


def _check_payload(payload: Payload, at_ms: int, rule: EntryRule, coordinator: NodeId | None) -> None:
    """Time, scope and author. None of it depends on the entries before."""
    check_time(payload, at_ms)
    if (payload.run is None) != (rule.scope is EntryScope.NETWORK):
        raise RemoteError("Payload.run", f"is {payload.run}, but {payload.kind} is about the {rule.scope.value}")
    if rule.author is EntryAuthor.COORDINATOR and payload.sender != coordinator:
        raise RemoteError("Payload.sender", f"is {payload.sender}, only {coordinator} may write {payload.kind}")


def read_leaf_version(leaf: bytes) -> int:
    """The protocol version that a leaf's author claims; 0 if the leaf cannot be read."""
    try:
        frame = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX).frame
        return decode(Payload, frame[SIGNATURE_BYTES:]).version
    except RemoteError:
        return 0


def check_leaf_alone(leaf: bytes, network: NetworkId, *, coordinator: NodeId) -> None:
    """Every rule that one leaf can break by itself, whatever the log says before it."""
    record, payload = open_leaf(leaf, network)
    rule = ENTRY_RULES[type(decode_entry(payload))]
    _check_payload(payload, record.at_ms, rule, coordinator)


def verify_leaf(leaf: bytes, network: NetworkId, domain: Domain, chain: RandomnessChain) -> None:
    """Verify the signatures of a leaf that need no state: its envelope, its receipt, a round of the randomness chain.

    Processes can do this for different leaves at once. `Ledger.apply_checked` has the rest, in order.
    """
    record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
    payload = open_envelope(record.frame, network=network, version_min=0).payload
    if ENTRY_TYPES.get(payload.kind) not in SIGNED_KINDS:
        return
    entry = decode_entry(payload)
    if isinstance(entry, entries.RoundRecorded):
        verify_round(chain, entry.round, entry.signature)
    else:
        assert isinstance(entry, entries.Submitted | entries.VerdictGiven)
        verify_document(entry.receipt, entry.signature, signer=payload.sender, domain=domain)


def replay(network: NetworkId, leaves: Iterable[bytes], *, coordinator: NodeId | None = None) -> Ledger:
    """Fold a whole log. With `coordinator`, refuse a log that another key has started."""
    ledger = Ledger(network)
    for index, leaf in enumerate(leaves):
        try:
            ledger.apply(leaf)
        except RemoteError as error:
            raise RemoteError(f"entry {index}: {error.field}", error.problem) from None
        if index == 0 and coordinator not in (None, ledger.state.coordinator):
            raise RemoteError("entry 0: Payload.sender", f"is {ledger.state.coordinator}, expected {coordinator}")
    return ledger
