"""What failures cost: a wait that grows, ends by itself, and is forgotten after one good file."""

import pytest

from prime_coordinator.constants import BAD_FILES_PER_LEASE_MAX, FAILURE_WAIT_MS, FAILURE_WAIT_MS_MAX, FAILURES_FREE
from prime_coordinator.scheduling.eligibility import Backoff
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import NodeId, RunId

ANN, RUN = NodeId(b"a" * 20), RunId("run-1")


def test_the_first_failures_cost_nothing() -> None:
    conduct = Backoff()
    for _ in range(FAILURES_FREE):
        conduct.record_lost_lease(ANN, 0)
    assert conduct.wait_ms(ANN, 0) == 0


def test_each_further_failure_doubles_the_wait_up_to_a_limit_and_time_ends_it() -> None:
    conduct = Backoff()
    waits = []
    for _ in range(100):
        conduct.record_lost_lease(ANN, 0)
        waits.append(conduct.wait_ms(ANN, 0))
    counted = waits[FAILURES_FREE:]
    assert counted[:3] == [FAILURE_WAIT_MS, 2 * FAILURE_WAIT_MS, 4 * FAILURE_WAIT_MS]
    assert counted[-1] == FAILURE_WAIT_MS_MAX
    assert conduct.wait_ms(ANN, FAILURE_WAIT_MS_MAX) == 0


def test_a_good_file_clears_the_slate() -> None:
    conduct = Backoff()
    for _ in range(10):
        conduct.record_lost_lease(ANN, 0)
    conduct.record_good_file(ANN)
    assert conduct.wait_ms(ANN, 0) == 0
    conduct.record_lost_lease(ANN, 0)
    assert conduct.wait_ms(ANN, 0) == 0


def test_a_lease_may_bring_a_few_bad_files_and_then_no_more() -> None:
    conduct = Backoff()
    for left in range(BAD_FILES_PER_LEASE_MAX - 1, -1, -1):
        conduct.check_file(RUN, 7)
        assert conduct.record_bad_file(ANN, RUN, 7, 0) is (left > 0)
    with pytest.raises(RemoteError) as caught:
        conduct.check_file(RUN, 7)
    assert caught.value.field == "receipt.lease"
    conduct.check_file(RUN, 8)
    conduct.forget_lease(RUN, 7)
    conduct.check_file(RUN, 7)
