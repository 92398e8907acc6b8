"""Two engine classes have bounds of their own where the table has their pair, never wider than the run's default."""

from dataclasses import fields, replace

import pytest

from prime_protocol.constants import CLASSES_MAX, LOG_ENTRY_BYTES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import RunUpdated
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.ledger.versions.upgrades import RunTerms2, decode_form, encode_form
from prime_protocol.proofs.class_bounds import (
    BOUNDED_NUMBERS,
    ClassBounds,
    EngineClass,
    PairBounds,
    format_class_bounds,
    parse_class_bounds,
)
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import CheckpointRef, StepReply
from support.ledger_network import TERMS

DEFAULT = Tolerance(margin_max=0.5, exponent_mismatches_max=10)
QUIET, NOISY, THIRD = (EngineClass(f"{name}/float32/tp1") for name in ("a-quiet", "b-noisy", "c-third"))
LINES = (f"{QUIET} > {QUIET}: exponent_mismatches_max=3 margin_max=0.01", f"{NOISY} > {QUIET}: margin_max=0.25", THIRD)
TABLE = parse_class_bounds(LINES, DEFAULT)
WEIGHTS = CheckpointRef(step=Step(0), root=Digest(bytes(32)), manifest=Digest(bytes(32)), beacon=None)


def known_terms(table: ClassBounds = TABLE, default: Tolerance = DEFAULT) -> RunTerms:
    return replace(TERMS, tolerance=default, class_bounds=table, version_min=3)


def test_a_pair_of_the_table_has_its_bounds_and_any_other_the_default() -> None:
    terms = known_terms()
    assert terms.get_tolerance(QUIET, QUIET) == replace(DEFAULT, margin_max=0.01, exponent_mismatches_max=3)
    assert terms.get_tolerance(NOISY, QUIET) == replace(DEFAULT, margin_max=0.25)
    for generating, judging in (
        (QUIET, NOISY),
        (THIRD, QUIET),
        (None, QUIET),
        (QUIET, None),
        (EngineClass("x"), QUIET),
    ):
        assert terms.get_tolerance(generating, judging) == DEFAULT


def test_verdicts_name_classes_by_their_numbers() -> None:
    assert [TABLE.get_number(name) for name in (QUIET, NOISY, THIRD, EngineClass("x"), None)] == [1, 2, 3, 0, 0]


@pytest.mark.parametrize("name", BOUNDED_NUMBERS)
def test_no_pair_may_be_wider_than_the_default_in_any_number(name: str) -> None:
    numbers = list(TABLE.pairs[0].numbers)
    numbers[BOUNDED_NUMBERS.index(name)] = getattr(DEFAULT, name) + 0.5
    with pytest.raises(RemoteError, match="wider than the default") as error:
        known_terms(replace(TABLE, pairs=(replace(TABLE.pairs[0], numbers=tuple(numbers)),)))
    assert error.value.field == f"class_bounds.pairs[0].{name}"


@pytest.mark.parametrize(("name", "number"), [("exponent_mismatches_max", 1.5), ("noise_spread", 0.0)])
def test_a_number_of_a_pair_passes_the_limits_of_the_default(name: str, number: float) -> None:
    numbers = list(TABLE.pairs[0].numbers)
    numbers[BOUNDED_NUMBERS.index(name)] = number
    with pytest.raises(RemoteError, match=name):
        known_terms(replace(TABLE, pairs=(replace(TABLE.pairs[0], numbers=tuple(numbers)),)))


def test_a_table_has_one_form() -> None:
    first, second = TABLE.pairs
    for changes, problem in (
        ({"classes": (NOISY, QUIET, THIRD)}, "classes: must be sorted"),
        ({"classes": (QUIET, QUIET, THIRD)}, "classes: must be sorted"),
        ({"pairs": (second, first)}, "pairs: must be sorted"),
        ({"pairs": (first, first)}, "pairs: must be sorted"),
        ({"pairs": (first, replace(second, judging=3))}, "beyond the 3 of the table"),
        ({"classes": (), "pairs": (), "is_closed": True}, "without classes"),
    ):
        with pytest.raises(RemoteError, match=problem):
            replace(TABLE, **changes)


def test_a_run_with_a_table_needs_programs_that_know_it() -> None:
    with pytest.raises(RemoteError, match="version_min"):
        replace(TERMS, class_bounds=TABLE, tolerance=DEFAULT, version_min=2)


@pytest.mark.parametrize("text", ["", "H100", "a//b", "/a", "a/", "a b", "a" * 101, "-a", "a\n"])
def test_a_class_is_plain_text(text: str) -> None:
    with pytest.raises(RemoteError, match="EngineClass"):
        EngineClass(text)


def test_the_largest_table_fits_an_entry_of_the_log() -> None:
    classes = tuple(EngineClass("n" * 98 + f"{number:02}") for number in range(CLASSES_MAX))
    pairs = tuple(PairBounds.of(g, j, DEFAULT) for g in range(CLASSES_MAX) for j in range(CLASSES_MAX))
    terms = known_terms(ClassBounds(classes=classes, pairs=pairs))
    body = encode(RunUpdated(terms=terms))
    assert len(body) < LOG_ENTRY_BYTES_MAX - 4096
    assert decode(RunUpdated, body).terms == terms


def test_a_table_is_written_and_read_as_text() -> None:
    lines = format_class_bounds(TABLE, DEFAULT)
    assert lines == list(LINES)
    assert parse_class_bounds(lines, DEFAULT) == TABLE
    assert parse_class_bounds(lines, DEFAULT, is_closed=True) == replace(TABLE, is_closed=True)
    assert parse_class_bounds([f"{QUIET} > {THIRD}:"], DEFAULT).pairs == (PairBounds.of(0, 1, DEFAULT),)
    assert format_class_bounds(parse_class_bounds([f"{QUIET} > {THIRD}:"], DEFAULT), DEFAULT) == [f"{QUIET} > {THIRD}:"]


@pytest.mark.parametrize(
    "lines",
    [
        ["A > b: margin_max=1"],
        ["a > b > c: margin_max=1"],
        ["a > b"],
        ["a: margin_max=1"],
        ["a > b: margin_max"],
        ["a > b: margin_max=-1"],
        ["a > b: margin_max=nan"],
        ["a > b: precision=1"],
        ["a > b: margin_max=1 margin_max=1"],
        ["a > b:", "a > b:"],
        [f"class-{number:02}" for number in range(CLASSES_MAX + 1)],
    ],
)
def test_other_text_is_refused(lines: list[str]) -> None:
    with pytest.raises(RemoteError, match="class_bounds"):
        parse_class_bounds(lines, DEFAULT)


def test_old_terms_are_read_without_a_table_and_cannot_hold_one() -> None:
    # Written out, so that a field that is added to RunTerms later does not change a form of the past.
    assert sorted(each.name for each in fields(RunTerms2)) == sorted(
        each.name for each in fields(RunTerms) if each.name != "class_bounds"
    )
    for message in (RunUpdated(terms=TERMS), StepReply(terms=TERMS, beacon=None, weights=WEIGHTS)):
        old = encode_form(message, 2)
        assert b"class_bounds" not in old
        assert decode_form(type(message), 2, old) == message
        assert decode_form(type(message), 3, encode_form(message, 3)) == message
        with pytest.raises(RemoteError):
            decode_form(type(message), 3, old)
    with pytest.raises(RemoteError, match=r"terms.class_bounds: is a table, which rules 2 do not have"):
        encode_form(RunUpdated(terms=known_terms()), 2)


def test_the_precision_of_a_pair_is_the_runs() -> None:
    default = Tolerance(precision=Precision.FLOAT32)
    table = parse_class_bounds([f"{QUIET} > {QUIET}: margin_max=0.01"], default)
    assert known_terms(table, default).get_tolerance(QUIET, QUIET).precision is Precision.FLOAT32
