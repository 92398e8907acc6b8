"""The settings of the libp2p half: wrong ones are told before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from prime_runtime.gossip.config import BOOTSTRAP_MAX, P2PConfig, P2PMode
from prime_runtime.settings.loader import load_config
from prime_runtime.settings.schema import ConfigError
from support.gossip_network import ANN

PEER = ANN.peer_id()


def test_the_defaults_are_a_valid_section() -> None:
    assert load_config(P2PConfig, {}, {}) == P2PConfig()


@pytest.mark.parametrize(
    ("written", "mode"), [("auto", P2PMode.AUTO), ("on", P2PMode.ON), ("off", P2PMode.OFF), ("true", P2PMode.ON)]
)
def test_gossip_starts_by_itself_always_or_never(written: str, mode: P2PMode) -> None:
    assert load_config(P2PConfig, {"enabled": written}, {}).enabled is mode


def test_a_file_of_release_0_1_0_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for written, mode in (("true", P2PMode.ON), ("false", P2PMode.OFF)):
        file.write_text(f"enabled = {written}")
        assert load_config(P2PConfig, {}, {}, file).enabled is mode
    file.write_text('enabled = "perhaps"')
    with pytest.raises(ConfigError, match="auto"):
        load_config(P2PConfig, {}, {}, file)


@pytest.mark.parametrize(
    "listen", ["", "/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4001", "/ip4/127.0.0.1/tcp/65535", "/ip6/::1/tcp/0"]
)
def test_every_way_to_listen_is_taken(listen: str) -> None:
    assert P2PConfig(listen=listen).listen == listen


@pytest.mark.parametrize(
    "listen",
    ["4001", "/ip4/0.0.0.0/udp/1", "/ip4/::/tcp/1", "/ip6/0.0.0.0/tcp/1", "/ip4/0.0.0.0/tcp/65536", "/dns4/a/tcp/1"],
)
def test_any_other_listen_address_is_refused_with_an_example(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"p2p\.listen .*write /ip4/0\.0\.0\.0/tcp/4001"):
        P2PConfig(listen=listen)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bootstrap": ("/ip4/203.0.113.9/tcp/1",)}, "p2p.bootstrap"),
        ({"bootstrap": (f"/ip4/203.0.113.9/tcp/1/p2p/{PEER}",) * (BOOTSTRAP_MAX + 1)}, "65 peers"),
        ({"announce": (f"/ip4/203.0.113.9/tcp/1/p2p/{PEER}",)}, "p2p.announce"),
        ({"announce": ("/ip4/203.0.113.9/tcp/1",) * 9}, "9 addresses"),
        ({"peers_target": 20, "connections_max": 10}, "peers_target"),
    ],
)
def test_what_cannot_work_is_told_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace(".", r"\.")):
        P2PConfig(**given)


@pytest.mark.parametrize(
    ("listen", "allow", "dials"),
    [
        ("/ip4/0.0.0.0/tcp/0", False, False),
        ("/ip6/::/tcp/0", False, False),
        ("", False, False),
        ("/ip4/8.8.8.8/tcp/4001", False, False),
        ("/ip4/127.0.0.1/tcp/0", False, True),
        ("/ip4/10.1.2.3/tcp/0", False, True),
        ("/ip4/0.0.0.0/tcp/0", True, True),
    ],
)
def test_private_addresses_of_strangers_are_dialled_only_from_inside(listen: str, allow: bool, dials: bool) -> None:
    assert P2PConfig(listen=listen, allow_private=allow).dials_private is dials
