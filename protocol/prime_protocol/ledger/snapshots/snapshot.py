"""The ledger state as bytes: a versioned canonical form, so that a restart or an auditor need not replay the whole log.

The form follows from the dataclasses of the state. A dataclass is a map of its fields, and a field that has its default
value is left out: a release that adds a field with a default still reads older snapshots, and their digests stay valid.
The order of a mapping is part of the state, because rules may depend on it; a set is sorted. So everyone who folds the
same entries gets the same bytes, and their digest can stand in the log (`SnapshotNoted`).
"""

import msgpack

from prime_protocol.constants import SNAPSHOT_BYTES_MAX
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.ledger.snapshots.codec import UnreadableItem, get_codec
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NetworkId, hash_bytes

SNAPSHOT_FORMAT = 2
"""Of the bytes. A field that is added with a default does not change it; a field that changes its meaning does."""
UNPACKED_FORMAT = 1
"""Of release 0.1.0, where every submission is a map. A party still reads those that it wrote itself."""


def encode_snapshot(network: NetworkId, state: LedgerState) -> bytes:
    """The one encoding of a state."""
    packed: bytes = msgpack.Packer().pack([SNAPSHOT_FORMAT, network, get_codec(LedgerState).write(state)])
    return packed


def compute_snapshot_digest(snapshot: bytes) -> Digest:
    return hash_bytes(snapshot)


def decode_snapshot(network: NetworkId, snapshot: bytes, *, is_canonical: bool = False) -> LedgerState:
    """The state in a snapshot of this network; RemoteError names what is wrong.

    `is_canonical` is for bytes that this party has encoded itself, as their digest shows. It spares a second encoding,
    and closed submissions stay packed until they are needed: all but a tenth of the time.
    """
    if len(snapshot) > SNAPSHOT_BYTES_MAX:
        raise RemoteError("snapshot", f"is {len(snapshot)} bytes, the limit is {SNAPSHOT_BYTES_MAX}")
    try:
        plain = msgpack.unpackb(snapshot)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteError("snapshot", f"cannot be read: {str(error) or type(error).__name__}") from None
    if type(plain) is not list or len(plain) != 3:
        raise RemoteError("snapshot", "is not a list of format, network and state")
    if plain[0] != SNAPSHOT_FORMAT and not (is_canonical and plain[0] == UNPACKED_FORMAT):
        raise RemoteError("snapshot.format", explain_version(plain[0], SNAPSHOT_FORMAT))
    if plain[1] != network:
        raise RemoteError("snapshot.network", f"is {plain[1]}, expected {network}")
    try:
        state: LedgerState = next(iter(get_codec(LedgerState).read_all([plain[2]])))
        if not is_canonical:
            for run in state.runs.values():
                run.submissions.unpack(run.submissions)
    except UnreadableItem as error:
        raise RemoteError(f"snapshot{error.field}", error.problem) from None
    if not is_canonical and encode_snapshot(network, state) != snapshot:
        raise RemoteError("snapshot", "is not in the canonical encoding")
    if plain[0] == UNPACKED_FORMAT:
        _add_unsettled(state)
    return state


def _add_unsettled(state: LedgerState) -> None:
    """What format 1 does not have."""
    for run in state.runs.values():
        run.unsettled = {name for name, submission in run.submissions.items() if submission.outcome is None}
