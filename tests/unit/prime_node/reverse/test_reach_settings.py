"""What the settings say about reaching a node."""

from pathlib import Path

import pytest

from prime_node.config import NodeConfig, ReachConfig
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.config import ListenConfig
from prime_runtime.settings.schema import ConfigError

HERE, EVERYWHERE = "/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/0"


@pytest.mark.parametrize("coordinator", ["http://127.0.0.1:8440", "http://localhost:8440", "http://[::1]:8440"])
def test_a_node_of_a_coordinator_on_this_machine_gossips_on_this_machine_unless_it_announces(coordinator: str) -> None:
    assert NodeConfig(folder=Path(), coordinator=coordinator).gossip.listen == HERE
    announcing = NodeConfig(folder=Path(), coordinator=coordinator, announce=("http://192.0.2.1:8450",))
    assert announcing.gossip.listen == EVERYWHERE
    chosen = P2PConfig(listen="/ip4/0.0.0.0/tcp/4001")
    assert NodeConfig(folder=Path(), coordinator=coordinator, p2p=chosen).gossip.listen == chosen.listen


def test_a_node_of_a_coordinator_elsewhere_gossips_on_all_interfaces() -> None:
    for coordinator in ("https://coordinator.example", "http://192.168.0.7:8440", ""):
        assert NodeConfig(folder=Path(), coordinator=coordinator).gossip.listen == EVERYWHERE


def test_a_port_that_only_this_machine_reaches_is_not_mapped() -> None:
    with pytest.raises(ConfigError, match="that the router can reach"):
        NodeConfig(folder=Path(), reach=ReachConfig(map_port=True), listen=ListenConfig(host="127.0.0.1"))
    NodeConfig(folder=Path(), reach=ReachConfig(map_port=True), listen=ListenConfig(host="0.0.0.0"))
