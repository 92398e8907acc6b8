"""How many rows an engine holds: what it says until it has been full, and after that what it did."""

from prime_node.agent.engine_room import EngineRoom
from prime_node.agent.events import EngineReported


def report(running: int, waiting: int = 0, sequences_max: int = 256, kv_tokens: int = 0) -> EngineReported:
    return EngineReported(running, waiting, sequences_max, kv_tokens)


def test_nothing_is_known_before_the_first_report() -> None:
    assert EngineRoom().rows_at_once == 0


def test_the_cache_holds_as_many_rows_as_fit_by_their_mean_length() -> None:
    room = EngineRoom()
    room.record_report(report(running=4, kv_tokens=100_000))
    assert room.rows_at_once == 256, "no length is known"
    room.record_rows(2_000)
    assert room.rows_at_once == 50
    room.record_report(report(running=60, kv_tokens=100_000))
    assert room.rows_at_once == 60, "it does hold more"


def test_a_batch_that_others_wait_for_counts_more_than_what_should_fit() -> None:
    room = EngineRoom()
    room.record_report(report(running=100, waiting=5))
    assert room.rows_at_once == 100
    room.record_report(report(running=7, waiting=90))
    assert room.rows_at_once > 80, "the batch is being filled"
    for _ in range(100):
        room.record_report(report(running=40, waiting=60))
    assert room.rows_at_once == 40, "longer rows leave room for fewer"


def test_there_is_room_until_a_part_of_the_next_batch_waits() -> None:
    room = EngineRoom()
    room.record_report(report(running=100, waiting=1))
    assert room.has_room(124)
    assert not room.has_room(125)
