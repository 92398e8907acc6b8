"""The lines of a checklist: what was checked, what was found, what is needed, what to do; and how they are printed.

`prime-node doctor` and `prime-coordinator check` make such lines from facts that they measured. A line is good, worth a
note, or missing something; only the last keeps the machine, the network or the run from working.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from prime_runtime.console import CommandOutput
from prime_runtime.redaction import escape


class CheckGrade(StrEnum):
    """How serious a result is."""

    GOOD = "good"
    NOTE = "note"
    MISSING = "missing"


MARKS = {CheckGrade.GOOD: "ok", CheckGrade.NOTE: "note", CheckGrade.MISSING: "MISSING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of a checklist."""

    what: str
    found: str
    needed: str = ""
    advice: str = ""
    """What to do; empty if nothing has to be done."""
    grade: CheckGrade = CheckGrade.GOOD


def make_result(
    *, what: str, found: str, needed: str = "", is_good: bool, advice: str, worst: CheckGrade = CheckGrade.MISSING
) -> CheckResult:
    """A good result, or one with this advice and grade."""
    if is_good:
        return CheckResult(what=what, found=found, needed=needed)
    return CheckResult(what=what, found=found, needed=needed, advice=advice, grade=worst)


def find_worst(lines: Sequence[CheckResult]) -> CheckResult | None:
    """The first line of the worst grade; None if all are good."""
    for grade in (CheckGrade.MISSING, CheckGrade.NOTE):
        found = next((line for line in lines if line.grade is grade), None)
        if found is not None:
            return found
    return None


def print_checklist(screen: CommandOutput, lines: Sequence[CheckResult]) -> None:
    rows = [[MARKS[line.grade], line.what, escape(line.found), line.needed] for line in lines]
    screen.show(screen.table(["", "what", "found", "needed"], rows))
    advice = [f"{line.what}: {line.advice}" for line in lines if line.advice]
    if not advice:
        screen.print_line("\nno problems found")
        return
    screen.print_line("\nadvice:")
    for text in advice:
        screen.print_line(f"  {text}")
