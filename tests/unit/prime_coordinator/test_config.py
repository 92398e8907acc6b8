"""What the coordinator's settings follow from one another."""

from dataclasses import replace
from pathlib import Path

import pytest

from prime_coordinator.config import CoordinatorConfig
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.config import ListenConfig
from prime_runtime.settings.schema import ConfigError

LOCAL = CoordinatorConfig(folder=Path("/somewhere"))


def test_gossip_is_for_this_machine_only_where_the_server_is() -> None:
    assert LOCAL.gossip.listen == "/ip4/127.0.0.1/tcp/0"
    assert replace(LOCAL, listen=ListenConfig(host="localhost")).gossip.listen == "/ip4/127.0.0.1/tcp/0"
    assert replace(LOCAL, listen=ListenConfig(host="0.0.0.0")).gossip == P2PConfig()
    assert replace(LOCAL, public_url="https://swarm.example.org").gossip == P2PConfig(), "behind a proxy"
    chosen = P2PConfig(listen="/ip4/0.0.0.0/tcp/4001")
    assert replace(LOCAL, p2p=chosen).gossip is chosen


@pytest.mark.parametrize("url", ["swarm.example.org", "ftp://swarm.example.org", "https://u:p@swarm.example.org"])
def test_a_public_url_that_nobody_could_open_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        replace(LOCAL, public_url=url)
