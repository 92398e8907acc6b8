"""One leaf after the other, checked as a stranger would and folded into the books; what follows for the index. Pure.

The ledger has the rules and the numbers. Here is only which rows of which tables an entry touches; how the rows of
nodes, accounts and runs look is read from the books when a batch ends, so both always say the same.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from prime_explorer import fold_judgement, fold_work
from prime_explorer.briefs import write_brief
from prime_explorer.writes import Circumstances, Touched, Write
from prime_protocol import entries as e
from prime_protocol.catalogue import find_run, list_subjects
from prime_protocol.codec import decode
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX
from prime_protocol.entries import Outcome, Record, Role
from prime_protocol.envelope import open_envelope
from prime_protocol.ids import NodeId, RunId
from prime_protocol.ledger import ENTRY_TYPES, Ledger
from prime_protocol.names import friendly_name
from prime_protocol.state import State

STAKE_KINDS = (
    e.Staked | e.Unbonded | e.Released | e.Delegated | e.DelegationRevoked
    | e.SlashProposed | e.SlashExecuted | e.SlashOverturned
)  # fmt: skip
"""Entries after which another stake may stand behind a node."""


@dataclass
class Folding:
    """A ledger, and what the index has yet to hear of it."""

    ledger: Ledger
    _writes: list[Write] = field(default_factory=list)
    _touched: Touched = field(default_factory=Touched)

    @property
    def state(self) -> State:
        return self.ledger.state

    def take(self, leaf: bytes) -> None:
        """Fold in the next leaf; RemoteError where it does not hold, and then nothing has changed."""
        record = decode(Record, leaf, bytes_max=LOG_ENTRY_BYTES_MAX)
        letter = open_envelope(record.frame, network=self.ledger.network, version_min=0).letter
        index = self.state.size
        kind = ENTRY_TYPES.get(letter.kind)
        entry = decode(kind, letter.body) if kind else None
        about = Circumstances(index, record.at_ms, letter.sender, letter.run, entry)
        seen = look_before(self.state, about)
        self.ledger.append(letter, record)
        self._writes += self._describe(about, seen)

    def drain(self) -> list[Write]:
        """Everything that follows from the leaves so far, in the order in which it is to be written."""
        # Rows of nodes and runs come first, because others count up in them; steps are made by the entries themselves.
        writes = [*self._describe_touched(), *self._writes, *self._describe_steps()]
        self._writes, self._touched = [], Touched()
        return writes

    def _describe(self, about: Circumstances, seen: Any) -> Iterator[Write]:
        entry, state, touched = about.entry, self.state, self._touched
        subjects = [text for text in list_subjects(about.run, entry) if text.startswith("0x")]
        first = bytes.fromhex(subjects[0][2:]) if subjects else None
        run = find_run(about.run, entry)
        yield ADD_ENTRY, (
            about.index, about.at_ms, type(entry).__name__, about.author, run, first, write_brief(entry)
        )  # fmt: skip
        for subject in dict.fromkeys(subjects):
            yield ADD_MENTION, (bytes.fromhex(subject[2:]), about.index)
        touched.accounts[about.author] = None
        touched.seen_ms[about.author] = about.at_ms
        if run is not None:
            touched.runs.setdefault(run, about if isinstance(entry, e.RunCreated) else None)
        yield from fold_work.describe(state, about, seen, touched)
        yield from fold_judgement.describe(state, about, seen, touched)
        yield from self._describe_account(about, seen)

    def _describe_account(self, about: Circumstances, seen: Any) -> Iterator[Write]:
        """Nodes that are new or changed, and their stakes."""
        entry, touched, state = about.entry, self._touched, self.state
        node = _changed_node(about)
        if node in state.nodes:
            touched.nodes.setdefault(node, about)
            for run in state.runs:
                touched.runs.setdefault(run, None)  # it may have become fit to be drawn, or unfit
        if isinstance(entry, e.Deposited):
            touched.accounts[entry.account] = None
        staked = seen if isinstance(seen, NodeId) else node
        if isinstance(entry, STAKE_KINDS) and staked in state.nodes:
            yield ADD_STAKE, (staked, about.index, about.at_ms, type(entry).__name__, *get_stake(state, staked))

    def _describe_touched(self) -> Iterator[Write]:
        state, touched = self.state, self._touched
        for node, about in touched.nodes.items():
            yield PUT_NODE, node_values(state, node, about)
            name = friendly_name(node)
            for cut in (0, name.index("-") + 1, name.rindex("-") + 1):
                yield ADD_NAME, (name[cut:], node)
        for node, at_ms in touched.seen_ms.items():
            yield SEE_NODE, (at_ms, node)
        for account in touched.accounts:
            yield PUT_ACCOUNT, (account, state.books.balances[account])
        for run, created in touched.runs.items():
            if created:
                yield ADD_RUN, (run, created.index, created.at_ms)
            yield PUT_RUN, run_values(state, run)

    def _describe_steps(self) -> Iterator[Write]:
        for run, step in self._touched.steps:
            work = self.state.runs[run].steps.get(step)
            held = len(work.held.keys() - work.credited) if work else 0
            yield HOLD_SLOTS, (held, run, step)


def look_before(state: State, about: Circumstances) -> Any:
    """What an entry is about to make the books forget."""
    run = state.runs.get(about.run) if about.run else None
    match about.entry:
        case e.HeadNoted():
            return [(name, step) for name, each in state.runs.items() for step in each.without_beacon]
        case e.SlashProposed(submission=name) | e.SlashExecuted(submission=name) | e.SlashOverturned(submission=name):
            return run.submissions[name].node if run and name in run.submissions else None
        case e.LeaseEnded() | e.PaidOut() | e.CheckpointPublished() if run is not None:
            return fold_work.look_before(state, run, about)
    return None


def _changed_node(about: Circumstances) -> NodeId | None:
    """Whose offer, owner, status or stake an entry about accounts changes."""
    match about.entry:
        case e.NodeRegistered():
            return about.author
        case e.Delegated(delegation=delegation):
            return delegation.node
        case e.NodeStatusSet(node=node) | e.DelegationRevoked(node=node):
            return node
        case e.Staked(node=node) | e.Unbonded(node=node) | e.Released(node=node):
            return node
    return None


# --- Rows that are read from the books --------------------------------------------------------------------------------


def get_stake(state: State, node: NodeId) -> tuple[int, int]:
    """What stands behind a node, and what its owner has asked back."""
    parts = state.books.unbonding.get((state.owners[node], node), ())
    return state.stake_of(node), sum(part.amount_nano for part in parts)


def node_values(state: State, name: NodeId, about: Circumstances) -> tuple[Any, ...]:
    node = state.nodes[name]
    return (
        name, state.owners[name], friendly_name(name), about.index, about.at_ms, about.at_ms,
        Role.WORKER in node.roles, Role.VALIDATOR in node.roles, Role.RELAY in node.roles,
        str(node.status), node.reason, node.version, node.hardware, json.dumps(node.addresses),
        node.delegated_until_ms, *get_stake(state, name), node.streak,
        node.settled[Outcome.ACCEPT], node.settled[Outcome.SOFT], node.settled[Outcome.HARD],
        node.faults, node.units, node.earned_nano,
    )  # fmt: skip


def run_values(state: State, name: RunId) -> tuple[Any, ...]:
    run = state.runs[name]
    open_ = sum(each.outcome is None for each in run.submissions.values())
    return (
        str(run.status), to_json(asdict(run.terms)), run.latest, state.books.pools[name], len(run.validators),
        len(run.leases), open_, len(run.slashes), name,
    )  # fmt: skip


def to_json(value: Any) -> str:
    return json.dumps(value, default=lambda item: "0x" + item.hex() if isinstance(item, bytes) else str(item))


# --- Statements -------------------------------------------------------------------------------------------------------

NODE_COLUMNS = (
    "node", "owner", "name", "first_idx", "first_ms", "last_ms", "is_worker", "is_validator", "is_relay", "status",
    "reason", "version", "hardware", "addresses", "delegated_until_ms", "stake_nano", "unbonding_nano", "streak",
    "accepted", "soft", "hard", "faults", "units", "earned_nano",
)  # fmt: skip
_KEPT = ("node", "name", "first_idx", "first_ms", "last_ms")

ADD_ENTRY = "INSERT INTO entries VALUES (?,?,?,?,?,?,?)"
ADD_MENTION = "INSERT OR IGNORE INTO mentions VALUES (?,?)"
ADD_STAKE = "INSERT OR REPLACE INTO stakes VALUES (?,?,?,?,?,?)"
ADD_NAME = "INSERT OR IGNORE INTO names VALUES (?,?)"
PUT_ACCOUNT = "INSERT OR REPLACE INTO accounts VALUES (?,?)"
SEE_NODE = "UPDATE nodes SET last_ms=? WHERE node=?"
PUT_NODE = (
    f"INSERT INTO nodes ({','.join(NODE_COLUMNS)}) VALUES ({','.join('?' * len(NODE_COLUMNS))})"
    f" ON CONFLICT (node) DO UPDATE SET {','.join(f'{n}=excluded.{n}' for n in NODE_COLUMNS if n not in _KEPT)}"
)
ADD_RUN = "INSERT INTO runs (run, idx, at_ms) VALUES (?,?,?)"
PUT_RUN = (
    "UPDATE runs SET status=?, terms=?, latest_step=?, pool_nano=?, validators=?, leases_open=?, submissions_open=?,"
    " slashes_open=? WHERE run=?"
)
HOLD_SLOTS = "UPDATE steps SET slots_held=? WHERE run=? AND step=?"
