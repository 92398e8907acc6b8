"""Strangers who fill the log: how far they get, measured against the coordinator's core over a virtual day."""

from prime_lab.attacks.catalog import (
    STRANGER_ATTACKS,
)
from prime_lab.attacks.flood_attacks import FLOODS, KEYS, flood_log, is_newcomer_admitted
from prime_protocol.constants import FREE_BURST_MS, FREE_BYTES_PER_DAY


def test_64_free_keys_grow_the_log_in_a_day_by_the_stated_bytes_and_a_newcomer_with_a_token_gets_in() -> None:
    flooded = flood_log()
    assert len(flooded.refusals) > KEYS, "the flood reached the limit"
    assert FREE_BYTES_PER_DAY < flooded.grown_bytes <= 2 * FREE_BYTES_PER_DAY
    assert all(0 < error.retry_after_ms <= FREE_BURST_MS for error in flooded.refusals), "each says when to come again"
    assert is_newcomer_admitted(flooded)
    assert len(flooded.core.state.owner_until_ms) < 4 * KEYS < len(flooded.core.state.nodes), "the others are whole"


def test_a_free_key_nudges_the_root_once() -> None:
    (spoiler,) = [attack for attack in STRANGER_ATTACKS if attack.name == "spoiler-entries"]
    assert FLOODS["spoiler-entries"]().is_as_listed(spoiler)
