"""The terminal shows what the report says: where it stands, what it holds, what arrives, and a fork before all else."""

from typing import Any

import pytest

from prime_node.status import bar
from prime_node.view import render, show_bytes, show_time

REPORT: dict[str, Any] = {
    "state": "running",
    "node": "0xab",
    "peer_id": "16Uiu2",
    "role": "relay",
    "network": "devnet",
    "run": "demo",
    "started_ms": 0,
    "now_ms": 61_000,
    "coordinator": {"url": "http://c:1", "is_reachable": True, "problem": ""},
    "p2p": {"text": "off: p2p.enabled is false; records come from the coordinator over HTTP", "addresses": []},
    "serving": {"urls": [], "text": "outbound only", "nodes_in_run": 2},
    "weights": {"problem": "", "held": [], "transfers": []},
    "upload": {"slots": 4, "slots_free": 3, "bytes_per_s_max": None, "bytes_per_day_max": None, "bytes_today": 0},
    "heads": {"size": 7, "compared": 2, "unproven": 0, "forks": []},
    "parts": [{"name": "agent", "restarts": 0, "last_error": ""}],
}


def test_a_node_at_rest_says_where_it_stands() -> None:
    text = render(REPORT)
    assert "0xab  (relay, up 1 min 1 s)" in text
    assert "http://c:1  reached" in text
    assert "records come from the coordinator over HTTP" in text
    assert "weights      none yet" in text
    assert "head over 7 entries, heads of others that agree: 2" in text


def test_a_download_is_shown_with_its_bar_rate_sources_and_end() -> None:
    row = {
        "step": 3,
        "kind": "delta",
        "bar": "##+.",
        "shards": 4,
        "shards_held": 2,
        "held_bytes": 2_000_000,
        "total_bytes": 4_000_000,
        "bytes_per_s": 1_500_000,
        "sources": 2,
        "finish_ms": 2_000,
        "corrupt": 1,
    }
    held = {"step": 2, "kind": "keyframe", "total_bytes": 9_000_000_000, "root": "0x01", "is_complete": True}
    weights = {"problem": "no room", "transfers": [row], "held": [held, held | {"is_complete": False}]}
    text = render(REPORT | {"weights": weights})
    assert "step 3       delta     [##+.] 2/4 shards, 2.0 MB of 4.0 MB" in text
    assert "1.5 MB/s from 2 nodes, done in 2 s, 1 shards came wrong" in text
    assert text.count("keyframe  held, 9.0 GB, root 0x01") == 1
    assert "weights      no room" in text


def test_trouble_is_told_first_or_in_capitals() -> None:
    coordinator = REPORT["coordinator"] | {"is_reachable": False, "problem": "connection refused"}
    upload = REPORT["upload"] | {"bytes_per_day_max": 10**9, "bytes_per_s_max": 10**6}
    heads = REPORT["heads"] | {"forks": ["fork-1.txt"], "unproven": 1}
    parts = [{"name": "heads", "restarts": 2, "last_error": "no key"}]
    p2p = {"text": "on: 3 peers, 9 known", "addresses": ["/ip4/1.2.3.4/tcp/1/p2p/16U"]}
    changes = {"coordinator": coordinator, "upload": upload, "heads": heads, "parts": parts, "p2p": p2p}
    text = render(REPORT | changes)
    assert text.startswith("!!! THE LOG TELLS TWO HISTORIES")
    assert "NOT REACHED: connection refused" in text
    assert "0 B today of 1.0 GB, at most 1.0 MB/s" in text
    assert "unproven: 1" in text
    assert "heads        began again 2 times; last: no key" in text
    assert "/ip4/1.2.3.4/tcp/1/p2p/16U" in text


def test_a_node_that_has_not_joined_says_what_it_waits_for() -> None:
    waiting = {"state": "joining", "problem": "connection refused", "started_ms": 0, "now_ms": 3_600_000}
    assert render(waiting) == "joining for 1 h 0 min: connection refused\n"
    assert render(waiting | {"problem": ""}) == "joining for 1 h 0 min: asking the coordinator\n"


@pytest.mark.parametrize(
    ("held", "coming", "shards", "cells", "shown"),
    [
        (0b1011, 0b0100, 4, 40, "##+#"),
        (0b0011, 0b0100, 4, 2, "#+"),
        (0b0001, 0b0000, 4, 2, "+."),
        (0b0011, 0b1100, 4, 2, "#+"),
        (2**100 - 1, 0, 100, 40, "#" * 40),
        (0, 0, 1, 40, "."),
    ],
)
def test_a_bar_shows_how_far_each_part_is(held: int, coming: int, shards: int, cells: int, shown: str) -> None:
    size = (shards + 7) // 8
    assert bar(held.to_bytes(size, "little"), coming.to_bytes(size, "little"), shards, cells) == shown


def test_numbers_are_for_people() -> None:
    assert [show_bytes(count) for count in (0, 999, 1000, 2_500_000, 10**16)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "10000.0 TB",
    ]
    assert [show_time(each) for each in (None, 900, 61_000, 7_260_000)] == ["unknown", "0 s", "1 min 1 s", "2 h 1 min"]
