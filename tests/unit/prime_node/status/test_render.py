"""What an owner is shown: the same facts in the terminal, on the full screen and on the page, what is wrong first."""

import io
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from prime_node.cli.status import render_report
from prime_node.status.alerts import list_alerts
from prime_node.status.render import draw_bar, render_html, render_screen, render_text
from prime_node.status.report import P2P_OFF, describe_p2p, draw_shards
from prime_node.status.status_model import Fact, Tone, make_status_model
from prime_protocol.errors import LocalError
from prime_runtime.gossip.config import P2PStatus
from support.node_report import JOB, JOINING, RELAY, REPORT, RUN_ROW, TRANSFER, changed

GPU = {"number": 0, "uuid": "GPU-1", "name": "RTX", "problem": "", "is_paused": False}


def screen_of(report: dict[str, Any], width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width, height=60, force_terminal=False, legacy_windows=False).print(render_screen(report))
    return file.getvalue()


def text_of(page: str) -> str:
    """What a page shows, without its tags."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            found.append(data)

    Reader().feed(page)
    return " ".join(" ".join(found).split())


@pytest.mark.parametrize("show", [render_text, screen_of, lambda report: text_of(render_html(report))])
def test_a_worker_at_work_says_where_it_stands(show: Any) -> None:
    text = " ".join(show(REPORT).split())
    for fact in (
        "quiet-amber-otter",
        REPORT["node"],
        "working on lease 42",
        "worker, up 1 min 1 s",
        "demo of devnet, 2 nodes serve it",
        "http://c:1 reached",
        "ready",
        "earned 1, balance 2.5, staked 100",
        "to be paid 1 files when their steps end",
        "ready: torch on cpu in float32",
        "step 3: 8/32 rollouts of 4 slots, due in 60 s",
        "1 more leases, due later",
        "812 tokens/s",
        "1 credited",
        "0x5f5f5f5f5f5f",
        "delta, 2.0 MB of 4.0 MB, 1.5 MB/s from 2 nodes, done in 2 s",
        "keyframe, 9.0 GB",
        "tree head of 7 entries, agrees with 2 heads of other nodes",
        "outbound only",
        "3 of 4 slots free, 0 B today",
    ):
        assert fact in text, f"{fact!r} is not in: {text}"


def test_a_relay_shows_no_work_and_a_joining_node_what_it_waits_for() -> None:
    relay = render_text(RELAY)
    assert "keeping weights" in relay
    assert not any(word in relay for word in ("engine", "eligibility", "lease", "verdicts"))
    assert render_text(JOINING).splitlines() == [
        "!!! not joined yet: cannot reach http://c:1: connection refused",
        f"quiet-amber-otter  {REPORT['node']}",
        "joining for 1 h 0 min",
    ]
    assert "not joined yet" in screen_of(JOINING)
    assert "not joined yet" in render_html(JOINING)
    assert list_alerts(JOINING | {"problem": ""}) == []


CLAIM = {"index": 9, "problem": "twice", "rule": "ledger", "accusers": ["0x11"], "answer": "unknown"}
TROUBLES = [
    (changed(heads={"forks": ["fork-1.txt"]}), "THE LOG HAS FORKED"),
    (
        changed(accusations={"is_stopped": True, "reason": "THE COORDINATOR BROKE A RULE: entry 9"}),
        "THE COORDINATOR BROKE A RULE: entry 9. The node has stopped working",
    ),
    (changed(accusations={"claims": [CLAIM]}), "0x11 claims that entry 9 of the log breaks a rule: twice"),
    (
        changed(accusations={"claims": [CLAIM | {"accusers": ["0x11", "0x22"]}]}),
        "2 nodes claim that entry 9 of the log breaks a rule: twice",
    ),
    (changed(replay={"problem": "no source"}), "the log's rules are not being checked: no source"),
    (
        changed(coordinator={"is_reachable": False, "problem": "connection refused", "answered_ms_ago": 603_000}),
        "the coordinator has not answered for 10 min 3 s (the node keeps trying): connection refused",
    ),
    (
        changed(coordinator={"is_reachable": False, "problem": "refused", "answered_ms_ago": None}),
        "the coordinator has not answered yet: refused",
    ),
    (changed(account={"eligibility": "outdated", "is_eligible": False}), "pip install --upgrade prime-swarm"),
    (changed(account={"eligibility": "unstaked", "is_eligible": False}), "prime-node stake"),
    (
        changed(coordinator={"refusal": "this machine's clock is 1 h behind"}),
        "this node's messages: this machine's clock is 1 h",
    ),
    (
        changed(coordinator={"upgrade_by_ms": 86_461_000}),
        "works until 1970-01-02 00:01:01 UTC, in 24 h; then the run needs",
    ),
    (
        changed(engine={"state": "broken", "last_error": "CUDA out of memory"}),
        "CUDA out of memory. Try: prime-node doctor",
    ),
    (
        changed(tokenizer={"problem": "tokenizer.json of w fails: PanicException"}),
        "the run's tokenizer cannot be used: tokenizer.json of w fails: PanicException",
    ),
    (REPORT | {"gpus": [GPU | {"problem": "it stopped answering"}]}, "GPU 0 is lost"),
    (changed(weights={"problem": "no room"}), "cannot load weights: no room"),
    (
        changed(jobs={"last": [JOB | {"state": "rejected", "reason": "invalid: late"}]}),
        "lease 41 was rejected: invalid: late. See: prime-node rollouts 41",
    ),
    (REPORT | {"parts": [{"name": "heads", "restarts": 3, "last_error": "no key"}]}, "the part heads keeps failing"),
]


@pytest.mark.parametrize(("report", "expected"), TROUBLES)
def test_alerts_come_first_and_say_what_to_do(report: dict[str, Any], expected: str) -> None:
    assert expected in render_text(report).splitlines()[0]
    assert expected in text_of(render_html(report))
    assert "alerts" in screen_of(report)


def test_nothing_is_wrong_with_a_node_at_work_at_rest_or_held() -> None:
    held = changed(owner={"hold": "outside the hours"}, account={"eligibility": "leaving", "is_eligible": False})
    for report in (
        REPORT,
        RELAY,
        held,
        changed(account={"eligibility": "probing", "is_eligible": True}),
        REPORT | {"account": None},
    ):
        assert list_alerts(report) == []
    assert list_alerts(REPORT | {"parts": [{"name": "heads", "restarts": 2, "last_error": "x"}]}) == []


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (changed(owner={"hold": "paused by the owner"}), "holding: paused by the owner"),
        (changed(owner={"stop": "it is 07:00", "hold": "it is 07:00"}), "finishing, then stopping: it is 07:00"),
        (changed(work={"current": None}), "working, waiting for work"),
        (changed(work={"current": None}, coordinator={"is_reachable": False}), "waiting for the coordinator"),
        (
            changed(work={"current": None, "idle_reason": "all slots are taken"}, coordinator={"activity": "idle"}),
            "idle, waiting for work: all slots are taken",
        ),
        (
            changed(
                work={"current": None},
                audits={"open": [{"submission": "0x1", "node": "0x2", "step": 3, "slots": 4, "deadline_ms": 71_000}]},
            ),
            "auditing submissions",
        ),
        (RELAY | {"serving": RELAY["serving"] | {"urls": ["http://a:1"]}}, "serving weights"),
    ],
)
def test_the_first_line_says_what_it_does(report: dict[str, Any], state: str) -> None:
    assert make_status_model(report).state == state


def test_details_appear_when_they_are_there() -> None:
    report = changed(
        engine={"precision": "", "state": "starting", "restarts": 2},
        coordinator={"held": [{"entry": "NodeRegistered", "due_ms": 661_000}]},
        upload={"bytes_per_day_max": 10**9, "bytes_per_s_max": 10**6},
        heads={"unproven": 1},
        audits={
            "done": 5,
            "inspected": 2,
            "ruled": 1,
            "open": [{"submission": "0x" + "9" * 64, "node": "0x2", "step": 3, "slots": 4, "deadline_ms": 71_000}],
        },
        weights={"transfers": [TRANSFER | {"corrupt": 1}], "held": []},
        work={"current": REPORT["work"]["current"] | {"rows": None, "rows_done": 0}},
    )
    report |= {"gpus": [GPU, GPU | {"number": 1, "is_paused": True}], "page": None}
    report |= {"parts": [{"name": "heads", "restarts": 1, "last_error": "no key"}]}
    text = render_text(report)
    for fact in (
        "1 disputes decided",
        "starting: no model yet, restarted 2 times",
        "NodeRegistered, sent again in 10 min: the network limits how often",
        "0 B today of 1.0 GB, at most 1.0 MB/s",
        "unproven: 1",
        "5 given, 1 open, 2 files inspected",
        "step 3, 4 slots, due in 10 s",
        "1 corrupt shards",
        "0/? rollouts",
        "GPU 1        RTX, paused",
        "heads        restarted 1 times; last error: no key",
    ):
        assert fact in text, fact
    assert "page " not in text
    assert "none yet" in render_text(changed(weights={"transfers": [], "held": []}))


def test_standing_alerts_only_nodes_that_want_work() -> None:
    def tone(**parts: Any) -> Tone:
        (fact,) = (
            part
            for section in make_status_model(changed(**parts)).sections
            for part in section.parts
            if isinstance(part, Fact) and part.name == "eligibility"
        )
        return fact.tone

    idle = {"eligibility": "not a worker", "is_eligible": False}
    assert tone(account=idle, role="validator") is Tone.GOOD
    assert tone(account=idle, role="worker") is Tone.BAD
    assert tone(account=idle, role="both") is Tone.BAD
    assert tone(account=idle, owner={"hold": "paused"}) is Tone.GOOD, "it was the owner's wish"


def test_a_report_of_another_version_is_reported_as_such() -> None:
    assert render_report(REPORT, render_text) == render_text(REPORT)
    older = {name: value for name, value in REPORT.items() if name != "owner"}
    with pytest.raises(LocalError, match=r"another version \(0\.1\.0\) than this command; restart it"):
        render_report(older, render_text)


# --- Text of strangers ----------------------------------------------------------------------------------------------

HOSTILE = "\x1b[2J<script>alert(1)</script>[red]\u202e&"


def test_text_of_strangers_commands_neither_terminal_nor_browser() -> None:
    report = changed(
        coordinator={"is_reachable": False, "problem": HOSTILE},
        account={"eligibility": HOSTILE, "remedy": HOSTILE},
        jobs={"last": [JOB | {"reason": HOSTILE, "state": "rejected"}]},
        p2p={"text": HOSTILE},
        owner={"hold": HOSTILE},
    )
    for text in (render_text(report), screen_of(report), render_html(report)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    page = render_html(report)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert "[red]" in screen_of(report), "markup is text"


def test_the_page_runs_no_scripts_and_comes_again_by_itself() -> None:
    page = render_html(REPORT)
    assert "<script" not in page
    assert "style=" not in page
    assert "onclick" not in page
    assert '<meta http-equiv="refresh"' in page
    assert "<title>quiet-amber-otter</title>" in page
    assert "<title>! quiet-amber-otter</title>" in render_html(TROUBLES[0][0])


def test_a_narrow_screen_loses_nothing_but_the_ends_of_reasons() -> None:
    text = "".join(line.strip() for line in screen_of(REPORT, width=50).splitlines())
    assert "demo of devnet, 2 nodes serve it" in text
    assert "credited" in text


# --- Drawing --------------------------------------------------------------------------------------------------------


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
    assert draw_shards(held.to_bytes(size, "little"), coming.to_bytes(size, "little"), shards, cells) == shown


@pytest.mark.parametrize("show", [render_text, screen_of])
def test_weights_on_their_way_show_which_shards_are_here(show: Any) -> None:
    (line,) = (line for line in show(changed(weights={"transfers": [TRANSFER]})).splitlines() if "2.0 MB of" in line)
    assert TRANSFER["bar"] in line
    (other,) = (line for line in show(REPORT).splitlines() if "8/32 rollouts" in line)
    assert TRANSFER["bar"] not in other


GOSSIPING = replace(P2P_OFF, is_running=True, connected=3, known=9, messages_in=40)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (GOSSIPING, "on: 3 peers, 9 known"),
        (replace(GOSSIPING, connected=0), "on, but reaches no peer: gossip comes from the coordinator over HTTP"),
        (
            replace(GOSSIPING, is_running=False, restarts=2, last_error="out of files"),
            "restarting after: out of files; gossip comes from the coordinator over HTTP",
        ),
        (None, "off: no port; gossip comes from the coordinator over HTTP"),
    ],
)
def test_gossip_without_peers_is_not_shown_as_on(status: P2PStatus | None, text: str) -> None:
    told = describe_p2p(status, "no port")
    assert told["text"] == text
    assert told["is_on"] == (status is not None)
    for name in ("is_running", "connected", "known", "banned", "inbox_dropped", "restarts", "last_error"):
        assert told[name] == getattr(status or P2P_OFF, name)
    assert told["messages_in"] == (40 if status else 0)
    assert told["peers"] == told["connected"]


@pytest.mark.parametrize(("share", "shown"), [(0, "...."), (0.5, "##.."), (1, "####"), (7.0, "####"), (-1, "....")])
def test_a_share_is_drawn_inside_its_bar(share: float, shown: str) -> None:
    assert draw_bar(share, 4) == shown


def test_the_status_says_how_far_the_rules_were_replayed_and_what_was_found() -> None:
    assert "replayed up to entry 5 of 7, rules kept" in render_text(REPORT)
    broken = render_text(changed(replay={"broken": "units: is 9", "broken_index": 5}))
    assert "replayed up to entry 5 of 7, ENTRY 5 BREAKS A RULE: units: is 9" in broken
    lying = render_text(changed(replay={"wrong_bytes": {"http://m/log": "entries"}}))
    assert "rules kept; wrong bytes from http://m/log" in lying
    refuted = changed(accusations={"claims": [CLAIM | {"answer": "refuted"}]})
    assert list_alerts(refuted) == list_alerts(REPORT), "this node knows better"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"status": "closed"}, "it has ended: take it out of the setting `run`"),
        ({"status": "paused"}, "its operator has paused it"),
        ({"is_outdated": True}, "too old for the run: pip install --upgrade"),
        ({"refusal": "run is unknown"}, "refuses this node's messages: run is unknown"),
        ({"hold": "the engine keeps failing: out of memory"}, "out of memory"),
        ({"weights_problem": "the disk is full"}, "cannot load weights: the disk is full"),
        ({"audit_problem": "no family gpt9"}, "no family gpt9. Try: prime-node doctor"),
        ({"is_suspended": True}, "its audits are suspended"),
    ],
)
def test_a_run_that_cannot_go_on_says_why_beside_one_that_can(row: dict[str, Any], problem: str) -> None:
    report = REPORT | {"runs": [RUN_ROW, RUN_ROW | {"run": "other"} | row]}
    (alert,) = list_alerts(report)
    assert alert.startswith("run other: ")
    assert problem in alert
    assert problem in " ".join(render_text(report).split())
    assert list_alerts(REPORT | {"runs": [RUN_ROW | row]}) == [], "the only run has alerts of its own"
