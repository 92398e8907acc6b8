"""What is said of a devnet's chain."""

from prime_lab.devnet.recipe import COIN_NANO
from prime_lab.devnet.summary import NamedEvent, count_open_slashes, describe_events, list_missing_events

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
STORY: list[NamedEvent] = [
    ("Deposited", {"amount": 100 * COIN_NANO}),
    ("Anchored", {"size": 5}),
    ("SlashProposed", {"submission": A}),
    ("Appealed", {"submission": A}),
    ("SlashProposed", {"submission": B}),
    ("SlashExecuted", {"submission": A, "amount": 50 * COIN_NANO}),
    ("SlashOverturned", {"submission": B}),
    ("Promised", {"total": 7 * COIN_NANO}),
]


def test_the_court_is_done_when_each_slash_has_ended() -> None:
    assert count_open_slashes(STORY) == 0
    assert count_open_slashes(STORY[:-2]) == 1


def test_every_part_of_a_networks_life_is_told() -> None:
    text = "\n".join(describe_events(STORY))
    assert "1 deposits, 100 PRIME" in text
    assert "2 slashes proposed, 1 appealed with a bond" in text
    assert "1 executed (50 PRIME), 1 of them after an appeal that failed; 1 given back" in text
    assert "7.00 PRIME promised" in text
    assert len(describe_events([])) == len(describe_events(STORY))


def test_penalties_of_validators_are_told_apart_from_slashes() -> None:
    proposed, executed = ("PenaltyProposed", {"penalty": C}), ("SlashExecuted", {"submission": C, "amount": COIN_NANO})
    assert count_open_slashes([*STORY, proposed]) == 1
    assert count_open_slashes([*STORY, proposed, executed]) == 0
    text = "\n".join(describe_events([*STORY, proposed, executed]))
    assert "1 executed (50 PRIME)" in text
    assert "1 penalties of validators proposed, 1 executed (1 PRIME)" in text
    refunded: list[NamedEvent] = [*STORY[:-2], proposed, ("SlashOverturned", {"submission": C})]
    assert "no wrong slash was given back by the court" in list(list_missing_events(refunded, cheaters=1))


def test_what_did_not_happen_on_the_chain_is_a_failure() -> None:
    assert not list(list_missing_events(STORY, cheaters=1))
    assert list(list_missing_events(STORY[:-2], cheaters=1)) == [
        "1 slashes have not ended before the court",
        "no wrong slash was given back by the court",
        "no payout root is on the chain",
    ]
    unheard = [each for each in STORY if each[0] != "Appealed"]
    assert list(list_missing_events(unheard, cheaters=1)) == ["no cheater has appealed before the court and lost"]
    assert not list(list_missing_events(unheard, cheaters=0))
