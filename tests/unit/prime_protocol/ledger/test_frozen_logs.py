"""Every log that a release has frozen still replays to the same facts, and verifies offline."""

import json
from pathlib import Path
from typing import Any

import pytest
from tools.freeze_log import FORMAT, LOGS, compute_state_digest, count_kinds, read_leaves, read_release

from oracle.make_ledger_vectors import summarise
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_protocol.ledger.replay import ENTRY_RULES, replay
from prime_protocol.ledger.snapshots.snapshot import SNAPSHOT_FORMAT
from prime_protocol.wire.ids import NetworkId
from support.log_store import VERIFIER
from support.mirrors import write_mirror

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(LOGS.glob("*/expected.json"))
}
FROZEN = [(release, name) for release, expected in EXPECTED.items() for name in expected["logs"]]


@pytest.mark.parametrize(("release", "name"), FROZEN)
def test_a_frozen_log_replays_to_its_facts(release: str, name: str) -> None:
    expected = EXPECTED[release]
    log, network = expected["logs"][name], NetworkId(expected["network"])
    leaves = read_leaves(LOGS / release / f"{name}.entries.zst")
    ledger = replay(network, leaves)
    assert expected["format"] == FORMAT
    assert summarise(ledger) == log["facts"], "facts never change: the rules of an old log have"
    assert count_kinds(leaves, network) == log["kinds"]
    again = f"the state is written in another way: python tools/freeze_log.py --record {release}"
    assert log["state_digests"].get(str(SNAPSHOT_FORMAT)) == compute_state_digest(ledger), again


@pytest.mark.parametrize(("release", "name"), FROZEN)
def test_a_frozen_log_verifies_offline(release: str, name: str, tmp_path: Path) -> None:
    leaves = read_leaves(LOGS / release / f"{name}.entries.zst")
    write_mirror(tmp_path, leaves, (LOGS / release / f"{name}.checkpoint").read_bytes())
    verified = verify_log(tmp_path, VerifyOptions(key=VERIFIER))
    assert verified.head.size == verified.ledger.state.size == len(leaves)


def test_this_release_has_frozen_every_kind_of_entry() -> None:
    logs = EXPECTED[read_release()]["logs"].values()
    assert {kind for log in logs for kind in log["kinds"]} == {kind.__name__ for kind in ENTRY_RULES}, "make freeze"
