"""At which share of lying validators each guarantee of an audit ends: the table of docs/verification/economics.md.

Every chance is exact. Validators are drawn round by round without replacement, each of an owner of its own, all liars
say the same, and the ledger's own rule decides.
"""

from functools import cache
from math import comb
from pathlib import Path

import pytest

from prime_protocol.constants import PROTOCOL_VERSION, ROUNDS_MAX
from prime_protocol.ledger.audits import decide_outcome
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.state import AuditRoundState
from prime_protocol.wire.ids import Digest, NodeId

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
QUORUM = 3
PAGE = Path(__file__).parents[2] / "docs" / "verification" / "economics.md"
NETWORKS = ((6, 1), (6, 2), (15, 3), (15, 5), (15, 7), (64, 12), (64, 21), (64, 25), (64, 32), (300, 60), (300, 100))
"""Validators, and how many of them lie."""


@cache
def decide(true: int, votes_true: int, lie: int, votes_lie: int) -> Outcome | None:
    words = [list(Outcome)[true]] * votes_true + [list(Outcome)[lie]] * votes_lie
    verdicts = {NodeId(place.to_bytes(20, "big")): word for place, word in enumerate(words)}
    made = AuditRoundState(dict.fromkeys(verdicts, NodeId(bytes(20))), Digest(bytes(32)), 0, 0, verdicts)
    return decide_outcome([made], QUORUM, PROTOCOL_VERSION)


def list_ends(
    honest: int, liars: int, truth: Outcome, lie: Outcome, before: tuple[int, int] = (0, 0)
) -> dict[tuple[Outcome | None, int, int], float]:
    """How a judgement ends, with how many honest and lying verdicts, and the chance of each.

    `before` has the verdicts of rounds that count for a plain majority only: those that led to an appeal.
    """
    order = list(Outcome)
    open_ends, ends = {(0, 0): 1.0}, dict[tuple[Outcome | None, int, int], float]()
    for _ in range(ROUNDS_MAX):
        following: dict[tuple[int, int], float] = {}
        for (true, false), chance in open_ends.items():
            left = honest - true, liars - false
            if sum(left) < QUORUM:
                votes = {truth: true + before[0], lie: false + before[1]}
                is_majority = 2 * votes.get(ACCEPT, 0) > max(QUORUM, sum(votes.values()))
                key = (ACCEPT if is_majority else None, true, false)
                ends[key] = ends.get(key, 0.0) + chance
                continue
            for lying in range(QUORUM + 1):
                ways = comb(left[1], lying) * comb(left[0], QUORUM - lying) / comb(sum(left), QUORUM)
                if not ways:
                    continue
                place = (true + QUORUM - lying, false + lying)
                outcome = decide(order.index(truth), place[0], order.index(lie), place[1])
                if outcome is None:
                    following[place] = following.get(place, 0.0) + chance * ways
                else:
                    ends[(outcome, *place)] = ends.get((outcome, *place), 0.0) + chance * ways
        open_ends = following
    for (true, false), chance in open_ends.items():
        ends[(None, true, false)] = ends.get((None, true, false), 0.0) + chance
    return ends


def compute_chance(honest: int, liars: int, truth: Outcome, lie: Outcome, wrong: Outcome) -> float:
    return sum(chance for (found, _, _), chance in list_ends(honest, liars, truth, lie).items() if found is wrong)


def compute_denied(validators: int, liars: int) -> float:
    """An honest file that is not paid: liars call it invalid, and nobody can appeal."""
    return 1 - compute_chance(validators - liars, liars, ACCEPT, INVALID, ACCEPT)


def compute_slashed(validators: int, liars: int) -> float:
    """An honest worker that loses stake: liars call its file fraudulent, and win its appeal too."""
    slashed = 0.0
    for (found, true, false), chance in list_ends(validators - liars, liars, ACCEPT, FRAUDULENT).items():
        if found is FRAUDULENT:
            appeal = list_ends(validators - liars - true, liars - false, ACCEPT, FRAUDULENT, (true, false))
            slashed += chance * sum(part for (word, _, _), part in appeal.items() if word is FRAUDULENT)
    return slashed


def compute_accepted(validators: int, liars: int) -> float:
    """A forged file that is drawn and accepted."""
    return compute_chance(validators - liars, liars, FRAUDULENT, ACCEPT, ACCEPT)


def format_share(share: float) -> str:
    return "0" if share < 1e-12 else f"{share:.2%}" if share >= 1e-4 else f"{share:.0e}"


def describe_row(validators: int, liars: int) -> str:
    found = (compute_denied(validators, liars), compute_slashed(validators, liars), compute_accepted(validators, liars))
    return f"| {validators} | {liars} | {' | '.join(format_share(share) for share in found)} |"


@pytest.mark.parametrize(("validators", "liars"), NETWORKS)
def test_the_page_states_where_each_guarantee_ends(validators: int, liars: int) -> None:
    row = describe_row(validators, liars)
    assert row in PAGE.read_text().splitlines(), row


@pytest.mark.parametrize(("validators", "liars"), NETWORKS)
def test_every_ending_is_counted_once(validators: int, liars: int) -> None:
    for truth, lie in ((ACCEPT, INVALID), (ACCEPT, FRAUDULENT), (FRAUDULENT, ACCEPT)):
        assert sum(list_ends(validators - liars, liars, truth, lie).values()) == pytest.approx(1)


def test_a_third_that_says_invalid_denies_an_honest_file_as_rarely_as_a_forged_one_is_accepted() -> None:
    for validators, liars in ((64, 12), (64, 21), (300, 100)):
        denied = compute_chance(validators - liars, liars, ACCEPT, INVALID, INVALID)
        assert denied == pytest.approx(compute_accepted(validators, liars), rel=0.1)
        by_one_quorum = 1 - compute_chance(validators - liars, liars, ACCEPT, FRAUDULENT, ACCEPT)
        assert denied < by_one_quorum / 5, "what a lead of one quorum allows"
