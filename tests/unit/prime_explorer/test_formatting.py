"""Numbers, times and ids as pages write them."""

import pytest

from prime_explorer.formatting import (
    is_id,
    shorten,
    show_iso,
    show_percent,
    show_short_amount,
    show_short_count,
    show_utc,
    with_query,
)
from prime_explorer.index.fold import BRIEF_CHARS_MAX, write_brief
from prime_explorer.params import parse_params
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.wire.ids import Digest, NodeId, RunId


def test_numbers_are_short_where_they_are_read_at_a_glance() -> None:
    assert [show_short_count(number) for number in (7, 999, 1234, 5_600_000, 7 * 10**9)] == [
        "7", "999", "1.23 k", "5.6 M", "7 G",
    ]  # fmt: skip
    assert [show_short_amount(nano) for nano in (0, 10**9, 11_999_999_996, 12_345)] == ["0", "1", "12", "0"]
    assert [show_percent(share) for share in (None, 0.0, 0.004, 0.5, 1.0)] == ["–", "0 %", "0.4 %", "50 %", "100 %"]


def test_times_are_for_machines_and_for_people_without_scripts() -> None:
    assert show_iso(1_800_000_000_123) == "2027-01-15T08:00:00.123Z"
    assert show_utc(1_800_000_000_123) == "2027-01-15 08:00:00 UTC"


def test_ids_are_known_and_shortened() -> None:
    address, digest = "0x" + "ab" * 20, "0x" + "cd" * 32
    assert [is_id(value) for value in (address, digest, "0x12", 7, None)] == [True, True, False, False, False]
    assert shorten(digest) == "0xcdcdcd…cdcd"
    assert shorten("0x12") == "0x12"


def test_a_link_to_the_same_page_drops_what_is_empty_and_escapes_the_rest() -> None:
    assert with_query("/log", {"kind": "a b&c", "run": ""}, before=None) == "/log?kind=a+b%26c"
    assert with_query("/log", {"before": "3"}, before="") == "/log"


def test_parameters_have_one_way_to_be_written() -> None:
    names = ("before", "after", "order", "node", "submission", "about", "run", "q")
    given = {"before": "12", "after": "5.0x" + "00" * 20, "about": "0x" + "AB" * 20, "q": " ann "}
    params = parse_params(names, (), given)
    assert (params.before, params.after, params.about, params.q) == (12, (5, bytes(20)), b"\xab" * 20, "ann")
    wrong = {"before": "012", "after": "12", "order": "up", "node": "12", "submission": "12", "about": "12", "run": "A"}
    for name, text in [*wrong.items(), ("limit", "3")]:
        with pytest.raises(RemoteError) as refused:
            parse_params(names, (), {name: text})
        assert refused.value.field == name
    with pytest.raises(RemoteError, match="is missing"):
        parse_params(names, ("run",), {})


def test_a_brief_says_whose_pool_it_is_in() -> None:
    funded = e.Deposited(account=NodeId(bytes(20)), amount_nano=10**9, reference=Digest(bytes(32)), run=RunId("demo"))
    assert write_brief(funded, "PRIME").startswith("1 PRIME for the pool of demo, by ")


def test_a_brief_stays_brief() -> None:
    entry = e.NodeRegistered(roles=(Role.WORKER,), hardware="x" * 256)
    assert write_brief(entry, "PRIME").startswith("worker; xxx")
    assert len(write_brief(entry, "PRIME")) == BRIEF_CHARS_MAX
