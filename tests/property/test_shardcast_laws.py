"""Laws of the shard tree: whatever parents say and do, a download stays within its limits and ends if it can."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

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
from prime_node.weights.parents import ParentScores, RarityCounts, draw_bit
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.shardcast.upload_slots import UploadAdmitted, UploadLimits, UploadSlots, UploadTicket

LIMITS = FetchLimits()
SHARD_BYTES = 50_000
bitmaps = st.integers(0, 2**40 - 1)


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


def list_bits(bitmap: int) -> list[int]:
    """Indices of the set bits, lowest first."""
    return [index for index in range(bitmap.bit_length()) if bitmap >> index & 1]


@given(st.lists(bitmaps, max_size=20), st.lists(st.integers(0, 19), max_size=10), bitmaps)
def test_planes_count_like_a_list_of_counters(added: list[int], removed: list[int], candidates: int) -> None:
    rarity, kept = RarityCounts(), list(added)
    for bitmap in added:
        rarity.add(bitmap)
    for index in removed:
        if index < len(kept):
            rarity.replace(kept[index], 0)
            kept[index] = 0
    counts = [sum(bitmap >> shard & 1 for bitmap in kept) for shard in range(40)]
    assert [rarity.count(shard) for shard in range(40)] == counts
    wanted = list_bits(candidates)
    fewest = min((counts[shard] for shard in wanted), default=0)
    assert list_bits(rarity.find_rarest(candidates)) == [shard for shard in wanted if counts[shard] == fewest]


@given(st.integers(1, 2**200 - 1), st.integers(0, 1000))
def test_a_drawn_bit_is_a_set_bit(bitmap: int, seed: int) -> None:
    assert bitmap >> draw_bit(bitmap, Random(seed)) & 1


class Hostile:
    """A rim whose parents do anything that the interface allows, in any order, for as long as they like."""

    def __init__(self, seed: int, shards: int, parents: int) -> None:
        self.dice = Random(seed)
        self.shards = shards
        self.parents = [node(number) for number in range(1, parents + 1)]
        self.tree = Download([SHARD_BYTES] * shards, (), ParentScores(), Random(seed + 1), LIMITS)
        self.now_ms = 0
        self.polls: set[NodeId] = set()
        self.fetches: set[tuple[NodeId, int]] = set()
        self.cancelled: set[tuple[NodeId, int]] = set()
        self.arrived: set[int] = set()
        self.finished = 0

    def carry_out(self, effects: list[DownloadEffect]) -> None:
        for effect in effects:
            assert not self.finished, "Finished is the last word"
            match effect:
                case PollParent(parent):
                    assert parent not in self.polls, "two polls at once"
                    self.polls.add(parent)
                case FetchShard(parent, shard):
                    assert (parent, shard) not in self.fetches
                    assert shard not in self.arrived, "fetches what it has"
                    self.fetches.add((parent, shard))
                case CancelTransfer(parent, shard):
                    assert (parent, shard) in self.fetches - self.cancelled
                    self.cancelled.add((parent, shard))
                case DownloadFinished():
                    assert len(self.arrived) == self.shards
                    self.finished += 1
                case DropParent():
                    pass
        assert len(self.fetches) <= LIMITS.transfers_max
        assert len(self.polls) <= LIMITS.neighbours_max
        assert len(self.tree._neighbours) <= LIMITS.candidates_max

    def tell(self, event: DownloadEvent) -> None:
        self.carry_out(self.tree.handle(event, self.now_ms))
        assert self.tree.wake_ms > self.now_ms or isinstance(event, TransferProgressed), "a Tick would never be over"

    def step(self) -> None:
        self.now_ms += self.dice.choice((0, 1, 50, 700, 4_000, 20_000))
        act = self.dice.randrange(5)
        if act == 0:
            parent = self.dice.choice(self.parents)
            found = ParentFound(parent, self.dice.randrange(-1, 99), self.dice.randrange(-1, 99))
            self.tell(found if self.dice.random() < 0.9 else ParentLost(parent))
        elif act == 1 and self.polls:
            self.answer_poll(self.dice.choice(sorted(self.polls)))
        elif act in (2, 3) and self.fetches:
            self.answer_fetch(*self.dice.choice(sorted(self.fetches)))
        else:
            self.tell(DownloadTick())

    def answer_poll(self, parent: NodeId) -> None:
        self.polls.discard(parent)
        if self.dice.random() < 0.2:
            self.tell(PollFailed(parent))
            return
        held, coming = self.dice.randbytes(3), self.dice.randbytes(3)
        self.tell(PollAnswered(parent, held, coming, self.dice.randrange(5), self.dice.randrange(9)))

    def answer_fetch(self, parent: NodeId, shard: int) -> None:
        draw = self.dice.random()
        if draw < 0.2 and (parent, shard) not in self.cancelled:
            self.tell(TransferProgressed(parent, shard, self.dice.randrange(SHARD_BYTES)))
            return
        was_cancelled = (parent, shard) in self.cancelled
        self.fetches.discard((parent, shard))
        self.cancelled.discard((parent, shard))
        if was_cancelled:
            self.tell(ShardFailed(parent, shard, FailReason.STALLED))
        elif draw < 0.5:
            self.arrived.add(shard)
            self.tell(ShardArrived(parent, shard, SHARD_BYTES, self.dice.randrange(5_000)))
        elif draw < 0.6:
            self.tell(ShardCorrupt(parent, shard))
        elif draw < 0.8:
            self.tell(ShardFailed(parent, shard, self.dice.choice(list(FailReason))))
        else:
            children = tuple((self.dice.choice(self.parents), self.dice.randrange(99)) for _ in range(3))
            self.tell(ParentFull(parent, shard, self.dice.randrange(-5, 10**7), children))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 90))
def test_no_parent_can_push_a_download_beyond_its_limits(seed: int, shards: int, parents: int) -> None:
    rim = Hostile(seed, shards, parents)
    for _ in range(400):
        if rim.finished:
            break
        rim.step()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_after_any_trouble_one_honest_parent_is_enough(seed: int, shards: int) -> None:
    rim = Hostile(seed, shards, 4)
    for _ in range(150):
        if not rim.finished:
            rim.step()
    honest = node(99)
    rim.parents = [honest]
    for fetch in sorted(rim.fetches):
        rim.fetches.discard(fetch)
        rim.cancelled.discard(fetch)
        rim.tell(ShardFailed(*fetch, FailReason.BROKEN))
    everything = ((1 << shards) - 1).to_bytes(3, "little")
    if not rim.finished:
        rim.tell(ParentFound(honest, 0, 6))
    for _ in range(4_000):
        if rim.finished:
            return
        for parent in sorted(rim.polls):
            rim.polls.discard(parent)
            is_honest = parent == honest
            rim.tell(PollAnswered(parent, everything, b"", 6, 0) if is_honest else PollFailed(parent))
        for parent, shard in sorted(rim.fetches):
            rim.fetches.discard((parent, shard))
            rim.cancelled.discard((parent, shard))
            if parent == honest:
                rim.arrived.add(shard)
                rim.tell(ShardArrived(parent, shard, SHARD_BYTES, 10))
            else:
                rim.tell(ShardFailed(parent, shard, FailReason.BROKEN))
        if not rim.finished:
            rim.now_ms = min(rim.tree.wake_ms, rim.now_ms + 60_000)
            rim.tell(DownloadTick())
    raise AssertionError(f"seed {seed}: {len(rim.arrived)} of {shards} after a long time")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6))
def test_slots_are_never_overdrawn_and_always_come_back(seed: int, total: int, each: int) -> None:
    dice, open_tickets, now_ms = Random(seed), list[UploadTicket](), 0
    limits = UploadLimits(slots=total, address_slots=min(each, total))
    slots = UploadSlots(limits)
    for _ in range(300):
        now_ms += dice.choice((0, 1, 200, 3_000))
        if open_tickets and dice.random() < 0.5:
            slots.finish(open_tickets.pop(dice.randrange(len(open_tickets))), dice.randrange(9), now_ms)
        else:
            number = dice.randrange(8)
            answer = slots.request_slot(node(number), f"10.0.0.{number}", Digest(bytes(32)), now_ms)
            if isinstance(answer, UploadAdmitted):
                open_tickets.append(answer.ticket)
            else:
                assert 0 < answer.retry_ms <= 5_000
                assert node(number) not in answer.children
        groups = [ticket.group for ticket in open_tickets]
        assert len(groups) <= total
        assert max((groups.count(group) for group in groups), default=0) <= limits.address_slots
        assert slots.slots_free(now_ms) == total - len(groups)
