"""What must hold of findings, from the committed log alone: each is decided once, by the verdicts that it led to, and
moves the bond and the bounty that the terms name.
"""

from collections import Counter
from collections.abc import Iterator

from prime_lab.simulator.finished_world import FinishedWorld
from prime_lab.simulator.log_history import LoggedEntry, LoggedSubmission, LogHistory
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome


def findings_are_about_unpaid_accepted_work(finished: FinishedWorld) -> Iterator[str]:
    """Accepted, credited, never slashed, not in a step that was paid, and by somebody else."""
    owners = finished.history.owners
    for name, logged in finished.history.submissions.items():
        for filed in logged.findings:
            if logged.outcome is not Outcome.ACCEPT or not has_before(logged.credited, filed):
                yield f"a finding about {name} was filed, which was not accepted and credited"
            if has_before(logged.proposed, filed):
                yield f"a finding about {name} was filed, which was slashed before"
            if logged.lease and owners.get(filed.author, filed.author) in (logged.receipt.node, logged.lease.owner):
                yield f"{filed.author} filed a finding about {name}, which is its own"
            paid = finished.history.paid_index.get(logged.receipt.step)
            if paid is not None and paid < filed.index:
                yield f"a finding about {name} was filed after its step was paid"


def has_before(lines: list[LoggedEntry], other: LoggedEntry) -> bool:
    return any(line.index < other.index for line in lines)


def every_finding_is_decided_by_its_votes(finished: FinishedWorld) -> Iterator[str]:
    """Upheld where an inspector ruled so, or most judges said so by a quorum; else dismissed, and before its time is
    over only by a decision."""
    quorum, judgement_ms = finished.history.terms.quorum, finished.history.terms.judgement_ms
    for name, logged in finished.history.submissions.items():
        decided = finished.count_finding_votes(logged)
        for (filed, end), counted in zip(logged.list_findings(), decided, strict=True):
            ruling = find_ruling(logged, filed, end)
            is_fraud = lead(counted.votes, Outcome.FRAUDULENT) >= quorum
            if ruling is not None:
                is_fraud = ruling.entry.outcome is Outcome.FRAUDULENT
            is_judged = ruling is not None or counted.votes
            if end is None:
                if finished.is_over:
                    yield f"the finding about {name} was never decided, with votes {counted}"
            elif isinstance(end.entry, e.FindingUpheld) is not is_fraud:
                yield f"the finding about {name} ended with {type(end.entry).__name__}, with votes {counted}"
            elif not is_fraud and not is_judged and end.at_ms < filed.at_ms + judgement_ms:
                yield f"the finding about {name} was dismissed before anybody had judged it"


def find_ruling(logged: LoggedSubmission, filed: LoggedEntry, end: LoggedEntry | None) -> LoggedEntry | None:
    """An inspector's ruling on a finding."""
    return next((each for each in logged.ruled if end and filed.index < each.index < end.index), None)


def findings_are_ruled_on_by_inspectors_without_part_in_them(finished: FinishedWorld) -> Iterator[str]:
    """Named by the terms, and neither the finder nor a validator that was drawn for the file."""
    history = finished.history
    for name, logged in history.submissions.items():
        for filed, end in logged.list_findings():
            ruling = find_ruling(logged, filed, end)
            if ruling is None:
                continue
            if ruling.author not in history.terms.inspectors:
                yield f"{ruling.author} ruled on the finding about {name}, and is no inspector"
            drawn = {node for line in logged.draws if line.index < ruling.index for node in line.entry.validators}
            if ruling.author in drawn | {filed.author}:
                yield f"{ruling.author} ruled on the finding about {name}, and is a party"


def lead(votes: Counter[Outcome], outcome: Outcome) -> int:
    """Over all other verdicts together."""
    return 2 * votes[outcome] - votes.total()


def true_findings_are_upheld_and_false_ones_are_not(finished: FinishedWorld) -> Iterator[str]:
    """Unless dishonest validators led. One that nobody decided is neither."""
    quorum = finished.history.terms.quorum
    for name, logged in finished.history.submissions.items():
        decided = finished.count_finding_votes(logged)
        for (filed, end), counted in zip(logged.list_findings(), decided, strict=True):
            if end is None:
                continue
            if find_ruling(logged, filed, end) is not None:  # inspectors are honest here
                if isinstance(end.entry, e.FindingUpheld) is not finished.is_forged(logged):
                    yield f"an inspector ruled on the finding about {name}, and {type(end.entry).__name__} is wrong"
                continue
            if isinstance(end.entry, e.FindingUpheld):
                if not finished.is_forged(logged) and counted.dishonest < counted.honest + quorum:
                    yield f"{name} is honest and was found fraudulent with votes {counted}"
            elif finished.is_forged(logged) and counted.votes and counted.dishonest == 0 and counted.honest >= quorum:
                yield f"{name} is forged and the finding about it was dismissed with votes {counted}"


def found_work_is_not_trained_on(finished: FinishedWorld) -> Iterator[str]:
    for name, logged in finished.history.submissions.items():
        is_found = logged.upheld and not logged.overturned
        if is_found and any(line.index > logged.upheld[0].index for line in logged.trained):
            yield f"{name} was found fraudulent, and trained on after that"


def compute_bond_losses_nano(history: LogHistory) -> tuple[int, int]:
    """What dismissed findings cost their authors at the least, and at the most.

    A finding that judges do not decide in time costs nothing. Where a plain majority accepted because too few were left
    to ask, the log does not show which of the two it was.
    """
    least = most = 0
    for logged in history.submissions.values():
        for filed, end in logged.list_findings():
            if end is not None and isinstance(end.entry, e.FindingDismissed):
                bond_nano: int = history.terms.finding_bond_nano
                votes = Counter(v.entry.outcome for v in logged.verdicts if filed.index < v.index < end.index)
                is_early = end.at_ms < filed.at_ms + history.terms.judgement_ms
                is_ruled = find_ruling(logged, filed, end) is not None
                least += bond_nano if is_early or is_ruled or is_clear(votes, history.terms.quorum) else 0
                most += bond_nano if votes or is_ruled else 0
    return least, most


def is_clear(votes: Counter[Outcome], quorum: int) -> bool:
    return max(lead(votes, Outcome.INVALID), lead(votes, Outcome.ACCEPT)) >= 2 * quorum - 1


def compute_bounty_nano(logged: LoggedSubmission, history: LogHistory) -> int:
    """What the finder gets of an executed slash, at the least; more where the appeal's bond came from the stake."""
    if not logged.upheld or not logged.executed:
        return 0
    bounty_nano: int = logged.proposed[0].entry.amount_nano * history.terms.bounty_share // BASIS_POINTS
    return bounty_nano
