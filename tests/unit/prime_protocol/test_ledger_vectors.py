"""The committed log: a story that holds every type of entry, and the numbers that every implementation must reach."""

import json
from pathlib import Path
from typing import Any

from oracle.make_ledger_vectors import summarise, tell

from prime_protocol.ids import NetworkId
from prime_protocol.ledger import RULES, Ledger

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "ledger.json").read_text())


def test_the_committed_log_replays_to_its_numbers() -> None:
    ledger = Ledger(NetworkId(VECTOR["network"]))
    kinds = {type(ledger.apply(bytes.fromhex(leaf))) for leaf in VECTOR["leaves"]}
    assert summarise(ledger) == VECTOR["end"]
    assert kinds == set(RULES), "every type of entry stands in it"


def test_the_story_is_written_with_the_same_bytes_again() -> None:
    assert [leaf.hex() for leaf in tell().leaves] == VECTOR["leaves"]
