"""Whether an entry stands in the log already, word for word: then it is answered as before and not written. Pure.

A sender that got no answer sends the same body again in a new envelope. The state remembers where the newest words of
each kind stand, so this works after a restart too, and ends when the ledger has forgotten the step.
"""

from hashlib import sha256
from typing import Any

from prime_protocol.entries import (
    CheckpointPublished,
    Inspected,
    NodeRegistered,
    StepMeasured,
    Submitted,
    VerdictGiven,
)
from prime_protocol.envelope import Letter
from prime_protocol.ids import Digest
from prime_protocol.messages import Logged
from prime_protocol.receipts import receipt_id
from prime_protocol.state import RunState, State
from prime_protocol.turn import Place


def find_repeat(state: State, letter: Letter, entry: Any) -> Logged | None:
    """Where this very word of this sender stands."""
    place = _find_place(state, letter, entry)
    if place is None or place.body != Digest(sha256(letter.body).digest()):
        return None
    return Logged(index=place.index, at_ms=place.at_ms)


def _find_place(state: State, letter: Letter, entry: Any) -> Place | None:
    if isinstance(entry, NodeRegistered):
        node = state.nodes.get(letter.sender)
        return node.registered if node and node.version == letter.version else None
    run = state.runs.get(letter.run) if letter.run is not None else None
    return _find_in_run(run, letter, entry) if run else None


def _find_in_run(run: RunState, letter: Letter, entry: Any) -> Place | None:
    match entry:
        case Submitted(receipt=receipt):
            submission = run.submissions.get(receipt_id(receipt))
            return submission.place if submission and submission.node == letter.sender else None
        case VerdictGiven(receipt=receipt):
            judged = run.submissions.get(receipt.submission)
            rounds = judged.rounds if judged else []
            return next((each.places[letter.sender] for each in rounds if letter.sender in each.places), None)
        case Inspected(submission=name):
            inspected = run.submissions.get(name)
            return inspected.inspected.get(letter.sender) if inspected else None
        case CheckpointPublished(step=step):
            checkpoint = run.checkpoints.get(step)
            return checkpoint.place if checkpoint and letter.sender == run.terms.trainer else None
        case StepMeasured(step=step):
            measured = run.checkpoints.get(step)
            return measured.measured if measured and letter.sender == run.terms.trainer else None
        case _:
            return None
