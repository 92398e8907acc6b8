"""Rules for entries about the network, its value and its nodes. Each checks all first, then changes the state."""

from prime_protocol.constants import AMOUNT_NANO_MAX, UNBONDINGS_MAX
from prime_protocol.entries import (
    Delegated,
    DelegationRevoked,
    Deposited,
    HeadNoted,
    NetworkCreated,
    NodeRegistered,
    NodeStatusSet,
    Released,
    Staked,
    Unbonded,
    Withdrawn,
)
from prime_protocol.errors import RemoteError
from prime_protocol.receipts import check_delegation
from prime_protocol.rewards import fill_pool
from prime_protocol.state import State
from prime_protocol.turn import Turn
from prime_protocol.typed_data import EMBEDDED, Domain


def create_network(state: State, turn: Turn, entry: NetworkCreated) -> None:
    if state.size:
        raise RemoteError("NetworkCreated", "must be entry 0")
    state.coordinator = turn.author
    state.domain = Domain(entry.chain_id, entry.contract)
    state.log_key = entry.log_key
    state.unbonding_ms = entry.unbonding_ms


def deposit(state: State, turn: Turn, entry: Deposited) -> None:
    if entry.reference in state.references:
        raise RemoteError("reference", f"{entry.reference} was deposited before")
    if not 0 < entry.amount_nano <= AMOUNT_NANO_MAX - state.books.deposited_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the books hold at most {AMOUNT_NANO_MAX}")
    if entry.run is not None and state.domain == EMBEDDED:
        raise RemoteError("run", "is for a pool on a chain; here a run is funded from balances")
    if entry.run is not None and entry.run not in state.runs:
        raise RemoteError("run", f"{entry.run} was not created")
    state.references.add(entry.reference)
    state.books.deposit(entry.account, entry.amount_nano)
    if entry.run is not None:
        fill_pool(state, entry.run, entry.account, entry.amount_nano)


def withdraw(state: State, turn: Turn, entry: Withdrawn) -> None:
    state.books.withdraw(turn.author, entry.amount_nano)


def register_node(state: State, turn: Turn, entry: NodeRegistered) -> None:
    node = state.enter(turn.author)
    node.roles = entry.roles
    node.hardware = entry.hardware
    node.addresses = entry.addresses
    node.registered = turn.place()
    node.version = turn.version
    state.refresh_validator(turn.author)


def set_node_status(state: State, turn: Turn, entry: NodeStatusSet) -> None:
    node = state.node(entry.node)
    node.status, node.reason = entry.status, entry.reason
    state.refresh_validator(entry.node)


def delegate(state: State, turn: Turn, entry: Delegated) -> None:
    """The newest delegation of a node counts. The node must want it too, or the owner could be forced upon it."""
    delegation = entry.delegation
    if delegation.network != turn.network:
        raise RemoteError("delegation.network", f"is {delegation.network}, this is {turn.network}")
    if turn.author != delegation.node:
        raise RemoteError("delegation.node", f"is {delegation.node}, but {turn.author} brings it")
    revoked_ms = state.revoked_ms.get((delegation.owner, delegation.node), -1)
    if delegation.issued_at_ms <= revoked_ms:
        raise RemoteError("delegation.issued_at_ms", f"is {delegation.issued_at_ms}, revoked was at {revoked_ms}")
    check_delegation(delegation, entry.signature, state.domain, turn.at_ms)
    state.enter(delegation.node).delegated_until_ms = delegation.expires_at_ms
    state.owners[delegation.node] = delegation.owner
    state.refresh_validator(delegation.node)


def revoke_delegation(state: State, turn: Turn, entry: DelegationRevoked) -> None:
    """Also for a delegation that the node has not brought yet, or has left: it could bring the old one again."""
    state.revoked_ms[(turn.author, entry.node)] = turn.at_ms
    if state.owners.get(entry.node) == turn.author:
        state.nodes[entry.node].delegated_until_ms = None
        state.owners[entry.node] = entry.node
        state.refresh_validator(entry.node)


def stake(state: State, turn: Turn, entry: Staked) -> None:
    state.node(entry.node)  # refuses an unknown node
    if state.owners[entry.node] != turn.author:
        raise RemoteError("node", f"{entry.node} does not belong to {turn.author}")
    state.books.stake((turn.author, entry.node), entry.amount_nano)
    state.refresh_validator(entry.node)


def unbond(state: State, turn: Turn, entry: Unbonded) -> None:
    state.node(entry.node)  # refuses an unknown node
    state.books.unbond(
        (turn.author, entry.node),
        entry.amount_nano,
        matures_at_ms=turn.at_ms + state.unbonding_ms,
        parts_max=UNBONDINGS_MAX,
    )
    state.refresh_validator(entry.node)


def release(state: State, turn: Turn, entry: Released) -> None:
    state.books.release((turn.author, entry.node), turn.at_ms)


def note_head(state: State, turn: Turn, entry: HeadNoted) -> None:
    root = state.frontier.root()
    if entry.root != root:
        raise RemoteError("root", f"is {entry.root}, the {state.size} entries before have {root}")
    state.note_head(root)
