"""Who is let in to fetch from us."""

from itertools import pairwise

import pytest

from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.upload_slots import (
    CUT_PAUSE_MAX_MS,
    CUT_PAUSE_MIN_MS,
    DAY_MS,
    GRACE_MS,
    LATE_MS,
    MANIFESTS_MAX,
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    RETRY_TOMORROW_MS,
    UploadAdmitted,
    UploadLimits,
    UploadRefused,
    UploadSlots,
    UploadTicket,
    choose_slots,
)

NEWS, OTHER = Digest(bytes([1] * 32)), Digest(bytes([2] * 32))


def child(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


def address(number: int) -> str:
    return f"10.0.{number >> 8}.{number & 255}"


def admit(slots: UploadSlots, number: int, now_ms: int = 0, manifest: Digest = NEWS) -> UploadTicket:
    answer = slots.request_slot(child(number), address(number), manifest, now_ms)
    assert isinstance(answer, UploadAdmitted)
    return answer.ticket


def refuse(slots: UploadSlots, number: int, now_ms: int = 0) -> UploadRefused:
    answer = slots.request_slot(child(number), address(number), NEWS, now_ms)
    assert isinstance(answer, UploadRefused)
    return answer


def test_slots_are_limited_and_come_back() -> None:
    slots = UploadSlots(UploadLimits(slots=2))
    first = admit(slots, 1)
    admit(slots, 2)
    assert slots.slots_free(0) == 0
    full = refuse(slots, 3)
    assert RETRY_MIN_MS <= full.retry_ms <= RETRY_MAX_MS
    slots.finish(first, 1_000, 500)
    assert slots.slots_free(500) == 1
    admit(slots, 3, 500)


def test_one_address_cannot_hold_all_slots_whatever_it_calls_itself() -> None:
    slots = UploadSlots(UploadLimits(slots=4, address_slots=2))
    answers = [slots.request_slot(child(name), "2001:db8::" + str(name), NEWS, 0) for name in range(1, 9)]
    assert sum(isinstance(answer, UploadAdmitted) for answer in answers) == 2
    admit(slots, 1)
    admit(slots, 2)


def test_a_ticket_is_given_back_once() -> None:
    slots = UploadSlots(UploadLimits())
    ticket = admit(slots, 1)
    slots.finish(ticket, 0, 1)
    with pytest.raises(AssertionError):
        slots.finish(ticket, 0, 1)


def test_a_refusal_names_children_of_that_manifest_the_latest_first_but_not_the_asker() -> None:
    slots = UploadSlots(UploadLimits(slots=3, children_told=2))
    slots.finish(admit(slots, 9, manifest=OTHER), 0, 0)
    for number in (1, 2, 3):
        admit(slots, number)
    assert refuse(slots, 4).children == (child(3), child(2))
    assert refuse(slots, 3).children == (child(2), child(1))
    slots.forget(NEWS)
    assert refuse(slots, 4).children == ()


def test_a_child_without_a_name_is_served_and_not_named() -> None:
    slots = UploadSlots(UploadLimits(slots=1, address_slots=1))
    assert isinstance(slots.request_slot(None, "10.0.0.1", NEWS, 0), UploadAdmitted)
    assert refuse(slots, 2).children == ()


def test_children_and_manifests_are_bounded() -> None:
    limits = UploadLimits(slots=1, address_slots=1, children_max=5, children_told=100)
    slots = UploadSlots(limits)
    for number in range(50):
        slots.finish(admit(slots, number, manifest=NEWS), 0, 0)
    assert slots.children(NEWS) == tuple(child(number) for number in range(49, 44, -1))
    for number in range(MANIFESTS_MAX):
        slots.finish(admit(slots, 1, manifest=Digest(bytes([100 + number] * 32))), 0, 0)
    assert slots.children(NEWS) == ()


def test_a_refused_newcomer_gets_a_slot_soon_though_others_ask_without_pause() -> None:
    """Four children take a slot the moment one is free; the fifth only comes back when told."""
    slots = UploadSlots(UploadLimits(slots=2, address_slots=1, streak_max=4))
    running = {number: (admit(slots, number), number * 100) for number in (1, 2)}
    retry_ms, now_ms = 0, 0
    while now_ms < 20_000:
        now_ms += 20
        for number, (ticket, began_ms) in list(running.items()):
            if now_ms - began_ms >= 200:
                slots.finish(ticket, 1, now_ms)
                del running[number]
        for number in (1, 2, 3, 4):
            answer = slots.request_slot(child(number), address(number), NEWS, now_ms) if number not in running else None
            if isinstance(answer, UploadAdmitted):
                running[number] = (answer.ticket, now_ms)
        if now_ms >= retry_ms:
            answer = slots.request_slot(child(5), address(5), NEWS, now_ms)
            if isinstance(answer, UploadAdmitted):
                break
            retry_ms = now_ms + answer.retry_ms
    assert now_ms < 10_000


def test_whoever_is_alone_never_has_to_yield() -> None:
    slots = UploadSlots(UploadLimits(slots=1, address_slots=1, streak_max=2))
    for now_ms in range(100):
        slots.finish(admit(slots, 1, now_ms), 1, now_ms)


def test_who_had_a_turn_yields_to_who_waits_and_the_waiting_is_forgotten() -> None:
    slots = UploadSlots(UploadLimits(slots=1, address_slots=1, streak_max=2))
    slots.finish(admit(slots, 1), 1, 0)
    ticket = admit(slots, 1)
    due_ms = refuse(slots, 2).retry_ms
    slots.finish(ticket, 1, 0)
    refuse(slots, 1)
    assert refuse(slots, 2, due_ms - 1).retry_ms == 1, "coming early helps nobody, and harms nobody"
    slots.finish(admit(slots, 2, due_ms), 1, due_ms)
    slots.finish(admit(slots, 1, due_ms), 1, due_ms)
    ticket = admit(slots, 1, due_ms)
    refuse(slots, 2, due_ms)
    slots.finish(ticket, 1, due_ms)
    admit(slots, 1, due_ms + RETRY_MAX_MS + GRACE_MS)


def test_the_day_cap_stops_serving_until_the_next_day() -> None:
    slots = UploadSlots(UploadLimits(day_bytes=1_000))
    slots.finish(admit(slots, 1), 999, 10)
    slots.finish(admit(slots, 1), 1, 20)
    assert refuse(slots, 1, 30).retry_ms == RETRY_TOMORROW_MS
    assert slots.slots_free(30) == 0
    admit(slots, 1, DAY_MS)


def test_what_was_sent_before_a_restart_counts_for_its_day() -> None:
    slots = UploadSlots(UploadLimits(day_bytes=1_000), sent_bytes=1_000, now_ms=3 * DAY_MS + 5)
    assert slots.sent_today(3 * DAY_MS + 6) == 1_000
    refuse(slots, 1, 3 * DAY_MS + 6)
    admit(slots, 1, 4 * DAY_MS)


def test_a_cap_of_nothing_serves_nobody() -> None:
    slots = UploadSlots(UploadLimits(day_bytes=0))
    refuse(slots, 1)
    refuse(slots, 1, 5 * DAY_MS)


def fill_late(slots: UploadSlots, *numbers: int) -> list[UploadTicket]:
    """They take all slots, and of each a piece is begun now and not taken."""
    tickets = [admit(slots, number) for number in numbers]
    for ticket in tickets:
        slots.begin_piece(ticket, 0)
    return tickets


def test_the_reader_that_is_late_for_longest_gives_way_to_who_waits_and_comes_after_it() -> None:
    slots = UploadSlots(UploadLimits(slots=2, address_slots=1))
    first, second = fill_late(slots, 1, 2)
    slots.end_piece(first, 1, 10)
    slots.begin_piece(first, 10)
    assert refuse(slots, 3, LATE_MS).cut is None
    full = refuse(slots, 3, LATE_MS + 1_000)
    assert (full.cut, full.retry_ms) == (second, RETRY_MIN_MS)
    slots.finish(second, 0, LATE_MS + 1_000)
    assert refuse(slots, 2, LATE_MS + 1_001).cut is None, "it does not take its slot back from who waits for it"
    admit(slots, 3, LATE_MS + 1_000 + RETRY_MIN_MS)


def test_a_slow_reader_is_left_alone_while_there_are_slots_or_who_asks_has_its_share_or_only_itself_waits() -> None:
    slots = UploadSlots(UploadLimits(slots=3, address_slots=1))
    fill_late(slots, 1, 2)
    assert refuse(slots, 1, 25_000).cut is None
    admit(slots, 3, 25_000)
    assert refuse(slots, 3, 25_000).cut is None
    alone = UploadSlots(UploadLimits(slots=2, address_slots=2))
    late = fill_late(alone, 1, 1)
    assert refuse(alone, 1, 25_000).cut is None
    assert refuse(alone, 2, 25_000).cut == late[0]


def test_time_that_the_owners_pace_takes_makes_no_reader_late() -> None:
    slots = UploadSlots(UploadLimits(slots=1, address_slots=1))
    (ticket,) = fill_late(slots, 1)
    slots.end_piece(ticket, 2**20, 3_000)
    assert refuse(slots, 2, 60_000).cut is None


def test_where_the_line_itself_is_slow_cuts_grow_rare_until_a_piece_goes_fast() -> None:
    """Everybody is late there. Whoever is cut off is replaced by another that is."""
    slots = UploadSlots(UploadLimits(slots=2, address_slots=1))
    running, cuts, number = {ticket.number: ticket for ticket in fill_late(slots, 1, 2)}, [], 3
    for now_ms in range(0, 6 * 3_600_000, 1_000):
        answer = slots.request_slot(child(number), address(number), NEWS, now_ms)
        if isinstance(answer, UploadAdmitted):
            running[answer.ticket.number] = answer.ticket
            slots.begin_piece(answer.ticket, now_ms)
            number += 1
        elif answer.cut is not None:
            cuts.append(now_ms)
            slots.finish(running.pop(answer.cut.number), 0, now_ms)
    pauses = [later - earlier for earlier, later in pairwise(cuts)]
    assert len(cuts) < 50
    assert pauses == sorted(pauses)
    assert CUT_PAUSE_MIN_MS <= pauses[0] < pauses[-1]
    assert pauses[-1] >= CUT_PAUSE_MAX_MS
    fast = next(iter(running.values()))
    slots.end_piece(fast, 2**20, slots._pieces[fast.number] + 900)
    assert refuse(slots, number + 1, now_ms + 100).cut is not None


def test_the_upload_rate_is_kept() -> None:
    slots = UploadSlots(UploadLimits(bytes_per_s=1_000_000))
    now_ms, sent = 1_000_000, 0
    while now_ms < 1_010_000:
        now_ms += slots.compute_wait_ms(now_ms, 64 * 2**10)
        sent += 64 * 2**10
    assert 0.95 < sent / 10_000_000 < 1.05


def test_without_a_cap_nobody_waits() -> None:
    assert UploadSlots(UploadLimits()).compute_wait_ms(0, 10**12) == 0


def test_slots_follow_the_uplink() -> None:
    found = [choose_slots(mbit * 125_000) for mbit in (1, 10, 100, 1_000, 10_000)]
    assert found == sorted(found)
    assert found[0] == 2
    assert found[2] == 6
    assert found[-1] == 32
