"""The tables of the index, and the types that the fold passes on. SQLite, one file.

Every page is a few look-ups in these tables. They are derived from the log, so the file can be deleted at any time.
Ids are bytes, amounts nano, times Unix milliseconds. Columns mean what the same words mean in
prime_protocol.ledger.state.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from prime_protocol.wire.ids import NodeId, RunId, Step

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE entries (
  idx INTEGER PRIMARY KEY, at_ms INTEGER, kind TEXT, author BLOB, run TEXT,
  about BLOB,   -- its main subject: a submission, a node, a checkpoint root
  brief TEXT    -- one line of text
);
CREATE INDEX entries_by_kind ON entries (kind, idx);
CREATE INDEX entries_by_author ON entries (author, idx);
CREATE INDEX entries_by_run ON entries (run, idx);
CREATE INDEX entries_by_run_and_kind ON entries (run, kind, idx);

CREATE TABLE mentions (subject BLOB, idx INTEGER, PRIMARY KEY (subject, idx)) WITHOUT ROWID;

CREATE TABLE heads (size INTEGER PRIMARY KEY, at_ms INTEGER, root BLOB, note BLOB);

CREATE TABLE nodes (
  node BLOB PRIMARY KEY, owner BLOB, name TEXT, first_idx INTEGER, first_ms INTEGER, last_ms INTEGER,
  is_worker INTEGER, is_validator INTEGER, is_relay INTEGER, status TEXT, reason TEXT, version INTEGER,
  hardware TEXT, addresses TEXT, delegated_until_ms INTEGER,
  stake_nano INTEGER, unbonding_nano INTEGER, run_records TEXT,
  accepted INTEGER, invalid INTEGER, fraudulent INTEGER, faults INTEGER, units INTEGER, earned_nano INTEGER,
  leases INTEGER DEFAULT 0, submissions INTEGER DEFAULT 0, rollouts INTEGER DEFAULT 0, tokens INTEGER DEFAULT 0,
  verdicts INTEGER DEFAULT 0, upheld INTEGER DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX nodes_by_owner ON nodes (owner, node);
CREATE INDEX nodes_by_units ON nodes (units, node);
CREATE INDEX nodes_by_accepted ON nodes (accepted, node);
CREATE INDEX nodes_by_earned ON nodes (earned_nano, node);
CREATE INDEX nodes_by_stake ON nodes (stake_nano, node);
CREATE INDEX workers_by_units ON nodes (is_worker, units, node);
CREATE INDEX validators_by_units ON nodes (is_validator, units, node);
CREATE INDEX relays_by_units ON nodes (is_relay, units, node);
CREATE INDEX nodes_by_status ON nodes (status, units, node);

CREATE TABLE accounts (account BLOB PRIMARY KEY, balance_nano INTEGER) WITHOUT ROWID;

CREATE TABLE names (term TEXT, node BLOB, PRIMARY KEY (term, node)) WITHOUT ROWID;

CREATE TABLE stakes (
  node BLOB, idx INTEGER, at_ms INTEGER, kind TEXT, stake_nano INTEGER, unbonding_nano INTEGER,
  PRIMARY KEY (node, idx)
) WITHOUT ROWID;

CREATE TABLE runs (
  run TEXT PRIMARY KEY, idx INTEGER, at_ms INTEGER, status TEXT, terms TEXT, latest_step INTEGER, pool_nano INTEGER,
  validators INTEGER, leases_open INTEGER, submissions_open INTEGER, slashes_open INTEGER,
  submissions INTEGER DEFAULT 0, accepted INTEGER DEFAULT 0, invalid INTEGER DEFAULT 0, fraudulent INTEGER DEFAULT 0,
  audited INTEGER DEFAULT 0, undrawn INTEGER DEFAULT 0, rollouts INTEGER DEFAULT 0, tokens INTEGER DEFAULT 0,
  units INTEGER DEFAULT 0, paid_nano INTEGER DEFAULT 0, file_bytes INTEGER DEFAULT 0, verdicts INTEGER DEFAULT 0,
  slashes INTEGER DEFAULT 0, executed INTEGER DEFAULT 0, overturned INTEGER DEFAULT 0, expired INTEGER DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE steps (
  run TEXT, step INTEGER, idx INTEGER, published_ms INTEGER, root BLOB, manifest BLOB, beacon BLOB, beacon_ms INTEGER,
  slots INTEGER, samples INTEGER, slots_done INTEGER DEFAULT 0, slots_held INTEGER DEFAULT 0,
  trained_on INTEGER, trained_tokens INTEGER, lag_sum INTEGER, lag_max INTEGER,
  ready_ms INTEGER,   -- when the last submission that it was trained on was settled
  first_lease_ms INTEGER, first_submitted_ms INTEGER, last_submitted_ms INTEGER,
  first_drawn_ms INTEGER, last_settled_ms INTEGER, paid_ms INTEGER, paid_nano INTEGER DEFAULT 0,
  leases INTEGER DEFAULT 0, expired INTEGER DEFAULT 0, submissions INTEGER DEFAULT 0,
  accepted INTEGER DEFAULT 0, invalid INTEGER DEFAULT 0, fraudulent INTEGER DEFAULT 0, audited INTEGER DEFAULT 0,
  rollouts INTEGER DEFAULT 0, tokens INTEGER DEFAULT 0, units INTEGER DEFAULT 0, file_bytes INTEGER DEFAULT 0,
  nodes INTEGER DEFAULT 0, reward_sum REAL DEFAULT 0, rewards INTEGER DEFAULT 0,
  held_out REAL, entropy REAL, mismatch_kl REAL,   -- the trainer's numbers that have a chart
  metrics TEXT, measured_idx INTEGER,
  PRIMARY KEY (run, step)
) WITHOUT ROWID;
CREATE INDEX steps_by_root ON steps (root);
CREATE INDEX steps_by_place ON steps (idx);
CREATE INDEX steps_by_run ON steps (run, idx);

CREATE TABLE contributions (
  node BLOB, run TEXT, step INTEGER, submissions INTEGER DEFAULT 0, accepted INTEGER DEFAULT 0,
  invalid INTEGER DEFAULT 0, fraudulent INTEGER DEFAULT 0, rollouts INTEGER DEFAULT 0, tokens INTEGER DEFAULT 0,
  units INTEGER DEFAULT 0, paid_nano INTEGER DEFAULT 0, PRIMARY KEY (node, run, step)
) WITHOUT ROWID;
CREATE INDEX contributions_by_step ON contributions (run, step, units, node);

CREATE TABLE payouts (
  node BLOB, idx INTEGER, owner BLOB, run TEXT, step INTEGER, at_ms INTEGER, amount_nano INTEGER,
  PRIMARY KEY (node, idx, owner)
) WITHOUT ROWID;

CREATE TABLE leases (
  run TEXT, lease INTEGER, idx INTEGER, node BLOB, step INTEGER, first_slot INTEGER, slots INTEGER,
  granted_ms INTEGER, deadline_ms INTEGER, speculative INTEGER, state TEXT, ended_ms INTEGER, reason TEXT,
  PRIMARY KEY (run, lease)
) WITHOUT ROWID;
CREATE INDEX leases_open ON leases (idx) WHERE state = 'open';
CREATE INDEX leases_open_by_run ON leases (run, idx) WHERE state = 'open';
CREATE INDEX leases_open_by_node ON leases (node, idx) WHERE state = 'open';
CREATE INDEX leases_unanswered ON leases (node, idx) WHERE state = 'ended';

CREATE TABLE submissions (
  submission BLOB PRIMARY KEY, idx INTEGER, run TEXT, step INTEGER, node BLOB, owner BLOB, lease INTEGER,
  first_slot INTEGER, slots INTEGER, samples INTEGER, leased_ms INTEGER, at_ms INTEGER, file_digest BLOB,
  file_bytes INTEGER, rollout_root BLOB, checkpoint_step INTEGER, checkpoint_root BLOB,
  output_tokens INTEGER, context_tokens INTEGER, progress TEXT, reason TEXT, drawn_ms INTEGER, validators INTEGER,
  verdicts INTEGER, settled_idx INTEGER, settled_ms INTEGER, reward REAL, units INTEGER,
  credited_idx INTEGER, is_carried INTEGER, paid_idx INTEGER, trained_into INTEGER, slash TEXT,
  finding TEXT,   -- filed, upheld, dismissed or undecided; null: nobody filed one
  finding_evidence BLOB   -- of the newest finding
) WITHOUT ROWID;
CREATE INDEX submissions_by_place ON submissions (idx);
CREATE INDEX submissions_by_run ON submissions (run, idx);
CREATE INDEX submissions_by_step ON submissions (run, step, idx);
CREATE INDEX submissions_by_node ON submissions (node, idx);
CREATE INDEX submissions_by_progress ON submissions (progress, idx);
CREATE INDEX submissions_by_checkpoint ON submissions (run, trained_into, idx);
CREATE INDEX submissions_unpaid ON submissions (run, step) WHERE credited_idx IS NOT NULL AND paid_idx IS NULL;

CREATE TABLE rounds (
  submission BLOB, round INTEGER, idx INTEGER, drawn_ms INTEGER, randomness_round INTEGER, validators TEXT,
  PRIMARY KEY (submission, round)
) WITHOUT ROWID;

CREATE TABLE verdicts (
  idx INTEGER PRIMARY KEY, at_ms INTEGER, run TEXT, submission BLOB, validator BLOB, round INTEGER, outcome TEXT,
  reason TEXT, evidence BLOB, metrics TEXT, reward REAL, upheld INTEGER,
  refuted INTEGER,   -- 0: an inspector found that it was read; 1: that it was not; null: not inspected
  read_proof_error REAL    -- how far its looks are from what the inspector saw; null where it has none
);
CREATE INDEX verdicts_by_run ON verdicts (run, idx);
CREATE INDEX verdicts_by_submission ON verdicts (submission, idx);
CREATE INDEX verdicts_by_validator ON verdicts (validator, idx);

CREATE TABLE slashes (
  submission BLOB PRIMARY KEY, idx INTEGER, at_ms INTEGER, run TEXT, node BLOB, owner BLOB, amount_nano INTEGER,
  evidence BLOB, progress TEXT, appeal_until_ms INTEGER, slash_to TEXT, rounds_before INTEGER, bond_nano INTEGER,
  appealed_idx INTEGER, appealed_ms INTEGER, appealed_by BLOB, appeal_reason TEXT, ended_idx INTEGER, ended_ms INTEGER,
  outcome TEXT
) WITHOUT ROWID;
CREATE INDEX slashes_by_place ON slashes (idx);
CREATE INDEX slashes_by_run ON slashes (run, idx);
CREATE INDEX slashes_by_node ON slashes (node, idx);
CREATE INDEX slashes_appealed ON slashes (idx) WHERE appealed_idx IS NOT NULL;
CREATE INDEX slashes_appealed_by_run ON slashes (run, idx) WHERE appealed_idx IS NOT NULL;
"""

FOLD_FORMAT = 1
"""Number of what the fold writes. It rises when the same entries give other rows in the same tables."""
INDEX_FORMAT = f"{FOLD_FORMAT}-{sha256(TABLES.encode()).hexdigest()[:12]}"
"""An index of another format is made again from the log, beside the old one, which is served meanwhile if it can be."""


SqlWrite = tuple[str, tuple[Any, ...]]
"""An SQL statement and its values."""


@dataclass(frozen=True, slots=True)
class FoldedEntry:
    """An entry with its author and position in the log."""

    index: int
    at_ms: int
    author: NodeId
    run: RunId | None
    entry: Any


@dataclass(slots=True)
class DirtyRows:
    """Rows to be read from the ledger state at the end of a batch. Dictionaries keep the order."""

    nodes: dict[NodeId, FoldedEntry] = field(default_factory=dict)
    """With the first entry that touched each: the index keeps a node's first entry."""
    accounts: dict[NodeId, None] = field(default_factory=dict)
    seen_ms: dict[NodeId, int] = field(default_factory=dict)
    runs: dict[RunId, FoldedEntry | None] = field(default_factory=dict)
    """With the entry that created it, if it is new."""
    steps: dict[tuple[RunId, Step], None] = field(default_factory=dict)
