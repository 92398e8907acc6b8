"""Pictures show what they are given, against the right line, and let no text become markup."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict

from fuzz.test_fuzz_node_work import make_evidence
from prime_explorer.formatting import draw_lineage, draw_network, draw_strips, draw_timeline, show_name
from prime_explorer.pages.live import ServingNode
from prime_explorer.pages.runs import LineageRow, StepSummary, compute_waits
from prime_explorer.pages.submissions import make_metric_strips, read_chunk_strips
from prime_protocol.proofs.class_bounds import parse_class_bounds
from support.ledger_network import TERMS

TOLERANCE = {name: getattr(TERMS.tolerance, name) for name in TERMS.tolerance.__slots__}
SVG = "{http://www.w3.org/2000/svg}"
ANN, BOB = "0x" + "11" * 20, "0x" + "22" * 20


def parts(picture: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(SVG + kind))


def test_numbers_of_verdicts_stand_left_or_right_of_what_is_allowed() -> None:
    strips = make_metric_strips(
        [(ANN, {"margin_max": 0.5, "rows": 3.0}), (BOB, {"margin_max": 2.5, "margin_mean": float("nan")})],
        {"tolerance": TOLERANCE},
    )
    assert [(strip.name, strip.limit, [point.share for point in strip.points]) for strip in strips] == [
        ("margin_max", 1.0, [0.5, 2.5])
    ]
    (limit,) = [each for each in parts(draw_strips(strips), "line") if each.get("class") == "limit"]
    left, right = parts(draw_strips(strips), "circle")
    assert float(left.get("cx", 0)) < float(limit.get("x1", 0)) < float(right.get("cx", 0))
    assert (left.get("class"), right.get("class")) == ("point", "point over")


def test_a_verdict_that_names_two_classes_is_drawn_by_their_bounds() -> None:
    table = parse_class_bounds(["a > b: margin_max=0.25"], TERMS.tolerance)
    terms = json.loads(json.dumps({"tolerance": TOLERANCE, "class_bounds": asdict(table)}))
    classes = {"margin_max": 0.5, "generating_class": 1.0, "judging_class": 2.0}
    (strip,) = make_metric_strips([(ANN, classes), (BOB, {**classes, "judging_class": 1.0})], terms)
    assert [point.share for point in strip.points] == [2.0, 0.5]


def test_a_limit_of_nothing_is_passed_by_anything() -> None:
    (strip,) = make_metric_strips(
        [(ANN, {"sign_mismatches_max": 0.0}), (BOB, {"sign_mismatches_max": 1.0})], {"tolerance": {}}
    )
    assert [point.share for point in strip.points] == [0.0, 2.0]


def test_chunks_are_read_from_evidence_as_prime_node_writes_it() -> None:
    strips = {strip.name: strip for strip in read_chunk_strips(make_evidence(b"a file"), TOLERANCE)}
    mismatches = strips["exponent_mismatches"]
    assert [(point.who, point.value) for point in mismatches.points] == [("row 1, chunk 0", 0), ("row 1, chunk 1", 60)]
    assert [point.share > 1 for point in mismatches.points] == [False, True]
    assert strips["margin"].points[0].value == 3.5
    for broken in (b"", b"\xc1", b"\x80", b"\x81\xa7numbers\x01", make_evidence(b"a file")[:-40]):
        assert read_chunk_strips(broken, TOLERANCE) == ()


def step(number: int, **times: int | None) -> StepSummary:
    start = number * 100_000
    usual = {
        "published_ms": start, "beacon_ms": start, "first_lease_ms": start + 5_000, "first_submitted_ms": start + 9,
        "last_submitted_ms": start + 60_000, "first_drawn_ms": start + 10_000, "last_settled_ms": start + 70_000,
        "ready_ms": start - 30_000, "paid_ms": None,
    }  # fmt: skip
    counts = dict.fromkeys(
        ("idx", "paid_nano",
         "slots", "slots_done", "slots_held", "leases", "expired", "submissions", "accepted", "invalid",
         "fraudulent", "audited", "rollouts", "tokens", "units", "nodes", "trained_on"), 0
    )  # fmt: skip
    more = {"root": "0x", "manifest": "0x", "reward": None, "lag_mean": None, "lag_max": None}
    more |= {"held_out": None, "entropy": None, "mismatch_kl": None}
    return StepSummary(**{"step": number, **counts, **more, **usual, **times})


def test_a_steps_bars_follow_one_another() -> None:
    bars = parts(draw_timeline([step(1), step(2)]), "rect")
    by_class: dict[str, list[float]] = {}
    for bar in bars:
        by_class.setdefault(str(bar.get("class")), []).append(float(bar.get("x", 0)))
    assert {name: len(places) for name, places in by_class.items()} == {
        "bar broadcast": 2, "bar generate": 2, "bar audit": 2, "bar train": 1,
    }  # fmt: skip
    assert by_class["bar broadcast"][0] < by_class["bar generate"][0] < by_class["bar train"][0]
    assert by_class["bar train"][0] < by_class["bar broadcast"][1]
    fresh = step(3, first_lease_ms=None, last_submitted_ms=None, first_drawn_ms=None, last_settled_ms=None)
    assert parts(draw_timeline([fresh]), "rect") == []
    assert draw_timeline([]) == ""


def test_lineage_and_network_link_to_nodes_and_say_what_is_left_out() -> None:
    many = [LineageRow(node=f"0x{number:040x}", submissions=1, rollouts=40 - number, tokens=9) for number in range(20)]
    picture = draw_lineage(many, 7)
    links = [each.get("href") for each in parts(picture, "a")]
    assert links == [f"/nodes/0x{number:040x}" for number in range(12)]
    assert "8 more nodes" in picture
    nodes = [
        ServingNode(
            node=f"0x{number:040x}",
            depth=number // 30,
            slots_free=1,
            urls=1,
            manifests=("0xaa",) * (number % 2),
            parents=(f"0x{number - 30:040x}", "0xgone") if number >= 30 else (),
            sent_bytes=number,
        )
        for number in range(70)
    ]
    drawn = parts(draw_network(nodes, "0xaa"), "circle")
    assert [each.get("class") for each in drawn].count("peer ahead") == 35
    assert len(parts(draw_network(nodes, "0xaa"), "line")) == 40, "to every parent that is drawn"
    rows = {each.get("cy") for each in drawn}
    assert len(rows) == 5, "three depths, two of them in two lines"
    assert not any("name" in (each.get("class") or "") for each in parts(draw_network(nodes, "0xaa"), "text"))


def test_a_small_network_names_every_node_and_says_what_it_passed_on() -> None:
    addresses = [f"0x{number:040x}" for number in range(8)]
    nodes = [
        ServingNode(
            node=address,
            depth=min(2, number),
            slots_free=1,
            urls=1,
            manifests=("0xaa",),
            parents=(addresses[number - 1 if number < 3 else 1],) if number else (),
            sent_bytes=10**number,
        )
        for number, address in enumerate(addresses)
    ]
    texts = [each.text for each in parts(draw_network(nodes, "0xaa"), "text")]
    assert set(map(show_name, addresses)) <= set(texts)
    assert {"origin", "depth 1", "depth 2", "1.0 MB sent"} <= set(texts)
    picture = draw_network(nodes, "0xaa")
    assert f"weights from {show_name(addresses[1])}" in picture
    assert len(parts(picture, "line")) == 7, "to every node that it has weights from"


def test_waits_part_the_time_between_checkpoints() -> None:
    steps = [step(1), step(2, ready_ms=160_000), step(3, ready_ms=280_000)]
    waits = compute_waits(steps)
    assert waits is not None
    assert (waits.steps, waits.for_work_ms, waits.for_trainer_ms) == (2, 60_000 + 80_000, 40_000 + 20_000)
    assert waits.for_weights_ms == 10_000
    assert compute_waits(steps[:1]) is None
    assert compute_waits([step(1), step(2, ready_ms=None)]) is None
