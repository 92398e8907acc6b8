"""Sizes of leases: bounded by what a node has delivered, what its engine holds, the longest rows and the time left."""

from dataclasses import replace

import pytest

from prime_coordinator.constants import (
    ACTIVE_MS,
    BATCH_PARTS,
    IN_HAND_BATCHES,
    LATENCY_MS_MAX,
    ROWS_CREDIT_MAX,
)
from prime_coordinator.scheduling.sizing import ActiveWorkers, RowCredits, WorkerLoad, limit_to_share
from prime_protocol.constants import LEASE_MS_MAX, LEASE_SLACK, LEASE_TARGET_MS
from prime_protocol.wire.ids import NodeId

ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)
GPU = WorkerLoad(
    tokens_per_s=12_800,
    rows_claimed=256,
    credit=10_000,
    rows_open=0,
    slot_rows=16,
    row_tokens=2_000,
    row_tokens_max=16_000,
    left_ms=None,
)
"""256 rows at 50 tokens/s each: 40 s for a row of mean length, 320 s for the longest."""


def test_a_gpu_gets_leases_of_a_minute_until_several_batches_are_in_hand() -> None:
    assert GPU.get_rows() == GPU.rows_target == 384
    assert replace(GPU, tokens_per_s=2_000).get_rows() == 256 // BATCH_PARTS, "long rows: a part of the batch"
    assert replace(GPU, rows_open=IN_HAND_BATCHES * 256 - 10).get_rows() == 10
    assert replace(GPU, rows_open=IN_HAND_BATCHES * 256).get_rows() < 1


def test_the_deadline_leaves_time_for_the_longest_row_at_the_speed_of_a_full_batch() -> None:
    full = replace(GPU, rows_open=1_000)
    assert full.expect_ms(128) == 20_000 + 320_000
    assert full.get_duration_ms(128) == LEASE_SLACK * 340_000
    assert replace(GPU, row_tokens_max=16, row_tokens=8).get_duration_ms(1) == LEASE_TARGET_MS
    assert replace(GPU, tokens_per_s=1e-3).get_duration_ms(128) == LEASE_MS_MAX


def test_a_claim_of_a_huge_batch_is_bounded_by_what_was_delivered() -> None:
    liar = replace(GPU, rows_claimed=10**9, credit=64, tokens_per_s=100)
    assert liar.get_rows() <= 64
    assert liar.get_room() <= 64


def test_a_node_that_does_not_say_what_it_holds_gets_a_minute_of_work_and_then_the_next() -> None:
    plain = replace(GPU, rows_claimed=0)
    assert plain.get_rows() == plain.rows_target == 384
    assert replace(plain, rows_open=384).get_rows() == 384
    assert replace(plain, rows_open=768).get_rows() < 1


def test_a_machine_with_more_memory_than_speed_gets_so_few_rows_that_the_long_ones_are_done_in_time() -> None:
    slow = replace(GPU, tokens_per_s=100)
    assert slow.rows_fitting == 100 * LATENCY_MS_MAX // 1000 // 16_000 == 22
    assert slow.get_room() == 2 * 22
    assert replace(slow, rows_open=44).get_rows() < 1


def test_a_lease_shrinks_with_the_time_that_is_left_and_ends_at_whole_slots() -> None:
    plain = replace(GPU, rows_claimed=0)
    assert plain.row_ms == 156.25
    assert replace(plain, left_ms=11_000).get_rows() == 64
    assert replace(plain, left_ms=2_000).get_rows() == 0, "less than a slot"
    assert replace(GPU, left_ms=100_000).rows_at_once == 80, "fewer at once, so that the long ones are done"


def test_what_a_node_delivers_lets_it_have_four_times_as_much_in_hand() -> None:
    rows = RowCredits()
    assert rows.get(ANN, 16) == 16
    rows.record_submission(ANN, 16)
    assert rows.get(ANN, 16) == 64
    rows.record_loss(ANN)
    assert rows.get(ANN, 16) == 32
    rows.record_loss(BOB)
    assert rows.get(BOB, 16) == 16
    rows.record_submission(ANN, 2**40)
    assert rows.get(ANN, 16) == ROWS_CREDIT_MAX


def test_the_free_slots_are_shared_by_the_speed_of_those_that_asked_lately() -> None:
    workers = ActiveWorkers()
    workers.record(ANN, 300.0, 0)
    assert workers.get_share(ANN) is None, "alone"
    workers.record(BOB, 100.0, 10)
    assert (workers.get_share(ANN), workers.get_share(BOB)) == (0.75, 0.25)
    workers.record(ANN, 100.0, 20)
    assert workers.get_share(BOB) == 0.5, "a newer measurement replaces the old one"
    workers.record(ANN, 100.0, 20 + ACTIVE_MS)
    assert workers.get_share(ANN) is None, "the other has left"


def test_strangers_that_only_ask_do_not_take_from_the_share_of_others() -> None:
    workers = ActiveWorkers()
    workers.record(ANN, 300.0, 0)
    workers.record(BOB, 0.0, 0)
    assert (workers.get_share(ANN), workers.get_share(BOB)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("slot_ms", "expected"),
    [
        (LEASE_TARGET_MS, [32, 21, 14, 9, 6, 4, 3, 2, 1, 1, 1, 1, 1]),
        (LEASE_TARGET_MS / 8, [32, 21, 14, 9, 8, 8, 4]),
        (1.0, [32, 32, 32]),
    ],
)
def test_leases_shrink_towards_the_end_of_a_step_but_not_to_crumbs(slot_ms: float, expected: list[int]) -> None:
    sizes = []
    free = 96
    while free:
        sizes.append(min(free, limit_to_share(1000, free=free, total=96, share=1 / 3, slot_ms=slot_ms)))
        free -= sizes[-1]
    assert sizes == expected


def test_a_lease_is_one_slot_at_least_and_alone_a_node_gets_what_fits_it() -> None:
    assert limit_to_share(1000, free=5, total=96, share=0.001, slot_ms=1.0) == 1
    assert limit_to_share(7, free=96, total=96, share=None, slot_ms=1.0) == 7
