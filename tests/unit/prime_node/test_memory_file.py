"""What a node must remember comes back as it was, and a damaged file costs nothing but itself."""

from pathlib import Path

import pytest

from prime_node.events import Answer, Memory, Parcel
from prime_node.memory_file import MemoryFile, decode_memory, encode_memory
from prime_protocol.entries import LeaseEnded, NodeRegistered, Role
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, RunId

REGISTERED = NodeRegistered(roles=(Role.RELAY,), hardware="a laptop", addresses=("http://10.0.0.1:8450",))
FULL = Memory(
    parcels=(
        Parcel(REGISTERED, None, 5),
        Parcel(LeaseEnded(lease=3, reason="no time"), RunId("run-1"), 7, Digest(b"\x01" * 32)),
    ),
    answers=(Answer(3, Digest(b"\x02" * 32), 9),),
    is_staked=True,
    registered=REGISTERED,
)


@pytest.mark.parametrize("memory", [Memory(), FULL])
def test_what_was_saved_is_loaded(memory: Memory, tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "memory")
    file.save(memory)
    assert file.load() == memory


def test_nothing_or_damage_is_an_empty_memory(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "memory")
    assert file.load() == Memory()
    (tmp_path / "memory").write_bytes(encode_memory(FULL)[:-1])
    assert file.load() == Memory()


def test_an_entry_that_no_node_writes_is_refused() -> None:
    with pytest.raises(RemoteError, match="is no entry"):
        decode_memory(encode_memory(FULL).replace(b"LeaseEnded", b"LeaseEnddd"))
