"""Rules taken out of the code under test, one at a time, by replacing a line of their source.

The text must be found exactly once, so a rule that is rewritten fails here and not in silence.
"""

import inspect
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import pytest

from prime_protocol.ledger.replay import ENTRY_RULES


@dataclass(frozen=True)
class Patch:
    """One line of one function, and what stands there instead."""

    owner: Any
    """Module or class."""
    name: str
    old: str
    new: str


def apply_patch(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the changed function wherever the real one is used."""
    original = inspect.getattr_static(patch.owner, patch.name)
    function = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(patch.old) == 1, f"{patch.name} has {source.count(patch.old)} times: {patch.old}"
    made: dict[str, Any] = {}
    exec(compile(source.replace(patch.old, patch.new), f"<mutant of {patch.name}>", "exec"), function.__globals__, made)
    mutant = made[patch.name]
    monkeypatch.setattr(patch.owner, patch.name, mutant)
    for module in [module for name, module in sys.modules.items() if name.startswith("prime_")]:
        if vars(module).get(patch.name) is function:
            monkeypatch.setattr(module, patch.name, mutant)
    for kind, rule in ENTRY_RULES.items():
        if rule.apply is function:
            monkeypatch.setitem(ENTRY_RULES, kind, replace(rule, apply=mutant))
