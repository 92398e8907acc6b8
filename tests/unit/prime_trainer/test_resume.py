"""Whether the folder of a trainer fits the run."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import RunStatus
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import RunReply
from prime_trainer.resume import UNPUBLISHED_MAX, verify_run
from support.ledger_network import TERMS

KEY, OTHER = NodeId(bytes(20)), NodeId(bytes([1] * 20))
FILES = Digest(bytes([2] * 32))
RUN = RunReply(
    status=RunStatus.ACTIVE,
    terms=replace(TERMS, trainer=KEY, model_files=ANY_MODEL_FILES),
    rules=PROTOCOL_VERSION,
    latest_step=5,
    is_exhausted=False,
    accepted=(),
)


def with_terms(**changes: Any) -> RunReply:
    return replace(RUN, terms=replace(RUN.terms, **changes))


@pytest.mark.parametrize(("step", "latest"), [(-1, -1), (0, -1), (5, 5), (5 + UNPUBLISHED_MAX, 5)])
def test_folder_at_the_run_s_step_or_a_few_ahead_can_resume(step: int, latest: int) -> None:
    verify_run(replace(RUN, latest_step=latest), KEY, FILES, step)
    verify_run(replace(with_terms(model_files=FILES), latest_step=latest), KEY, FILES, step)


@pytest.mark.parametrize(
    ("run", "step", "text"),
    [
        (with_terms(trainer=OTHER), 5, "the run's trainer is"),
        (with_terms(model_files=Digest(bytes([3] * 32))), 5, "bound to model files"),
        (RUN, -1, "has no checkpoint of it"),
        (RUN, 4, "is this the folder of this run"),
        (RUN, 6 + UNPUBLISHED_MAX, "is this the folder of this run"),
    ],
)
def test_folder_that_does_not_fit_is_refused_with_advice(run: RunReply, step: int, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        verify_run(run, KEY, FILES, step)
