"""The committed logs: a story that holds every type of entry, one on a chain, and the numbers that every implementation
must reach.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from oracle.make_ledger_vectors import summarise, tell, tell_on_chain
from prime_protocol.ledger.replay import ENTRY_RULES, Ledger
from prime_protocol.wire.ids import NetworkId

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "ledger.json").read_text())
STORIES = {"embedded": tell, "on_chain": tell_on_chain}


@pytest.mark.parametrize("name", VECTOR["logs"])
def test_a_committed_log_replays_to_its_numbers(name: str) -> None:
    ledger, log = Ledger(NetworkId(VECTOR["network"])), VECTOR["logs"][name]
    kinds = {type(ledger.apply(bytes.fromhex(leaf))) for leaf in log["leaves"]}
    assert summarise(ledger) == log["end"]
    assert name == "on_chain" or kinds == set(ENTRY_RULES), "every type of entry stands in it"


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_written_with_the_same_bytes_again(name: str) -> None:
    assert [leaf.hex() for leaf in STORIES[name]().leaves] == VECTOR["logs"][name]["leaves"]
