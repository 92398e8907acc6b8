"""Folds leaves of the log into SQL statements for the index. Pure.

Every leaf is verified and applied to a ledger, which has the rules and the numbers. This module only decides which rows
an entry touches. The rows of nodes, accounts and runs are read from the ledger's state at the end of each batch, so the
index and the ledger always agree.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from prime_explorer.index import fold_audits, fold_work
from prime_explorer.index.schema import DirtyRows, FoldedEntry, SqlWrite
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX
from prime_protocol.keys.rotation import CoordinatorKeyRotated, LogKeyRotated
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, LogRecord, Outcome, Role
from prime_protocol.ledger.entry_index import find_run, list_subjects
from prime_protocol.ledger.replay import Ledger, decode_entry
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NodeId, RunId, friendly_name
from prime_runtime.formatting import format_amount, format_bytes, format_time

BRIEF_CHARS_MAX = 160


def write_brief(entry: Any, ticker: str) -> str:
    """One line about an entry; empty if its kind says everything."""
    return _write_account_brief(entry, ticker)[:BRIEF_CHARS_MAX]


def _write_account_brief(entry: Any, ticker: str) -> str:
    match entry:
        case e.Deposited(account=account, amount_nano=amount, run=run) if run is not None:
            return f"{format_amount(amount)} {ticker} for the pool of {run}, by {friendly_name(account)}"
        case e.Deposited(account=account, amount_nano=amount):
            return f"{format_amount(amount)} {ticker} for {friendly_name(account)}"
        case e.Withdrawn(amount_nano=amount) | e.RunFunded(amount_nano=amount) | e.PoolReturned(amount_nano=amount):
            return f"{format_amount(amount)} {ticker}"
        case e.NodeRegistered(roles=roles, hardware=hardware):
            return f"{', '.join(roles)}; {hardware}" if hardware else ", ".join(roles)
        case e.NodeStatusSet(node=node, status=status, reason=reason, run=run):
            return _with_reason(f"{friendly_name(node)} is {status}{f' in {run}' if run else ''}", reason)
        case e.Delegated(delegation=delegation):
            return f"{friendly_name(delegation.node)} works for {friendly_name(delegation.owner)}"
        case e.DelegationRevoked(node=node) | e.Released(node=node):
            return friendly_name(node)
        case e.Staked(node=node, amount_nano=amount) | e.Unbonded(node=node, amount_nano=amount):
            return f"{format_amount(amount)} {ticker}, {friendly_name(node)}"
        case e.RunCreated(terms=terms) | e.RunUpdated(terms=terms):
            return f"{terms.model}, {terms.task_set}"
        case e.RunStatusSet(status=status, reason=reason):
            return _with_reason(str(status), reason)
        case e.HeadNoted(root=root):
            return f"root {str(root)[:10]}…"
        case e.SnapshotNoted(size=size, digest=digest):
            return f"state after {size:,} entries, {str(digest)[:10]}…"
        case e.LogRestored(size=size):
            return f"restored from a copy of the first {size:,} entries; later ones are lost"
        case LogKeyRotated(log_key=key):
            return f"heads are signed with {key} from here on"
        case CoordinatorKeyRotated(coordinator=coordinator):
            return f"the coordinator is {coordinator} from here on"
        case e.RoundRecorded(round=number, cosignatures=cosignatures):
            return f"round {number:,} of the randomness chain, {len(cosignatures)} witnesses"
        case e.RulesChanged(rules=rules, from_ms=from_ms, release=release):
            return f"rules {rules} from {format_time(from_ms)} UTC on, known to release {release}"
        case e.SubmissionsListed(step=step, first=first, submissions=names):
            return f"step {step}, trained on submissions {first + 1:,} to {first + len(names):,}"
        case e.CheckpointPublished(step=step, trained_on_count=count):
            return f"step {step}, trained on {count:,} submissions"
        case e.StepMeasured(step=step, metrics=metrics):
            return f"step {step}: " + ", ".join(f"{each.name} {each.value:.4g}" for each in metrics)
    return _write_work_brief(entry, ticker)


def _write_work_brief(entry: Any, ticker: str) -> str:
    match entry:
        case e.LeaseGranted(lease=lease, node=node, step=step, slots=slots):
            return f"lease {lease:,} for {friendly_name(node)}: {slots:,} slots of step {step:,}"
        case e.LeaseEnded(lease=lease, reason=reason):
            return _with_reason(f"lease {lease:,}", reason)
        case e.Submitted(receipt=receipt, output_tokens=tokens, file_bytes=size):
            return f"lease {receipt.lease:,}, step {receipt.step:,}: {tokens:,} tokens, {format_bytes(size)}"
        case e.AuditDrawn(round=number, validators=validators):
            return f"round {number}: {', '.join(map(friendly_name, validators))}"
        case e.AcceptedUnaudited(submissions=names, uncredited=uncredited):
            return f"{_count_submissions(len(names))}{_count_uncredited(uncredited)}"
        case e.VerdictCommitted(commitment=commitment):
            return f"digest {str(commitment)[:10]}…"
        case e.VerdictGiven(outcome=outcome, reason=reason):
            return _with_reason(str(outcome), reason)
        case e.Settled(settled=settled, uncredited=uncredited):
            outcomes = Counter(str(each.outcome) for each in settled)
            counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
            return f"{counts if len(settled) > 1 else settled[0].outcome}{_count_uncredited(uncredited)}"
        case e.Credited(units=units):
            return "1 unit" if units == 1 else f"{units:,} units"
        case e.PaidOut(step=step):
            return f"step {step:,}"
        case e.ValidatorScored(validator=node, penalty_nano=penalty):
            lost = f", loses {format_amount(penalty)} {ticker}" if penalty else ""
            return f"{friendly_name(node)} found otherwise{lost}"
        case e.RulingGiven(outcome=outcome, reason=reason):
            return _with_reason(f"an inspector decides: {outcome}", reason)
        case e.Inspected(seen=seen):
            return "1 verdict inspected" if len(seen) == 1 else f"{len(seen)} verdicts inspected"
        case e.SlashProposed(amount_nano=amount):
            return f"{format_amount(amount)} {ticker} into escrow"
        case e.Appealed(reason=reason) | FindingFiled(reason=reason):
            return reason
    return ""


def _count_submissions(count: int) -> str:
    return "1 submission" if count == 1 else f"{count:,} submissions"


def _count_uncredited(uncredited: tuple[Digest, ...]) -> str:
    return f"; {len(uncredited):,} without credit" if uncredited else ""


def _with_reason(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


STAKE_KINDS = (
    e.Staked | e.Unbonded | e.Released | e.Delegated | e.DelegationRevoked
    | e.SlashProposed | e.SlashExecuted | e.SlashOverturned | e.ValidatorScored
)  # fmt: skip
"""Entries that may change the stake of a node."""


@dataclass
class LogFold:
    """A ledger, and the statements that the index has not executed yet."""

    ledger: Ledger
    _writes: list[SqlWrite] = field(default_factory=list)
    _dirty: DirtyRows = field(default_factory=DirtyRows)

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    def apply_leaf(self, leaf: bytes) -> None:
        """Verify and apply the next leaf. RemoteError if it is invalid; then nothing changes."""
        record = decode(LogRecord, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        letter = open_envelope(record.frame, network=self.ledger.network, version_min=0).payload
        index = self.state.size
        self.state.rules.check_known(at_ms=record.at_ms, index=index)
        entry = decode_entry(letter)
        about = FoldedEntry(index, record.at_ms, letter.sender, letter.run, entry)
        seen, finders = read_before_apply(self.state, about), find_finders(self.state, about)
        self.ledger.append(letter, record)
        self._dirty.accounts.update(dict.fromkeys(finders))
        self._writes += self._describe(about, seen)

    def take_writes(self) -> list[SqlWrite]:
        """All statements since the last call, in the order in which they must be executed."""
        # Rows of nodes and runs come first, because later statements increment their counters.
        writes = [*self._describe_dirty(), *self._writes, *self._describe_steps()]
        self._writes, self._dirty = [], DirtyRows()
        return writes

    def _describe(self, about: FoldedEntry, seen: Any) -> Iterator[SqlWrite]:
        entry, state, dirty = about.entry, self.state, self._dirty
        subjects = [text for text in list_subjects(about.run, entry) if text.startswith("0x")]
        is_shared = isinstance(entry, e.AcceptedUnaudited | e.Settled) and len(subjects) > 1
        first = bytes.fromhex(subjects[0][2:]) if subjects and not is_shared else None
        run = find_run(about.run, entry)
        yield ADD_ENTRY, (
            about.index, about.at_ms, type(entry).__name__, about.author, run, first, write_brief(entry, state.ticker)
        )  # fmt: skip
        for subject in dict.fromkeys(subjects):
            yield ADD_MENTION, (bytes.fromhex(subject[2:]), about.index)
        dirty.accounts[about.author] = None
        dirty.seen_ms[about.author] = about.at_ms
        if isinstance(entry, e.RunUpdated) and run in state.runs:
            # New bounds forget the evidence of the old ones.
            for node in state.runs[run].records:
                dirty.nodes.setdefault(node, about)
        if run is not None:
            dirty.runs.setdefault(run, about if isinstance(entry, e.RunCreated) else None)
        yield from fold_work.describe(state, about, seen, dirty)
        yield from fold_audits.describe(state, about, seen, dirty)
        yield from self._describe_account(about, seen)

    def _describe_account(self, about: FoldedEntry, seen: Any) -> Iterator[SqlWrite]:
        """Nodes that are new or changed, and their stakes."""
        entry, dirty, state = about.entry, self._dirty, self.state
        node = _changed_node(about)
        if node in state.nodes:
            dirty.nodes.setdefault(node, about)
            for run in state.runs:
                dirty.runs.setdefault(run, None)  # the node may have become eligible for draws, or ineligible
        if isinstance(entry, e.Deposited):
            dirty.accounts[entry.account] = None
        staked = seen if isinstance(seen, NodeId) else node
        if isinstance(entry, STAKE_KINDS) and staked in state.nodes:
            yield ADD_STAKE, (staked, about.index, about.at_ms, type(entry).__name__, *get_stake(state, staked))

    def _describe_dirty(self) -> Iterator[SqlWrite]:
        state, dirty = self.state, self._dirty
        for node, about in dirty.nodes.items():
            yield PUT_NODE, get_node_values(state, node, about)
            name = friendly_name(node)
            for cut in (0, name.index("-") + 1, name.rindex("-") + 1):
                yield ADD_NAME, (name[cut:], node)
        for node, at_ms in dirty.seen_ms.items():
            yield UPDATE_LAST_SEEN, (at_ms, node)
        for account in dirty.accounts:
            yield PUT_ACCOUNT, (account, state.funds.balances[account])
        for run, created in dirty.runs.items():
            if created:
                yield ADD_RUN, (run, created.index, created.at_ms)
            yield PUT_RUN, get_run_values(state, run)

    def _describe_steps(self) -> Iterator[SqlWrite]:
        for run, step in self._dirty.steps:
            work = self.state.runs[run].steps.get(step)
            held = len(work.held.keys() - work.credited) if work else 0
            yield UPDATE_SLOTS_HELD, (held, run, step)


def read_before_apply(state: LedgerState, about: FoldedEntry) -> Any:
    """Read state that applying the entry will remove."""
    run = state.runs.get(about.run) if about.run else None
    match about.entry:
        case e.RoundRecorded(round=number) if number in state.pending_rounds:
            return list(state.pending_rounds[number].checkpoints)
        case e.SlashProposed(submission=name) | e.SlashExecuted(submission=name) | e.SlashOverturned(submission=name):
            return run.submissions[name].node if run and name in run.submissions else None
        case FindingDismissed():
            return next(iter(find_finders(state, about)), None)
        case e.LeaseEnded() | e.PaidOut() | e.CheckpointPublished() if run is not None:
            return fold_work.read_before_apply(state, run, about)
    return None


def find_finders(state: LedgerState, about: FoldedEntry) -> tuple[NodeId, ...]:
    """The account whose finding an entry may end, which gets its bond back, and its owner, which gets the bounty."""
    run = state.runs.get(about.run) if about.run else None
    match about.entry:
        case FindingDismissed(submission=name) | e.SlashExecuted(submission=name) | e.SlashOverturned(submission=name):
            finding = run.findings.get(name) if run else None
            return (finding.finder, finding.owner) if finding else ()
    return ()


def _changed_node(about: FoldedEntry) -> NodeId | None:
    """The node whose offer, owner, status or stake an entry changes."""
    match about.entry:
        case e.NodeRegistered():
            return about.author
        case e.Delegated(delegation=delegation):
            return delegation.node
        case e.NodeStatusSet(node=node) | e.DelegationRevoked(node=node):
            return node
        case e.Staked(node=node) | e.Unbonded(node=node) | e.Released(node=node):
            return node
        case e.ValidatorScored(validator=node, penalty_nano=penalty) if penalty:
            return node
    return None


# --- Rows read from the ledger state ----------------------------------------------------------------------------------


def get_stake(state: LedgerState, node: NodeId) -> tuple[int, int]:
    """A node's stake, and the part that its owner is unbonding."""
    parts = state.funds.unbonding.get((state.owners[node], node), ())
    return state.get_stake(node), sum(part.amount_nano for part in parts)


def get_node_values(state: LedgerState, name: NodeId, about: FoldedEntry) -> tuple[Any, ...]:
    node = state.nodes[name]
    return (
        name, state.owners[name], friendly_name(name), about.index, about.at_ms, about.at_ms,
        Role.WORKER in node.roles, Role.VALIDATOR in node.roles, Role.RELAY in node.roles,
        str(node.status), node.reason, node.version, node.hardware, json.dumps(node.addresses),
        node.delegated_until_ms, *get_stake(state, name), encode_json(list_run_records(state, name)),
        node.settled[Outcome.ACCEPT], node.settled[Outcome.INVALID], node.settled[Outcome.FRAUDULENT],
        node.faults, node.units, node.earned_nano,
    )  # fmt: skip


def list_run_records(state: LedgerState, name: NodeId) -> list[dict[str, Any]]:
    """The node in each run in which it had a submission settled."""
    known = [(run, each.records[name]) for run, each in state.runs.items() if name in each.records]
    return [
        {
            "run": run,
            "streak": record.streak,
            "suspicion": record.suspicion / 10,
            "state": "excluded" if record.restake_nano else "pay held" if record.is_held else "",
            "restake_nano": record.restake_nano,
            "held_units": record.held_units.total(),
        }
        for run, record in known
    ]


def get_run_values(state: LedgerState, name: RunId) -> tuple[Any, ...]:
    run = state.runs[name]
    return (
        str(run.status), encode_json(asdict(run.terms)), run.latest, state.funds.pools[name], len(run.validators),
        len(run.leases), len(run.unsettled), len(run.slashes), name,
    )  # fmt: skip


def encode_json(value: Any) -> str:
    return json.dumps(value, default=lambda item: "0x" + item.hex() if isinstance(item, bytes) else str(item))


# --- Statements -------------------------------------------------------------------------------------------------------

NODE_COLUMNS = (
    "node", "owner", "name", "first_idx", "first_ms", "last_ms", "is_worker", "is_validator", "is_relay", "status",
    "reason", "version", "hardware", "addresses", "delegated_until_ms", "stake_nano", "unbonding_nano", "run_records",
    "accepted", "invalid", "fraudulent", "faults", "units", "earned_nano",
)  # fmt: skip
_NODE_COLUMNS_KEPT = ("node", "name", "first_idx", "first_ms", "last_ms")

ADD_ENTRY = "INSERT INTO entries VALUES (?,?,?,?,?,?,?)"
ADD_MENTION = "INSERT OR IGNORE INTO mentions VALUES (?,?)"
ADD_STAKE = "INSERT OR REPLACE INTO stakes VALUES (?,?,?,?,?,?)"
ADD_NAME = "INSERT OR IGNORE INTO names VALUES (?,?)"
PUT_ACCOUNT = "INSERT OR REPLACE INTO accounts VALUES (?,?)"
UPDATE_LAST_SEEN = "UPDATE nodes SET last_ms=? WHERE node=?"
PUT_NODE = (
    f"INSERT INTO nodes ({','.join(NODE_COLUMNS)}) VALUES ({','.join('?' * len(NODE_COLUMNS))})"
    " ON CONFLICT (node) DO UPDATE SET "
    + ",".join(f"{name}=excluded.{name}" for name in NODE_COLUMNS if name not in _NODE_COLUMNS_KEPT)
)
ADD_RUN = "INSERT INTO runs (run, idx, at_ms) VALUES (?,?,?)"
PUT_RUN = (
    "UPDATE runs SET status=?, terms=?, latest_step=?, pool_nano=?, validators=?, leases_open=?, submissions_open=?,"
    " slashes_open=? WHERE run=?"
)
UPDATE_SLOTS_HELD = "UPDATE steps SET slots_held=? WHERE run=? AND step=?"
