"""Whether a node appeals before the court by itself, and what it remembers of it."""

import json
import logging
from pathlib import Path

import pytest

from prime_node.config import NodeConfig
from prime_node.settlement.appeals import AppealAction, ChainAppeals, decide_appeal
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock

KEY = WalletKey.from_secret(b"\x07" * 32)
NAME = Digest(b"\x05" * 32)
DOMAIN = "5:0x" + "0c" * 20


def make(folder: Path, *, bond_max_nano: int = 0, rpc: str = "", domain: str = DOMAIN) -> ChainAppeals:
    config = NodeConfig(folder=folder, rpc=rpc, domain=domain, appeal_bond_max_nano=bond_max_nano)
    return ChainAppeals(config, KEY, SystemClock())


@pytest.mark.parametrize(
    ("status", "now_s", "bond_nano", "expected"),
    [
        (0, 0, 0, AppealAction.WAIT),
        (1, 99, 10, AppealAction.BOND),
        (1, 99, 11, AppealAction.TOO_EXPENSIVE),
        (1, 100, 10, AppealAction.TOO_LATE),
        (2, 99, 10, AppealAction.DONE),
        (3, 99, 10, AppealAction.DONE),
        (4, 99, 10, AppealAction.DONE),
    ],
)
def test_a_bond_is_put_up_in_time_and_inside_what_the_owner_allows(
    status: int, now_s: int, bond_nano: int, expected: AppealAction
) -> None:
    assert decide_appeal(status, appeal_until_s=100, now_s=now_s, bond_nano=bond_nano, bond_max_nano=10) is expected


@pytest.mark.parametrize(("bond_max_nano", "rpc"), [(0, "http://127.0.0.1:1"), (5, "")])
def test_without_permission_no_bond_is_paid_and_the_log_says_how(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bond_max_nano: int, rpc: str
) -> None:
    appeals = make(tmp_path, bond_max_nano=bond_max_nano, rpc=rpc)
    with caplog.at_level(logging.WARNING):
        appeals.request_appeal(NAME)
    assert f"prime-node appeal {NAME}" in caplog.text
    assert not list(tmp_path.iterdir())


def test_where_there_is_no_chain_there_is_nothing_to_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, bond_max_nano=5, rpc="http://127.0.0.1:1", domain="").request_appeal(NAME)
    assert not caplog.text


async def test_a_chain_that_is_away_is_asked_again_and_a_restart_forgets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, bond_max_nano=5, rpc="http://127.0.0.1:1").request_appeal(NAME)
    again = make(tmp_path, bond_max_nano=5, rpc="http://127.0.0.1:1")
    await again.process_pending()
    assert "the appeal to the court is delayed" in caplog.text
    assert list(json.loads((tmp_path / "chain" / "appeals.json").read_text())) == [str(NAME)]


def test_a_damaged_appeals_file_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "appeals.json").write_text('{"no name": 1}')
    make(tmp_path, bond_max_nano=5, rpc="http://127.0.0.1:1")
    assert "is damaged" in caplog.text
