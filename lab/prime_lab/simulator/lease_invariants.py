"""What must hold of the leases that one node has at a time, from the log alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from prime_coordinator.constants import LEASES_UNSETTLED_MAX, UNSETTLED_STEPS_MAX
from prime_lab.simulator.finished_world import FinishedWorld
from prime_protocol.constants import LEASES_OPEN_MAX
from prime_protocol.ledger.entries import LeaseEnded
from prime_protocol.wire.ids import NodeId


def no_node_has_more_in_hand_than_it_may(finished: FinishedWorld) -> Iterator[str]:
    """Open leases, and those with the submissions that are not settled: their number, and their slots.

    The last lease may go beyond the slots; it has at most those of a step.
    """
    steps_max = (UNSETTLED_STEPS_MAX + 1) * finished.history.terms.slots_per_step
    for node, changes in _list_changes(finished).items():
        counts: Counter[str] = Counter()
        for _, change in sorted(changes, key=lambda each: each[0]):
            counts.update(change)
            if counts["open"] > LEASES_OPEN_MAX:
                yield f"{node} has {counts['open']} leases open"
            if counts["unsettled"] > LEASES_UNSETTLED_MAX:
                yield f"{node} has {counts['unsettled']} leases and submissions that are not settled"
            if counts["slots"] > steps_max:
                yield f"{node} has {counts['slots']} slots that are not settled"


def _list_changes(finished: FinishedWorld) -> dict[NodeId, list[tuple[int, dict[str, int]]]]:
    """By node: where in the log its leases begin and end, and its submissions are settled."""
    changes: defaultdict[NodeId, list[tuple[int, dict[str, int]]]] = defaultdict(list)
    settled = {
        logged.receipt.lease: logged.settled[0].index
        for logged in finished.history.submissions.values()
        if logged.settled
    }
    for number, lease in finished.history.leases.items():
        own, slots = changes[lease.granted.entry.node], len(lease.slots)
        own.append((lease.granted.index, {"open": 1, "unsettled": 1, "slots": slots}))
        for line in lease.ends[:1]:
            own.append((line.index, {"open": -1}))
            is_over = isinstance(line.entry, LeaseEnded)
            if is_over or number in settled:
                own.append((line.index if is_over else settled[number], {"unsettled": -1, "slots": -slots}))
    return changes
