"""What the contracts of a devnet saw, in words. Pure: their events in, lines out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from prime_devnet import recipe

Told = tuple[str, Mapping[str, Any]]
"""An event: its name and its values."""


def count_open(told: list[Told]) -> int:
    """Slashes before the court that have not ended."""
    names = [name for name, _ in told]
    return names.count("SlashProposed") - names.count("SlashExecuted") - names.count("SlashOverturned")


def list_missing(told: list[Told], *, cheaters: int) -> Iterator[str]:
    """What should have happened on the chain and did not."""
    names = [name for name, _ in told]
    ends = {bytes(values["submission"]): name for name, values in told if name in ("SlashExecuted", "SlashOverturned")}
    appealed = [bytes(values["submission"]) for name, values in told if name == "Appealed"]
    if count_open(told):
        yield f"{count_open(told)} slashes have not ended before the court"
    if cheaters and "SlashExecuted" not in [ends.get(submission) for submission in appealed]:
        yield "no cheater has appealed before the court and lost"
    if "SlashOverturned" not in names:
        yield "no wrong slash was given back by the court"
    if "Promised" not in names:
        yield "no payout root is on the chain"


def describe_events(told: list[Told]) -> list[str]:
    """What the contracts saw, in the order of a network's life."""
    of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for name, values in told:
        of[name].append(values)
    appealed = {bytes(values["submission"]) for values in of["Appealed"]}
    failed = [values for values in of["SlashExecuted"] if bytes(values["submission"]) in appealed]
    staked = sum(int(values["amount"]) for values in of["Deposited"]) // recipe.TOKEN
    taken = sum(int(values["amount"]) for values in of["SlashExecuted"]) // recipe.TOKEN
    promised = max((int(values["total"]) for values in of["Promised"]), default=0) / recipe.TOKEN
    return [
        f"vault      {len(of['Deposited'])} deposits, {staked:,} tokens of stake",
        f"anchors    {len(of['Anchored'])} heads of the log, each proven to extend the one before",
        f"court      {len(of['SlashProposed'])} slashes proposed, {len(appealed)} appealed with a bond",
        f"court      {len(of['SlashExecuted'])} executed ({taken:,} tokens), {len(failed)} of them after an appeal that"
        f" failed; {len(of['SlashOverturned'])} given back",
        f"pool       {len(of['Promised'])} payout roots, {promised:,.2f} tokens promised in all",
    ]
