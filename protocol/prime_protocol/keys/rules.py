"""The ledger's rules for the two rotations. Each checks all first, then changes the state."""

from prime_protocol.constants import KEY_ROTATION_PAUSE_MS, KEY_ROTATIONS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import (
    CoordinatorKeyRotated,
    KeyKind,
    KeyRotation,
    LogKeyRotated,
    verify_coordinator_rotation,
    verify_log_key_rotation,
)
from prime_protocol.ledger.state import EntryContext, LedgerState
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN


def rotate_log_key(state: LedgerState, context: EntryContext, entry: LogKeyRotated) -> None:
    check_rotation_pace(state, KeyKind.LOG, context.at_ms)
    old = VerifierKey.parse(state.log_key)
    new = verify_log_key_rotation(entry, context.network, index=context.index, old=old)
    used = {state.log_key, *(each.old for each in state.key_rotations)}
    if str(new) in used:
        raise RemoteError("log_key", f"{new} was a key of this log before")
    state.key_rotations.append(KeyRotation(context.index, context.at_ms, KeyKind.LOG, str(old), str(new)))
    state.log_key = str(new)


def rotate_coordinator_key(state: LedgerState, context: EntryContext, entry: CoordinatorKeyRotated) -> None:
    check_rotation_pace(state, KeyKind.COORDINATOR, context.at_ms)
    if state.domain != EMBEDDED_DOMAIN:
        raise RemoteError("CoordinatorKeyRotated", "the contracts of this network name the coordinator's key for good")
    old = context.author
    new = verify_coordinator_rotation(entry, context.network, index=context.index, old=old)
    # An address with a past may be a node's or an owner's, and a former coordinator's is one that was given up.
    if new in state.sequences or new in state.owners or new in state.funds.balances:
        raise RemoteError("coordinator", f"{new} is in use on this network; rotate to a fresh key")
    state.key_rotations.append(KeyRotation(context.index, context.at_ms, KeyKind.COORDINATOR, str(old), str(new)))
    state.coordinator = new
    _move_value(state, old, new)


def _move_value(state: LedgerState, old: NodeId, new: NodeId) -> None:
    """A thief of the old key must not get the coordinator's balance, nor what it has in pools."""
    balance_nano = state.funds.balances.pop(old, 0)
    if balance_nano:
        state.funds.balances[new] = balance_nano
    for run in state.runs.values():
        if funded_nano := run.funded.pop(old, 0):
            run.funded[new] = funded_nano


def check_rotation_pace(state: LedgerState, kind: KeyKind, at_ms: int) -> None:
    """Whether a key of this kind may be rotated at that time."""
    if len(state.key_rotations) >= KEY_ROTATIONS_MAX:
        raise RemoteError("key_rotations", f"are {KEY_ROTATIONS_MAX} already, the most that a log may have")
    last = max((each.at_ms for each in state.key_rotations if each.kind is kind), default=None)
    if last is not None and at_ms < last + KEY_ROTATION_PAUSE_MS:
        wait_ms = last + KEY_ROTATION_PAUSE_MS - at_ms
        problem = f"the {kind} key was rotated less than {KEY_ROTATION_PAUSE_MS // 3_600_000} hours before"
        raise RemoteError("key_rotations", problem, retry_after_ms=wait_ms)
