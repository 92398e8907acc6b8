"""A delegation file is accepted only for its node, in its time, under its owner's signature."""

from pathlib import Path

import pytest

from prime_node.storage.keys import read_delegation, write_delegation
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import Delegation

KEY = WalletKey.from_secret(b"\x07" * 32)
NODE = NodeId(b"\x02" * 20)
NETWORK = NetworkId("devnet")


def delegation(**changes: object) -> Delegation:
    usual = {"network": NETWORK, "owner": KEY.node, "node": NODE, "issued_at_ms": 1_000, "expires_at_ms": 9_000}
    return Delegation(**usual | changes)


def test_a_delegation_goes_by_file_from_owner_to_node(tmp_path: Path) -> None:
    path = tmp_path / "delegation.json"
    write_delegation(path, KEY, delegation())
    read = read_delegation(path, network=NETWORK, node=NODE, now_ms=5_000)
    assert read.delegation == delegation()


@pytest.mark.parametrize(
    ("given", "now_ms", "problem"),
    [
        ({}, 9_000, "not in force"),
        ({"node": NodeId(b"\x03" * 20)}, 5_000, "is for 0x0303"),
        ({"network": NetworkId("mainnet")}, 5_000, "on mainnet, this node"),
        ({"owner": NODE}, 5_000, "not valid"),
    ],
)
def test_a_delegation_that_is_not_for_this_node_now_is_refused(
    given: dict[str, object], now_ms: int, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "delegation.json"
    write_delegation(path, KEY, delegation(**given))
    with pytest.raises(LocalError, match=problem):
        read_delegation(path, network=NETWORK, node=NODE, now_ms=now_ms)


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", '{"issued_at_ms": true, "expires_at_ms": 1}', "\xff" * 9000])
def test_a_damaged_delegation_is_told_as_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "delegation.json"
    path.write_text(text)
    with pytest.raises(LocalError, match="ask its owner for a new one"):
        read_delegation(path, network=NETWORK, node=NODE, now_ms=5_000)
    with pytest.raises(LocalError, match="cannot read the delegation"):
        read_delegation(tmp_path / "absent", network=NETWORK, node=NODE, now_ms=5_000)
