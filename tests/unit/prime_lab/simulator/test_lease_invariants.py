"""The checker of what one node has in hand, on logs that are written by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from prime_coordinator.constants import UNSETTLED_STEPS_MAX
from prime_lab.simulator.lease_invariants import no_node_has_more_in_hand_than_it_may
from prime_lab.simulator.log_history import LoggedEntry, LoggedLease
from prime_protocol.constants import LEASES_OPEN_MAX
from prime_protocol.ledger.entries import LeaseEnded, LeaseGranted
from prime_protocol.wire.ids import NodeId, Slot, Step

ANN = NodeId(b"a" * 20)
SLOTS_PER_STEP = 64


def hold(leases: int, slots: int, ended: int = 0) -> list[str]:
    """What is wrong where a node is granted so many leases of so many slots, after others that it returned."""
    granted: dict[int, LoggedLease] = {}
    for number in range(ended + leases):
        entry = LeaseGranted(
            lease=number,
            node=ANN,
            step=Step(0),
            checkpoint_step=Step(0),
            first_slot=Slot(0),
            slots=slots,
            deadline_ms=1,
            speculative=False,
        )
        granted[number] = LoggedLease(LoggedEntry(2 * number, 0, ANN, entry), ANN)
        if number < ended:
            end = LoggedEntry(2 * number + 1, 0, ANN, LeaseEnded(lease=number, reason=""))
            granted[number].ends.append(end)
    history: Any = SimpleNamespace(leases=granted, submissions={}, terms=SimpleNamespace(slots_per_step=SLOTS_PER_STEP))
    return list(no_node_has_more_in_hand_than_it_may(SimpleNamespace(history=history)))  # type: ignore[arg-type]


@pytest.mark.parametrize("ended", [0, 100])
def test_as_many_leases_as_are_allowed_are_fine_and_one_more_is_not(ended: int) -> None:
    assert hold(LEASES_OPEN_MAX, 1, ended) == []
    assert hold(LEASES_OPEN_MAX + 1, 1, ended) == [f"{ANN} has {LEASES_OPEN_MAX + 1} leases open"]


def test_slots_of_few_large_leases_count_too() -> None:
    assert hold(UNSETTLED_STEPS_MAX + 1, SLOTS_PER_STEP) == []
    assert len(hold(UNSETTLED_STEPS_MAX + 2, SLOTS_PER_STEP)) == 1
