"""The systemd unit of a node."""

from pathlib import Path

import pytest

from prime_node.cli.setup import render_unit, unit_name
from prime_protocol.errors import LocalError


def test_a_unit_starts_the_node_of_one_folder() -> None:
    text = render_unit(Path("/opt/p/bin/prime-node"), Path("/home/a/prime-node"))
    assert "ExecStart=/opt/p/bin/prime-node start --folder /home/a/prime-node\n" in text
    assert "Restart=on-failure" in text
    assert "StartLimitIntervalSec=0" in text, "systemd gives up for good after a few failures otherwise"
    assert int(text.partition("RestartSec=")[2].split()[0]) >= 1, "and without a pause it would spin"
    odd = render_unit(Path("/opt/p/prime-node"), Path('/home/a b/50%"$'))
    assert 'ExecStart=/opt/p/prime-node start --folder "/home/a b/50%%\\"$$"\n' in odd
    with pytest.raises(LocalError, match="choose another folder"):
        render_unit(Path("/p"), Path("/a\nExecStartPre=/bin/evil"))


@pytest.mark.parametrize("name", ["", "../x", "A", "x y", "-x", "x" * 62])
def test_a_unit_has_a_plain_name(name: str) -> None:
    assert unit_name("prime-node") == "prime-node.service"
    with pytest.raises(LocalError, match="--name"):
        unit_name(name)
