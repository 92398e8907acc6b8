"""Free slots of a step: what was taken comes back when nobody has it and nobody was credited for it."""

import random

import pytest

from prime_coordinator.scheduling.capacity import FreeSlots


def never(slot: int) -> bool:
    return False


def test_slots_are_given_out_from_below_and_once() -> None:
    free = FreeSlots(5, [], ())
    assert [free.take(2), free.take(2), free.take(2), free.take(2)] == [range(2), range(2, 4), range(4, 5), None]


def test_what_is_covered_or_gone_at_the_start_is_not_free() -> None:
    free = FreeSlots(8, [range(2, 4)], {6})
    assert [free.take(9), free.take(9), free.take(9), free.take(9)] == [range(2), range(4, 6), range(7, 8), None]


def test_a_slot_is_free_when_the_last_one_lets_go_of_it() -> None:
    free = FreeSlots(2, [], ())
    first = free.take(2)
    assert first is not None
    free.cover(first)
    free.uncover(first, never)
    assert len(free) == 0
    free.uncover(first, never)
    assert free.take(9) == range(2)


def test_what_was_credited_stays_gone() -> None:
    free = FreeSlots(4, [], ())
    slots = free.take(4)
    assert slots is not None
    free.uncover(slots, {1}.__contains__)
    assert [free.take(9), free.take(9)] == [range(1), range(2, 4)]


def test_slots_can_be_closed_whether_they_are_free_or_not() -> None:
    free = FreeSlots(10, [range(2)], ())
    free.close(range(1, 4))
    free.close(range(6, 7))
    assert [free.take(9), free.take(9), free.take(9)] == [range(4, 6), range(7, 10), None]


def test_only_covered_slots_get_another_holder() -> None:
    with pytest.raises(AssertionError):
        FreeSlots(4, [], ()).cover(range(1))


def test_whatever_is_taken_and_given_back_every_slot_is_where_a_plain_count_says() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        total = dice.randrange(1, 40)
        free, counts = FreeSlots(total, [], ()), [0] * total
        gone: set[int] = set()
        open_: list[range] = []
        for _ in range(200):
            kind = dice.randrange(3)
            if kind == 0:
                slots = free.take(dice.randrange(1, 6))
                if slots is not None:
                    assert all(counts[slot] == 0 and slot not in gone for slot in slots), seed
                    open_.append(slots)
                    for slot in slots:
                        counts[slot] += 1
            elif kind == 1 and open_:
                slots = dice.choice(open_)
                free.cover(slots)
                open_.append(slots)
                for slot in slots:
                    counts[slot] += 1
            elif open_:
                slots = open_.pop(dice.randrange(len(open_)))
                if dice.random() < 0.3:
                    gone.update(slots)
                for slot in slots:
                    counts[slot] -= 1
                free.uncover(slots, gone.__contains__)
            expected = sum(not count and slot not in gone for slot, count in enumerate(counts))
            assert len(free) == expected, seed
            assert all(free.count(slot) == count for slot, count in enumerate(counts)), seed


def test_slots_whose_credit_was_taken_back_are_free_again_unless_held_or_gone() -> None:
    free = FreeSlots(6, [], ())
    free.take(6)
    free.uncover(range(1, 6), {1, 2, 3, 4, 5}.__contains__)
    free.close(range(1, 6))
    assert len(free) == 0
    free.reopen(range(6), {5}.__contains__)
    assert free.take(6) == range(1, 5)
    assert free.take(6) is None
