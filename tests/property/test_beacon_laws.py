"""Laws of the keyed permutation and the draws."""

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.constants import PERMUTATION_SIZE_MAX
from prime_protocol.ledger.randomness import KeyedPermutation, compute_slot_task, draw_validators
from prime_protocol.wire.ids import Digest, NodeId, Slot

KEYS = st.binary(min_size=32, max_size=32).map(Digest)


@settings(deadline=None, max_examples=40)
@given(KEYS, st.integers(1, 300))
def test_permutation_is_a_bijection(key: Digest, size: int) -> None:
    permutation = KeyedPermutation(key, size)
    images = [permutation[index] for index in range(size)]
    assert sorted(images) == list(range(size))


@settings(deadline=None)
@given(KEYS, st.integers(1, PERMUTATION_SIZE_MAX), st.integers(0))
def test_inverse_undoes_the_permutation_at_any_size(key: Digest, size: int, index: int) -> None:
    permutation = KeyedPermutation(key, size)
    image = permutation[index % size]
    assert 0 <= image < size
    assert permutation.inverse(image) == index % size
    assert permutation[permutation.inverse(index % size)] == index % size


@settings(deadline=None, max_examples=30)
@given(KEYS, st.integers(1, 40), st.integers(0, 5))
def test_every_epoch_covers_the_task_set(beacon: Digest, tasks_total: int, epoch: int) -> None:
    slots = range(epoch * tasks_total, (epoch + 1) * tasks_total)
    assert sorted(compute_slot_task(beacon, Slot(slot), tasks_total) for slot in slots) == list(range(tasks_total))


@settings(deadline=None)
@given(KEYS, st.lists(st.integers(0, 5), max_size=20), st.integers(0, 7), st.integers(0, 6))
def test_draw_is_as_large_as_owners_allow(seed: Digest, owner_numbers: list[int], excluded: int, quorum: int) -> None:
    owners = {NodeId(bytes([0] * 19 + [i])): NodeId(bytes([9] * 19 + [o])) for i, o in enumerate(owner_numbers)}
    drawn = draw_validators(
        seed,
        {node: number for number, node in enumerate(owners)},
        owners,
        candidates_before=len(owners) // 2,
        excluded_owner=NodeId(bytes([9] * 19 + [excluded])),
        quorum=quorum,
    )
    eligible = set(owner_numbers) - {excluded}
    assert len(drawn) == min(quorum, len(eligible))
    assert len({owners[validator] for validator in drawn}) == len(drawn)
