"""The committed log as an outsider reads it: the history of every lease and submission, from the entries alone.

It knows no rule and records whatever the log says. It does not use the ledger's state, so that invariants.py can
compare the two. The simulated trainer and nodes also read the public log through it.

"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRY_BYTES_MAX, READ_PROOF_ERROR_MAX, SIGNATURE_BYTES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.proofs.read_proofs import compute_read_proof_error
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.typed_data import compute_receipt_id


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """One entry and its circumstances."""

    index: int
    at_ms: int
    author: NodeId
    entry: Any


@dataclass(slots=True)
class LoggedLease:
    """A lease and every entry that ended it."""

    granted: LoggedEntry
    owner: NodeId
    """Of the node, when the lease was granted."""
    ends: list[LoggedEntry] = field(default_factory=list)

    @property
    def slots(self) -> range:
        entry: e.LeaseGranted = self.granted.entry
        return range(entry.first_slot, entry.first_slot + entry.slots)


@dataclass(slots=True)
class LoggedSubmission:
    """A submission and everything that was said about it."""

    submitted: LoggedEntry
    lease: LoggedLease | None
    spared: LoggedEntry | None = None
    """The entry that says that no audit fell on it."""
    draws: list[LoggedEntry] = field(default_factory=list)
    committed: list[LoggedEntry] = field(default_factory=list)
    verdicts: list[LoggedEntry] = field(default_factory=list)
    settled: list[LoggedEntry] = field(default_factory=list)
    outcome: Outcome | None = None
    """As it was settled."""
    credited: list[LoggedEntry] = field(default_factory=list)
    proposed: list[LoggedEntry] = field(default_factory=list)
    appealed: list[LoggedEntry] = field(default_factory=list)
    executed: list[LoggedEntry] = field(default_factory=list)
    overturned: list[LoggedEntry] = field(default_factory=list)
    findings: list[LoggedEntry] = field(default_factory=list)
    upheld: list[LoggedEntry] = field(default_factory=list)
    dismissed: list[LoggedEntry] = field(default_factory=list)
    trained: list[LoggedEntry] = field(default_factory=list)
    scored: list[LoggedEntry] = field(default_factory=list)
    inspected: list[LoggedEntry] = field(default_factory=list)
    ruled: list[LoggedEntry] = field(default_factory=list)
    unasked: int = 0
    """At settlement: owners of eligible validators, other than the worker's own, none of whose validators was drawn."""

    @property
    def receipt(self) -> Any:
        return self.submitted.entry.receipt

    @property
    def is_audited(self) -> bool:
        """Whether the draw after its submission fell on it. Another draw may come with an appeal or a finding."""
        return bool(self.draws) and self.spared is None

    @property
    def is_condemned(self) -> bool:
        """Settled as fraudulent, or accepted and then found to be."""
        return self.outcome is Outcome.FRAUDULENT or bool(self.upheld)

    def list_findings(self) -> list[tuple[LoggedEntry, LoggedEntry | None]]:
        """Each finding and the entry that decided it; None where it is open."""
        ends = sorted((*self.upheld, *self.dismissed), key=lambda line: line.index)
        return list(zip_longest(self.findings, ends))

    def unread(self) -> set[NodeId]:
        """Who judged it without reading it, by what inspectors found. Counted without the ledger's help."""
        said = {line.author: line.entry.read_proof for line in self.verdicts}
        return {
            seen.reader
            for line in self.inspected
            for seen in line.entry.seen
            if compute_read_proof_error(said[seen.reader], seen.read_proof) > READ_PROOF_ERROR_MAX
        }


class LogHistory:
    """Everything the log has told so far."""

    def __init__(self) -> None:
        self.size = 0
        self.kinds: Counter[str] = Counter()
        self.leases: dict[int, LoggedLease] = {}
        self.submissions: dict[Digest, LoggedSubmission] = {}
        self.terms: Any = None
        self.checkpoints: dict[Step, LoggedEntry] = {}
        self.owners: dict[NodeId, NodeId] = {}
        self.all_owners: dict[NodeId, set[NodeId]] = {}
        """Of each node, those that it has left too."""
        self.registered: dict[NodeId, LoggedEntry] = {}
        self.staked: dict[NodeId, LoggedEntry] = {}
        self.stake_nano: Counter[tuple[NodeId, NodeId]] = Counter()
        """Owner and node: whose stake was ever put behind which key."""
        self.drained: set[tuple[NodeId, RunId | None]] = set()
        self.heads: list[LoggedEntry] = []
        self.newest_randomness = Digest(bytes(DIGEST_BYTES))
        self.paid: Counter[Step] = Counter()
        self.paid_index: dict[Step, int] = {}
        """Where each step was first paid."""
        self.deposited_nano = 0
        self.withdrawn_nano = 0
        self.unmatched: list[LoggedEntry] = []
        """Entries about something that the log does not know."""
        self.open_leases: dict[int, None] = {}
        self.unsettled: dict[Digest, None] = {}
        self.open_findings: dict[Digest, None] = {}
        """Until it is dismissed, or the slash that follows is proposed."""
        self.open_slashes: dict[Digest, None] = {}
        self.accused: dict[NodeId, list[Digest]] = {}
        """Submissions of each node for which a slash was ever proposed."""
        self.trainable: dict[Digest, LoggedSubmission] = {}
        """Accepted, and not in a checkpoint yet."""

    @property
    def latest(self) -> int:
        return max(self.checkpoints, default=-1)

    def read(self, leaf: bytes) -> LoggedEntry:
        """The next leaf of the log."""
        record = decode(e.LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        payload = decode(Payload, record.frame[SIGNATURE_BYTES:])
        entry: Any = decode_entry(payload)
        line = LoggedEntry(self.size, record.at_ms, payload.sender, entry)
        self.size += 1
        self.kinds[payload.kind] += 1
        self._record(line)
        return line

    def _record(self, line: LoggedEntry) -> None:
        match line.entry:
            case e.LeaseGranted(lease=number, node=node):
                self.leases[number] = LoggedLease(line, self.owners.get(node, node))
                self.open_leases[number] = None
            case e.LeaseEnded(lease=number):
                self._end_lease(number, line)
            case e.Submitted(receipt=receipt):
                name = compute_receipt_id(receipt)
                self._end_lease(receipt.lease, line)
                self.submissions[name] = LoggedSubmission(line, self.leases.get(receipt.lease))
                self.unsettled[name] = None
            case e.SubmissionsListed(submissions=names):
                self._train_on(names, line)
            case e.CheckpointPublished(step=step, trained_on=names):
                self.checkpoints[step] = line
                self._train_on(names, line)
            case e.VerdictGiven(receipt=receipt):
                self._add("verdicts", receipt.submission, line)
            case e.VerdictCommitted(submission=name):
                self._add("committed", name, line)
            case e.AuditDrawn(submission=name):
                self._add("draws", name, line)
            case e.ValidatorScored(validator=node, submission=name, penalty_nano=penalty_nano):
                self._add("scored", name, line)
                self._penalise(node, penalty_nano)
            case e.Inspected(submission=name):
                before = self.submissions[name].unread() if name in self.submissions else set()
                self._add("inspected", name, line)
                for node in (self.submissions[name].unread() if name in self.submissions else set()) - before:
                    self._penalise(node, self.terms.validator_slash_nano)
            case e.RulingGiven(submission=name):
                self._add("ruled", name, line)
            case e.AcceptedUnaudited() | e.Settled():
                self._record_settled(line)
            case e.Credited() | e.SlashProposed() | e.Appealed() | e.SlashExecuted() | e.SlashOverturned():
                self._record_judgement(line)
            case e.FindingFiled() | e.FindingUpheld() | e.FindingDismissed():
                self._record_finding(line)
            case _:
                self._record_account(line)

    def _record_settled(self, line: LoggedEntry) -> None:
        match line.entry:
            case e.AcceptedUnaudited(submissions=names):
                for name in names:
                    self._settle(name, Outcome.ACCEPT, line)
                    if name in self.submissions:
                        self.submissions[name].spared = line
            case e.Settled(settled=settled):
                for each in settled:
                    self._settle(each.submission, each.outcome, line)
        for name in line.entry.list_credited():
            self._add("credited", name, line)

    def _settle(self, name: Digest, outcome: Outcome, line: LoggedEntry) -> None:
        self._add("settled", name, line)
        self.unsettled.pop(name, None)
        logged = self.submissions.get(name)
        if logged is not None:
            logged.outcome, logged.unasked = outcome, self._count_unasked(logged)
            if outcome is Outcome.ACCEPT:
                self.trainable[name] = logged

    def _record_judgement(self, line: LoggedEntry) -> None:
        name = line.entry.submission
        match line.entry:
            case e.Credited():
                self._add("credited", name, line)
                # After an appeal, credit is what tells that the work was accepted after all.
                if name in self.submissions and not self.submissions[name].trained:
                    self.trainable[name] = self.submissions[name]
            case e.SlashProposed():
                self._add("proposed", name, line)
                self.open_slashes[name] = None
                self.open_findings.pop(name, None)
                if name in self.submissions:
                    self.accused.setdefault(self.submissions[name].receipt.node, []).append(name)
            case e.Appealed():
                self._add("appealed", name, line)
            case e.SlashExecuted():
                self._add("executed", name, line)
                self.open_slashes.pop(name, None)
            case e.SlashOverturned():
                self._add("overturned", name, line)
                self.open_slashes.pop(name, None)

    def _record_finding(self, line: LoggedEntry) -> None:
        name = line.entry.submission
        match line.entry:
            case e.FindingFiled():
                self._add("findings", name, line)
                self.open_findings[name] = None
            case e.FindingUpheld():
                self._add("upheld", name, line)
                self.trainable.pop(name, None)
            case e.FindingDismissed():
                self._add("dismissed", name, line)
                self.open_findings.pop(name, None)

    def _record_account(self, line: LoggedEntry) -> None:
        match line.entry:
            case e.NodeRegistered():
                self.registered.setdefault(line.author, line)
                self._set_owner(line.author, self.owners.get(line.author, line.author))
            case e.Delegated(delegation=delegation):
                self._set_owner(delegation.node, delegation.owner)
            case e.DelegationRevoked(node=node):
                if self.owners.get(node) == line.author:
                    self._set_owner(node, node)
            case e.Staked(node=node, amount_nano=amount_nano):
                self.staked.setdefault(node, line)
                self.stake_nano[(line.author, node)] += amount_nano
            case e.Unbonded(node=node, amount_nano=amount_nano):
                self.stake_nano[(line.author, node)] -= amount_nano
            case e.NodeStatusSet(node=node, status=status, run=run):
                (self.drained.discard if status is NodeStatus.ACTIVE else self.drained.add)((node, run))
            case e.RunCreated(terms=terms) | e.RunUpdated(terms=terms):
                self.terms = terms
            case e.HeadNoted():
                self.heads.append(line)
            case e.RoundRecorded(signature=signature):
                self.newest_randomness = Digest(sha256(signature).digest())
            case e.PaidOut(step=step):
                self.paid[step] += 1
                self.paid_index.setdefault(step, line.index)
            case e.Deposited(amount_nano=amount_nano):
                self.deposited_nano += amount_nano
            case e.Withdrawn(amount_nano=amount_nano):
                self.withdrawn_nano += amount_nano

    def _set_owner(self, node: NodeId, owner: NodeId) -> None:
        self.owners[node] = owner
        self.all_owners.setdefault(node, set()).add(owner)

    def _penalise(self, validator: NodeId, amount_nano: int) -> None:
        self.stake_nano[(self.owners.get(validator, validator), validator)] -= amount_nano

    def _count_unasked(self, logged: LoggedSubmission) -> int:
        worker = logged.receipt.node
        asked = {worker, logged.lease.owner if logged.lease else worker}
        for line in logged.draws:
            asked.update(*(self.all_owners[node] for node in line.entry.validators))
        drained = {node for node, _ in self.drained}
        able = [
            node
            for node, registered in self.registered.items()
            if Role.VALIDATOR in registered.entry.roles
            and self.stake_nano[(self.owners[node], node)] >= self.terms.stake_min_nano
            and node not in drained
            and self.all_owners[node].isdisjoint(asked)
        ]
        return len({self.owners[node] for node in able})

    def _train_on(self, names: Iterable[Digest], line: LoggedEntry) -> None:
        for name in names:
            self._add("trained", name, line)
            self.trainable.pop(name, None)

    def _end_lease(self, number: int, line: LoggedEntry) -> None:
        if number in self.leases:
            self.leases[number].ends.append(line)
            self.open_leases.pop(number, None)
        else:
            self.unmatched.append(line)

    def _add(self, what: str, name: Digest, line: LoggedEntry) -> None:
        if name in self.submissions:
            getattr(self.submissions[name], what).append(line)
        else:
            self.unmatched.append(line)
