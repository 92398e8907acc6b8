"""Rules for entries about the network, its value and its nodes. Each checks all first, then changes the state."""

from prime_protocol.constants import AMOUNT_NANO_MAX, DELEGATION_LIFE_MS_MAX, RESTORE_GAP, UNBONDINGS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Delegated,
    DelegationRevoked,
    Deposited,
    HeadNoted,
    LogRestored,
    NetworkCreated,
    NodeRegistered,
    NodeStatus,
    NodeStatusSet,
    Released,
    RulesChanged,
    SnapshotNoted,
    Staked,
    Unbonded,
    Withdrawn,
)
from prime_protocol.ledger.limits import drop_expired, is_free
from prime_protocol.ledger.randomness_chain import parse_public_key
from prime_protocol.ledger.rewards import add_to_pool
from prime_protocol.ledger.state import EntryContext, LedgerState
from prime_protocol.ledger.versions.plan import RulesPlan
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain, verify_delegation


def create_network(state: LedgerState, context: EntryContext, entry: NetworkCreated) -> None:
    if state.size:
        raise RemoteError("NetworkCreated", "must be entry 0")
    parse_public_key(entry.randomness.public_key)  # refuses a key that no round could be verified with
    rules = RulesPlan(before=entry.rules, after=entry.rules, notice_ms=entry.rules_notice_ms)
    rules.check_known(at_ms=context.at_ms, index=context.index)
    state.rules = rules
    state.coordinator = context.author
    state.domain = Domain(entry.chain_id, entry.contract)
    state.log_key = entry.log_key
    state.unbonding_ms = entry.unbonding_ms
    state.randomness = entry.randomness
    state.draw_margin_ms = entry.draw_margin_ms
    state.ticker = entry.ticker


def change_rules(state: LedgerState, context: EntryContext, entry: RulesChanged) -> None:
    state.rules = state.rules.announce(
        entry.rules, from_ms=entry.from_ms, release=entry.release, at_ms=context.at_ms, index=context.index
    )


def deposit(state: LedgerState, context: EntryContext, entry: Deposited) -> None:
    if entry.reference in state.references:
        raise RemoteError("reference", f"{entry.reference} was deposited before")
    if not 0 < entry.amount_nano <= AMOUNT_NANO_MAX - state.funds.deposited_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the books hold at most {AMOUNT_NANO_MAX}")
    if entry.run is not None and state.domain == EMBEDDED_DOMAIN:
        raise RemoteError("run", "is for a pool on a chain; here a run is funded from balances")
    if entry.run is not None and entry.run not in state.runs:
        raise RemoteError("run", f"{entry.run} was not created")
    state.references.add(entry.reference)
    state.funds.deposit(entry.account, entry.amount_nano)
    if entry.run is not None:
        add_to_pool(state, entry.run, entry.account, entry.amount_nano)


def withdraw(state: LedgerState, context: EntryContext, entry: Withdrawn) -> None:
    state.funds.withdraw(context.author, entry.amount_nano)


def register_node(state: LedgerState, context: EntryContext, entry: NodeRegistered) -> None:
    node = state.get_or_create_node(context.author)
    node.roles = entry.roles
    node.hardware = entry.hardware
    node.addresses = entry.addresses
    node.runs = entry.runs
    node.witness_key = entry.witness_key
    node.registered = context.position()
    node.version = context.version
    state.refresh_validator(context.author)


def set_node_status(state: LedgerState, context: EntryContext, entry: NodeStatusSet) -> None:
    node = state.node(entry.node)
    if entry.run is None:
        node.status, node.reason = entry.status, entry.reason
    elif entry.run not in state.runs:
        raise RemoteError("run", f"{entry.run} was not created")
    elif entry.status is NodeStatus.ACTIVE:
        state.runs[entry.run].suspended.pop(entry.node, None)
    else:
        state.runs[entry.run].suspended[entry.node] = entry.reason
    state.refresh_validator(entry.node, is_by_coordinator=True)


def delegate(state: LedgerState, context: EntryContext, entry: Delegated) -> None:
    """The newest delegation of a node counts. The node must want it too, or the owner could be forced upon it."""
    delegation = entry.delegation
    if delegation.network != context.network:
        raise RemoteError("delegation.network", f"is {delegation.network}, this is {context.network}")
    if context.author != delegation.node:
        raise RemoteError("delegation.node", f"is {delegation.node}, but {context.author} brings it")
    revoked_ms = state.revoked_ms.get((delegation.owner, delegation.node), -1)
    if delegation.issued_at_ms <= revoked_ms:
        raise RemoteError("delegation.issued_at_ms", f"is {delegation.issued_at_ms}, revoked was at {revoked_ms}")
    verify_delegation(delegation, entry.signature, state.domain, context.at_ms)
    node = state.get_or_create_node(delegation.node)
    node.delegated_until_ms = delegation.expires_at_ms
    node.delegated = context.position()
    state.change_owner(delegation.node, delegation.owner, context.at_ms)
    state.refresh_validator(delegation.node)


def revoke_delegation(state: LedgerState, context: EntryContext, entry: DelegationRevoked) -> None:
    """Also for a delegation that the node has not brought yet, or has left: it could bring the old one again.

    That takes a token, because the pair is remembered as long as a delegation may live. Without one, an owner loses
    nothing by waiting: it may revoke at any time what a node has brought, and has no stake behind it.
    """
    pair = (context.author, entry.node)
    if state.owners.get(entry.node) != context.author and is_free(state, *pair):
        raise RemoteError("node", f"{entry.node} is not yours; to revoke what it has not brought takes a balance")
    state.revoked_ms[pair] = context.at_ms
    drop_expired(state.revoked_ms, context.at_ms - DELEGATION_LIFE_MS_MAX)
    if state.owners.get(entry.node) == context.author:
        state.nodes[entry.node].delegated_until_ms = None
        state.change_owner(entry.node, entry.node, context.at_ms)
        state.refresh_validator(entry.node)


def stake(state: LedgerState, context: EntryContext, entry: Staked) -> None:
    state.node(entry.node)  # refuses an unknown node
    if state.owners[entry.node] != context.author:
        raise RemoteError("node", f"{entry.node} does not belong to {context.author}")
    state.funds.stake((context.author, entry.node), entry.amount_nano)
    for run in state.runs.values():
        if entry.node in run.records:
            record = run.records[entry.node]
            record.restake_nano = max(0, record.restake_nano - entry.amount_nano)
    state.refresh_validator(entry.node)


def unbond(state: LedgerState, context: EntryContext, entry: Unbonded) -> None:
    state.node(entry.node)  # refuses an unknown node
    state.funds.unbond(
        (context.author, entry.node),
        entry.amount_nano,
        matures_at_ms=context.at_ms + state.unbonding_ms,
        parts_max=UNBONDINGS_MAX,
    )
    state.refresh_validator(entry.node)


def release(state: LedgerState, context: EntryContext, entry: Released) -> None:
    state.funds.release((context.author, entry.node), context.at_ms)


def note_head(state: LedgerState, context: EntryContext, entry: HeadNoted) -> None:
    root = state.frontier.root()
    if entry.root != root:
        raise RemoteError("root", f"is {entry.root}, the {state.size} entries before have {root}")
    state.note_head(root, context.at_ms)


def note_snapshot(state: LedgerState, context: EntryContext, entry: SnapshotNoted) -> None:
    """The digest is not compared: the state that it is of has changed since. `log verify` compares it."""
    if not state.snapshot_size < entry.size <= state.size:
        problem = f"is {entry.size}, expected above {state.snapshot_size} and at most {state.size}"
        raise RemoteError("size", problem)
    state.snapshot_size = entry.size


def note_restore(state: LedgerState, context: EntryContext, entry: LogRestored) -> None:
    """Leave out the numbers of leases that lost entries may have granted: a node must not hold two with one number."""
    root = state.frontier.root()
    if (entry.size, entry.root) != (state.size, root):
        raise RemoteError("size", f"is {entry.size} with root {entry.root}, here are {state.size} with {root}")
    state.restored_size = entry.size
    state.restores += 1
    for run in state.runs.values():
        run.lease_next += RESTORE_GAP
