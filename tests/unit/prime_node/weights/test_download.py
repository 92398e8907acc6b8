"""What a download decides, event by event. Whole broadcasts are in tests/sim/test_broadcast.py."""

from random import Random
from typing import TypeVar

from prime_node.weights.download import Download
from prime_node.weights.events import (
    CancelTransfer,
    DownloadEffect,
    DownloadEvent,
    DownloadFinished,
    DownloadTick,
    DropParent,
    FailReason,
    FetchLimits,
    FetchShard,
    ParentFound,
    ParentFull,
    ParentLost,
    PollAnswered,
    PollFailed,
    PollParent,
    ShardArrived,
    ShardCorrupt,
    ShardFailed,
    TransferProgressed,
)
from prime_node.weights.parents import BAN_MS, ParentScores
from prime_protocol.wire.ids import NodeId

KIND = TypeVar("KIND")
LIMITS = FetchLimits()
SHARD_BYTES = 1_000_000


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


ANN, BOB, CAT = node(1), node(2), node(3)


def bitmap(*shards: int, size: int = 2) -> bytes:
    return sum(1 << shard for shard in shards).to_bytes(size, "little")


def download(
    shards: int = 8, *, held: tuple[int, ...] = (), seed: int = 1, parents: ParentScores | None = None
) -> Download:
    return Download([SHARD_BYTES] * shards, held, ParentScores() if parents is None else parents, Random(seed), LIMITS)


def only(kind: type[KIND], effects: list[DownloadEffect]) -> list[KIND]:
    return [effect for effect in effects if isinstance(effect, kind)]


def has(parent: NodeId, *shards: int, coming: tuple[int, ...] = (), free: int = 4, depth: int = 1) -> PollAnswered:
    return PollAnswered(parent, bitmap(*shards), bitmap(*coming), free, depth)


def meet(tree: Download, *told: PollAnswered, now_ms: int = 0) -> list[DownloadEffect]:
    """Find parents, and hear from each what it has; every effect on the way."""
    effects: list[DownloadEffect] = []
    for each in told:
        effects += tree.handle(ParentFound(each.parent, each.depth, each.slots_free), now_ms)
    for each in told:
        effects += tree.handle(each, now_ms)
    return effects


def arrive(tree: Download, fetch: FetchShard, now_ms: int, elapsed_ms: int = 100) -> list[DownloadEffect]:
    return tree.handle(ShardArrived(fetch.parent, fetch.shard, SHARD_BYTES, elapsed_ms), now_ms)


def feed(tree: Download, *events: DownloadEvent, now_ms: int) -> list[DownloadEffect]:
    return [effect for event in events for effect in tree.handle(event, now_ms)]


# --- Asking ---------------------------------------------------------------------------------------------------------


def test_a_found_parent_is_polled_and_asked_only_for_what_it_told() -> None:
    tree = download(4)
    assert tree.handle(ParentFound(ANN, 0, 4), 0) == [PollParent(ANN)]
    effects = tree.handle(has(ANN, 2), 10)
    assert only(FetchShard, effects) == [FetchShard(ANN, 2)]


def test_a_stranger_gets_one_request_at_a_time_and_two_once_it_has_delivered() -> None:
    tree = download(8)
    first = only(FetchShard, meet(tree, has(ANN, *range(8))))
    assert len(first) == 1
    assert len(only(FetchShard, arrive(tree, first[0], 100))) == LIMITS.parent_transfers_max


def test_requests_go_to_all_parents_before_any_gets_two() -> None:
    tree = download(8)
    fetches = only(FetchShard, meet(tree, has(ANN, *range(8)), has(BOB, *range(8)), has(CAT, *range(8))))
    assert {fetch.parent for fetch in fetches} == {ANN, BOB, CAT}
    assert len({fetch.shard for fetch in fetches}) == 3


def test_the_rarest_shard_is_asked_first() -> None:
    tree = download(8)
    common = tuple(range(7))
    for number in range(4, 9):
        meet(tree, has(node(number), *common, free=0))
    fetches = only(FetchShard, meet(tree, has(ANN, *range(8))))
    assert fetches == [FetchShard(ANN, 7)]


def test_what_neighbours_are_receiving_counts_as_theirs() -> None:
    tree = download(3)
    effects = meet(tree, has(BOB, coming=(0, 1), free=0), has(ANN, 0, 1, 2))
    assert only(FetchShard, effects)[-1] == FetchShard(ANN, 2)


def test_two_children_of_one_parent_draw_different_shards() -> None:
    drawn = {only(FetchShard, meet(download(16, seed=seed), has(ANN, *range(16))))[0].shard for seed in range(40)}
    assert len(drawn) > 10


def test_a_coming_shard_is_requested_only_if_no_available_parent_holds_one() -> None:
    tree = download(1)
    assert only(FetchShard, meet(tree, has(ANN, coming=(0,)))) == [FetchShard(ANN, 0)]
    tree = download(2)
    tree.handle(ParentFound(ANN, 1, 4), 0)
    tree.handle(ParentFound(BOB, 1, 4), 0)
    assert only(FetchShard, tree.handle(has(BOB, 0), 0)) == [FetchShard(BOB, 0)]
    assert only(FetchShard, tree.handle(has(ANN, coming=(1,)), 0)) == [FetchShard(ANN, 1)]


def test_never_more_transfers_than_allowed() -> None:
    tree = download(16)
    told = [has(node(number), *range(16)) for number in range(1, 20)]
    assert len(only(FetchShard, meet(tree, *told))) == LIMITS.transfers_max


def test_resumes_with_what_is_on_disk() -> None:
    tree = download(4, held=(0, 1, 3))
    assert only(FetchShard, meet(tree, has(ANN, *range(4)))) == [FetchShard(ANN, 2)]
    assert only(DownloadFinished, tree.handle(ShardArrived(ANN, 2, SHARD_BYTES, 1), 5)) == [DownloadFinished()]


def test_finished_is_said_once_even_if_all_was_there() -> None:
    tree = download(2, held=(0, 1))
    assert tree.handle(DownloadTick(), 0) == [DownloadFinished()]
    assert tree.handle(DownloadTick(), 1) == []
    assert tree.progress(1).eta_ms == 0


# --- Trouble --------------------------------------------------------------------------------------------------------


def test_a_corrupt_shard_costs_one_shard_and_bars_its_sender() -> None:
    parents = ParentScores()
    tree = download(8, parents=parents)
    fetches = only(FetchShard, meet(tree, has(ANN, *range(8)), has(BOB, *range(8))))
    bad = next(fetch for fetch in fetches if fetch.parent == ANN)
    effects = tree.handle(ShardCorrupt(ANN, bad.shard), 50)
    assert DropParent(ANN) in effects
    later = feed(tree, has(ANN, *range(8)), DownloadTick(), ParentLost(ANN), ParentFound(ANN, 0, 9), now_ms=BAN_MS // 2)
    assert all(fetch.parent == BOB for fetch in only(FetchShard, effects + later))
    assert PollParent(ANN) not in later
    other = download(8, parents=parents)
    assert only(FetchShard, meet(other, has(ANN, *range(8)), now_ms=60)) == [], "barred in every download"


def test_a_lone_barred_parent_is_tried_again_when_its_time_is_over() -> None:
    tree = download(1)
    meet(tree, has(ANN, 0))
    tree.handle(ShardCorrupt(ANN, 0), 50)
    assert tree.wake_ms == 50 + BAN_MS
    assert tree.handle(DownloadTick(), tree.wake_ms) == [PollParent(ANN)]
    assert only(FetchShard, tree.handle(has(ANN, 0), 60 + BAN_MS)) == [FetchShard(ANN, 0)]


def test_other_transfers_of_a_liar_are_cancelled() -> None:
    tree = download(8)
    first = only(FetchShard, meet(tree, has(ANN, *range(8))))[0]
    running = only(FetchShard, arrive(tree, first, 100))
    effects = tree.handle(ShardCorrupt(ANN, running[0].shard), 200)
    assert only(CancelTransfer, effects) == [CancelTransfer(ANN, running[1].shard)]


def test_full_is_no_failure_and_its_children_become_parents() -> None:
    parents = ParentScores()
    tree = download(2, parents=parents)
    shard = only(FetchShard, meet(tree, has(ANN, 0, 1)))[0].shard
    hoped = parents.estimate_rate(ANN, 10)
    effects = tree.handle(ParentFull(ANN, shard, 1_000, ((BOB, 2), (CAT, 2))), 10)
    assert parents.estimate_rate(ANN, 10) == hoped
    assert only(PollParent, effects) == [PollParent(BOB), PollParent(CAT)] or only(PollParent, effects) == [
        PollParent(CAT),
        PollParent(BOB),
    ]
    assert only(FetchShard, effects) == []
    assert 10 + 1_000 <= tree.wake_ms <= 10 + 1_500
    assert len(only(FetchShard, tree.handle(DownloadTick(), tree.wake_ms))) == 1


def test_news_of_a_free_slot_ends_the_pause() -> None:
    tree = download(2)
    shard = only(FetchShard, meet(tree, has(ANN, 0)))[0].shard
    tree.handle(ParentFull(ANN, shard, 20_000, ()), 10)
    tree.handle(has(ANN, 0, free=1), 100)
    assert tree.wake_ms <= 100 + LIMITS.backoff_ms


def test_pauses_grow_and_are_bounded_and_never_end_the_trying() -> None:
    tree = download(1)
    now_ms, pauses = 0, []
    fetches = only(FetchShard, meet(tree, has(ANN, 0)))
    for _ in range(12):
        assert fetches == [FetchShard(ANN, 0)]
        tree.handle(ShardFailed(ANN, 0, FailReason.BROKEN), now_ms)
        pauses.append(tree.wake_ms - now_ms)
        now_ms = tree.wake_ms
        fetches = only(FetchShard, tree.handle(DownloadTick(), now_ms))
    assert pauses[0] <= 1.5 * LIMITS.backoff_ms
    assert LIMITS.backoff_max_ms <= pauses[-1] <= 1.5 * LIMITS.backoff_max_ms


def test_a_transfer_without_bytes_is_cancelled_in_time_and_asked_elsewhere() -> None:
    tree = download(1)
    meet(tree, has(ANN, 0))
    tree.handle(ParentFound(BOB, 1, 4), 1)
    tree.handle(has(BOB, 0), 2)
    assert tree.wake_ms <= LIMITS.first_byte_ms
    effects: list[DownloadEffect] = []
    for now_ms in (tree.wake_ms, LIMITS.first_byte_ms):
        effects += tree.handle(DownloadTick(), now_ms)
    assert CancelTransfer(ANN, 0) in effects
    effects += tree.handle(ShardFailed(ANN, 0, FailReason.STALLED), LIMITS.first_byte_ms)
    assert FetchShard(BOB, 0) in effects


def watch(bytes_of_ann: int, bytes_of_bob: int) -> list[CancelTransfer]:
    """Two parents that both have both shards; the cancels after one watch."""
    tree = download(2)
    shards = {fetch.parent: fetch.shard for fetch in only(FetchShard, meet(tree, has(ANN, 0, 1), has(BOB, 0, 1)))}
    feed(tree, TransferProgressed(ANN, shards[ANN], 1), TransferProgressed(BOB, shards[BOB], 1), now_ms=10)
    progress = [TransferProgressed(ANN, shards[ANN], bytes_of_ann), TransferProgressed(BOB, shards[BOB], bytes_of_bob)]
    feed(tree, *progress, now_ms=2_900)
    cancels = only(CancelTransfer, tree.handle(DownloadTick(), 10 + LIMITS.stall_ms))
    assert {cancel.shard for cancel in cancels if cancel.parent == BOB} <= {shards[BOB]}
    return cancels


def test_a_trickle_is_cancelled_if_others_flow_and_have_the_shard() -> None:
    assert [cancel.parent for cancel in watch(60_000, 900_000)] == [ANN]
    assert watch(300_000, 900_000) == []


def test_if_all_are_slow_together_it_is_our_own_line_and_nothing_is_thrown_away() -> None:
    assert watch(60_000, 60_000) == []
    assert watch(1, 1) == []


def test_the_only_source_is_given_more_time_but_not_for_ever() -> None:
    tree = download(1)
    meet(tree, has(ANN, 0))
    tree.handle(TransferProgressed(ANN, 0, 1), 10)
    cancelled = [
        bool(only(CancelTransfer, tree.handle(DownloadTick(), 10 + watch * LIMITS.stall_ms))) for watch in (1, 2, 3)
    ]
    assert cancelled == [False, False, True]


def test_an_absent_shard_is_cleared_and_is_no_failure_of_the_parent() -> None:
    parents = ParentScores()
    tree = download(2, parents=parents)
    shard = only(FetchShard, meet(tree, has(ANN, 0, 1)))[0].shard
    hoped = parents.estimate_rate(ANN, 5)
    tree.handle(ShardFailed(ANN, shard, FailReason.ABSENT), 5)
    assert parents.estimate_rate(ANN, 5) == hoped
    assert only(FetchShard, tree.handle(DownloadTick(), tree.wake_ms)) == [FetchShard(ANN, 1 - shard)]


def test_a_transfer_we_cancelled_is_no_failure_of_the_parent() -> None:
    parents = ParentScores()
    tree = download(1, parents=parents)
    meet(tree, has(ANN, 0))
    hoped = parents.estimate_rate(ANN, 5)
    assert only(FetchShard, tree.handle(ShardFailed(ANN, 0, FailReason.STALLED), 5)) == [FetchShard(ANN, 0)]
    assert parents.estimate_rate(ANN, 5) == hoped


def test_a_parent_lost_and_found_is_not_asked_again_for_what_it_is_sending() -> None:
    tree = download(1)
    meet(tree, has(ANN, 0))
    later = feed(tree, ParentLost(ANN), ParentFound(ANN, 1, 4), has(ANN, 0), now_ms=5_000)
    assert only(FetchShard, later) == []
    assert tree.handle(ShardArrived(ANN, 0, SHARD_BYTES, 10), 5_010) == [DownloadFinished()]


def test_in_the_endgame_a_slow_shard_is_asked_twice_and_the_loser_cancelled() -> None:
    parents = ParentScores()
    parents.record_arrived(BOB, 10_000_000, 1_000, 0)
    tree = download(1, parents=parents)
    meet(tree, has(ANN, 0))
    feed(tree, TransferProgressed(ANN, 0, 1), now_ms=10)
    feed(tree, TransferProgressed(ANN, 0, 100_000), ParentFound(BOB, 1, 4), now_ms=1_010)
    assert only(FetchShard, tree.handle(has(BOB, 0), 1_020)) == [FetchShard(BOB, 0)]
    effects = tree.handle(ShardArrived(BOB, 0, SHARD_BYTES, 100), 1_200)
    assert effects == [CancelTransfer(ANN, 0), DownloadFinished()]
    hoped = parents.estimate_rate(ANN, 1_201)
    tree.handle(ShardFailed(ANN, 0, FailReason.STALLED), 1_201)
    assert parents.estimate_rate(ANN, 1_201) == hoped, "losing a race is no failure"


# --- Polling --------------------------------------------------------------------------------------------------------


def test_no_more_neighbours_are_polled_than_allowed_and_none_twice_at_once() -> None:
    tree = download(4)
    found = [ParentFound(node(number), 1, 4) for number in range(1, 31)]
    polls = [poll.parent for poll in only(PollParent, feed(tree, *found, now_ms=0))]
    assert len(polls) == len(set(polls)) == LIMITS.neighbours_max


def test_who_has_everything_is_not_polled_again_and_its_place_goes_to_another() -> None:
    tree = download(4)
    found = [ParentFound(node(number), 1, 4) for number in range(1, 31)]
    polled = only(PollParent, feed(tree, *found, now_ms=0))
    effects = tree.handle(has(polled[0].parent, *range(4)), 100)
    assert [poll.parent for poll in only(PollParent, effects)] != [polled[0].parent]


def test_a_failed_poll_is_repeated_after_a_growing_pause() -> None:
    tree = download(4)
    tree.handle(ParentFound(ANN, 1, 4), 0)
    now_ms, pauses = 0, []
    for _ in range(9):
        assert tree.handle(PollFailed(ANN), now_ms) == []
        pauses.append(tree.wake_ms - now_ms)
        now_ms = tree.wake_ms
        assert tree.handle(DownloadTick(), now_ms) == [PollParent(ANN)]
    assert pauses[0] <= LIMITS.backoff_ms < LIMITS.backoff_max_ms / 2 <= pauses[-1] <= LIMITS.backoff_max_ms


def test_parents_are_bounded_and_hearsay_evicts_none() -> None:
    tree = download(4)
    shard = only(FetchShard, meet(tree, has(ANN, *range(4))))[0].shard
    crowd = tuple((node(number), 1) for number in range(100, 400))
    tree.handle(ParentFull(ANN, shard, 1, crowd), 10)
    assert len(tree._neighbours) == LIMITS.candidates_max
    assert tree._neighbours.get(ANN) is not None
    tree.handle(ParentFound(BOB, 1, 4), 20)
    assert len(tree._neighbours) == LIMITS.candidates_max
    assert tree._neighbours.get(BOB) is not None


def test_bits_beyond_the_manifest_mean_nothing() -> None:
    tree = download(4)
    tree.handle(ParentFound(ANN, 0, 4), 0)
    assert only(FetchShard, tree.handle(PollAnswered(ANN, b"\xf0" * 2000, b"\xf0", 10**9, 10**9), 1)) == []


# --- What children are told -----------------------------------------------------------------------------------------


def test_a_shard_is_coming_once_bytes_have_come_and_held_once_it_arrived() -> None:
    tree = download(8)
    shard = only(FetchShard, meet(tree, has(ANN, *range(8), depth=3)))[0].shard
    assert tree.coming == bitmap(size=1)
    tree.handle(TransferProgressed(ANN, shard, 1), 20)
    assert (tree.held, tree.coming) == (bitmap(size=1), bitmap(shard, size=1))
    tree.handle(ShardArrived(ANN, shard, SHARD_BYTES, 100), 120)
    assert tree.held == bitmap(shard, size=1)
    assert tree.coming == bitmap(size=1)
    assert tree.depth() == 4


def test_progress_tells_rate_sources_and_expected_finish() -> None:
    tree = download(8)
    fetches = only(FetchShard, meet(tree, has(ANN, *range(8)), has(BOB, *range(8))))
    feed(tree, *(TransferProgressed(fetch.parent, fetch.shard, 1) for fetch in fetches), now_ms=10)
    assert tree.progress(10).eta_ms is None
    assert tree.progress(10).sources == 2
    arrive(tree, fetches[0], 1_000)
    arrive(tree, fetches[1], 2_000)
    progress = tree.progress(3_000)
    assert (progress.held, progress.shards, progress.held_bytes) == (2, 8, 2 * SHARD_BYTES)
    assert 0.8e6 < progress.rate_bytes_per_s < 1.2e6
    assert progress.eta_ms is not None
    assert 5_000 < progress.eta_ms < 7_500
