"""When a slash is proposed, and how and when it ends. Pure: the ledger has the rules, this has the next entry."""

from prime_coordinator.cases import Case
from prime_coordinator.scribe import Scribe
from prime_protocol.entries import Outcome, SlashExecuted, SlashOverturned, SlashProposed
from prime_protocol.judgement import found
from prime_protocol.state import State


def propose_slash(scribe: Scribe, case: Case, now_ms: int) -> None:
    """What the terms say, as far as there is stake."""
    position = (case.submission.owner, case.submission.node)
    amount_nano = min(case.terms.slash_nano, scribe.state.books.slashable_nano(position))
    evidence = next(iter(case.submission.evidence))
    entry = SlashProposed(submission=case.name, amount_nano=amount_nano, evidence=evidence)
    scribe.write(entry, case.run_name, now_ms)


def slash_end(
    state: State, case: Case, now_ms: int, *, is_appealable: bool = False
) -> SlashExecuted | SlashOverturned | None:
    """The entry that ends an open slash, if it is time for one; not while a court may still hear an appeal."""
    slash = case.slash
    assert slash is not None
    if slash.appealed_at_ms is None:
        is_due = now_ms >= slash.appeal_until_ms and not is_appealable
        return SlashExecuted(submission=case.name) if is_due else None
    outcome = found(state, case.run, case.name, now_ms)
    if outcome is Outcome.HARD:
        return SlashExecuted(submission=case.name)
    if outcome is not None or now_ms >= slash.appealed_at_ms + slash.judgement_ms:
        return SlashOverturned(submission=case.name)
    return None
