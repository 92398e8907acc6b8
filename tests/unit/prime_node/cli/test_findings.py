"""Findings in the command line: which are not filed, and how each is described."""

from typing import Any

import pytest

from prime_node.cli.findings import STATES, check_finding, describe_bounty, find_obstacle, get_finding_state
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Outcome

ACCEPTED: dict[str, Any] = {"progress": "accepted", "paid_idx": None, "finding": None}


def test_a_finding_that_this_machine_does_not_confirm_is_filed_only_if_forced() -> None:
    check_finding(Outcome.FRAUDULENT, is_forced=False)
    check_finding(Outcome.ACCEPT, is_forced=True)
    with pytest.raises(LocalError, match=r"no finding was filed.*--force"):
        check_finding(Outcome.INVALID, is_forced=False)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"finding": "dismissed"}, ""),
        ({"progress": "fraudulent"}, "is fraudulent, and a finding is about an accepted one"),
        ({"paid_idx": 9}, "was paid in entry 9: its pay has vested"),
        ({"finding": "filed"}, "another finding about it is open"),
    ],
)
def test_what_the_log_would_refuse_is_refused_before_the_audit(changed: dict[str, Any], problem: str) -> None:
    found = find_obstacle({**ACCEPTED, **changed})
    assert (found == "") == (problem == "")
    assert problem in found


@pytest.mark.parametrize(
    ("later", "is_undecided", "state"),
    [
        ((), False, "open"),
        (("AuditDrawn", "VerdictGiven"), False, "open"),
        (("FindingUpheld", "SlashProposed"), False, "upheld"),
        (("FindingUpheld", "SlashProposed", "Appealed"), False, "appealed"),
        (("FindingUpheld", "SlashProposed", "SlashExecuted"), False, "executed"),
        (("FindingUpheld", "SlashProposed", "Appealed", "SlashOverturned"), False, "overturned"),
        (("FindingDismissed",), False, "dismissed"),
        (("FindingDismissed",), True, "undecided"),
        (("FindingDismissed", "FindingFiled", "FindingUpheld", "SlashExecuted"), False, "dismissed"),
        (("FindingDismissed", "FindingFiled", "FindingDismissed"), True, "dismissed"),
    ],
)
def test_how_a_finding_ended_is_read_from_the_entries_after_it(
    later: tuple[str, ...], is_undecided: bool, state: str
) -> None:
    assert get_finding_state(later, is_undecided=is_undecided) == state
    assert STATES[state]


def test_a_finder_is_told_where_its_bounty_is() -> None:
    assert "balance of 0x1" in describe_bounty("0x1", is_on_chain=False)
    assert "prime-node claim --bounty" in describe_bounty("0x1", is_on_chain=True)
