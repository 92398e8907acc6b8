"""What a node must remember comes back as it was, and a damaged file costs nothing but itself."""

from pathlib import Path

import pytest

from prime_node.agent.events import LeaseAnswer, PendingEntry, SavedState
from prime_node.storage.saved_state import SavedStateFile, decode_state, encode_state
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LeaseEnded, NodeRegistered, Role
from prime_protocol.wire.ids import Digest, RunId

REGISTERED = NodeRegistered(roles=(Role.RELAY,), hardware="a laptop", addresses=("http://10.0.0.1:8450",))
FULL = SavedState(
    pending=(
        PendingEntry(REGISTERED, None, 5),
        PendingEntry(LeaseEnded(lease=3, reason="no time"), RunId("run-1"), 7, Digest(b"\x01" * 32)),
    ),
    answers=(LeaseAnswer(3, Digest(b"\x02" * 32), 9),),
    is_staked=True,
    registered=REGISTERED,
)


@pytest.mark.parametrize("state", [SavedState(), FULL])
def test_what_was_saved_is_loaded(state: SavedState, tmp_path: Path) -> None:
    file = SavedStateFile(tmp_path / "memory")
    file.save(state)
    assert file.load() == state


def test_nothing_or_damage_is_an_empty_memory(tmp_path: Path) -> None:
    file = SavedStateFile(tmp_path / "memory")
    assert file.load() == SavedState()
    (tmp_path / "memory").write_bytes(encode_state(FULL)[:-1])
    assert file.load() == SavedState()


def test_an_entry_that_no_node_writes_is_refused() -> None:
    with pytest.raises(RemoteError, match="is not an entry"):
        decode_state(encode_state(FULL).replace(b"LeaseEnded", b"LeaseEnddd"))
