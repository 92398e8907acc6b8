"""A snapshot is the state, in one encoding: what was folded from the same entries has the same bytes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgpack
import pytest

from prime_protocol.constants import RESTORE_GAP
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LogRestored, Outcome, SnapshotNoted
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import Ledger, decode_entry, replay, verify_leaf
from prime_protocol.ledger.snapshots.codec import UnreadableItem, get_codec
from prime_protocol.ledger.snapshots.packed import PackedMapping
from prime_protocol.ledger.snapshots.snapshot import compute_snapshot_digest, decode_snapshot, encode_snapshot
from prime_protocol.ledger.state import SubmissionState
from prime_protocol.wire.ids import Digest, NetworkId, Step
from support.ledger_network import NETWORK, RUN, World, digest


@cache
def make_busy_world() -> World:
    """With open leases, audits, slashes, rounds and payments."""
    world = World.started()
    world.settled("ann", Outcome.ACCEPT)
    world.convicted("bob", 3)
    world.submit(world.lease("ann", 5))
    world.note_head()
    world.lease("ann", 7)
    return world


def busy_world() -> World:
    return make_busy_world().fork()


def test_a_state_comes_back_as_it_was() -> None:
    get_codec.cache_clear()  # another test of this process may have built the codecs
    world = busy_world()
    data = encode_snapshot(NETWORK, world.state)
    found = decode_snapshot(NETWORK, data)
    assert found == world.state
    assert encode_snapshot(NETWORK, found) == data


def test_everyone_who_folds_the_same_entries_gets_the_same_bytes() -> None:
    world = busy_world()
    assert encode_snapshot(NETWORK, replay(NETWORK, world.leaves).state) == encode_snapshot(NETWORK, world.state)


@pytest.mark.parametrize("size", [1, 10, 20, 30, 40])
def test_a_fold_that_goes_on_from_a_snapshot_ends_in_the_same_bytes(size: int) -> None:
    world = busy_world()
    ledger = Ledger(NETWORK)
    begun = encode_snapshot(NETWORK, replay(NETWORK, world.leaves[:size]).state)
    ledger.state = decode_snapshot(NETWORK, begun)
    for leaf in world.leaves[size:]:
        ledger.apply(leaf)
    assert encode_snapshot(NETWORK, ledger.state) == encode_snapshot(NETWORK, world.state)


def test_a_field_with_its_default_value_is_left_out() -> None:
    _, _, state = msgpack.unpackb(encode_snapshot(NETWORK, Ledger(NETWORK).state))
    assert state == {}


def test_the_order_of_a_mapping_and_its_zeros_are_part_of_the_state() -> None:
    @dataclass
    class Books:
        counts: Counter[int] = field(default_factory=Counter)

    codec = get_codec(Books)
    assert codec.write(Books(Counter({2: 1, 1: 0}))) == {"counts": [2, 1, 1, 0]}
    assert codec.write(Books(Counter({1: 0}))) == {"counts": [1, 0]}, "a Counter with a zero equals one without"
    (books,) = codec.read_all([{"counts": [2, 1, 1, 0]}])
    assert list(books.counts) == [2, 1]


@dataclass
class Sample:
    """One field of each kind that needs a reader of its own."""

    pair: tuple[int, bytes]
    slot: int
    names: set[int] = field(default_factory=set)
    table: dict[int, str] = field(default_factory=dict)
    limit: int | None = None


GOOD: dict[str, Any] = {"pair": [1, b""], "slot": 1}


@dataclass(kw_only=True)
class Bounded:
    """A value with a rule of its own."""

    low: int
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise RemoteError("low", "is above high")


@pytest.mark.parametrize(
    ("plain", "path"),
    [
        ([], ""),
        ({"slot": 1}, ".pair"),
        (GOOD | {"more": 1}, ".more"),
        (GOOD | {"pair": 1}, ".pair"),
        (GOOD | {"pair": [1]}, ".pair"),
        (GOOD | {"pair": [1, 1]}, ".pair"),
        (GOOD | {"slot": "1"}, ".slot"),
        (GOOD | {"slot": -(2**63) - 1}, ".slot"),
        (GOOD | {"slot": True}, ".slot"),
        (GOOD | {"names": [1, "2"]}, ".names[1]"),
        (GOOD | {"table": [1]}, ".table"),
        (GOOD | {"table": [1, 2]}, ".table[0]"),
        (GOOD | {"limit": "none"}, ".limit"),
    ],
)
@pytest.mark.parametrize("before", range(3))
def test_a_value_of_another_type_is_refused_by_name_and_place(plain: Any, path: str, before: int) -> None:
    others = [{**GOOD, "limit": 3}, GOOD, {**GOOD, "names": [4], "table": [1, "one"]}]
    with pytest.raises(UnreadableItem) as refusal:
        get_codec(Sample).read_all([*others[:before], plain, *others[before:]])
    assert (refusal.value.index, refusal.value.field) == (before, path)


@pytest.mark.parametrize("plain", [bytes(31), "text"])
def test_bytes_of_another_length_or_type_are_refused_by_place(plain: Any) -> None:
    codec = get_codec(Digest)
    assert list(codec.read_all([bytes(32)] * 2)) == [Digest(bytes(32))] * 2
    with pytest.raises(UnreadableItem) as refusal:
        list(codec.read_all([bytes(32), plain]))
    assert refusal.value.index == 1


def test_a_value_that_breaks_a_rule_of_its_own_type_is_refused_by_place() -> None:
    codec = get_codec(Bounded)
    assert codec.read_all([{"low": 1}, {"low": 1, "high": 2}]) == [Bounded(low=1), Bounded(low=1, high=2)]
    with pytest.raises(UnreadableItem) as refusal:
        codec.read_all([{"low": 1}, {"low": 10}])
    assert (refusal.value.index, refusal.value.field) == (1, ".low")


def test_samples_of_each_kind_come_back_in_their_order() -> None:
    codec, samples = (
        get_codec(Sample),
        [
            Sample((1, b"x"), 2, {7}, {1: "one"}),
            Sample((2, b""), 3),
            Sample((3, b""), 4, limit=5),
        ],
    )
    assert codec.read_all([codec.write(sample) for sample in samples]) == samples


def change(edit: Callable[[list[Any]], object]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        plain = msgpack.unpackb(data)
        edit(plain)
        return bytes(msgpack.packb(plain))

    return damage


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (lambda data: data[:-1], "snapshot"),
        (lambda data: b"\xc1", "snapshot"),
        (lambda data: b"\x01", "snapshot"),
        (change(lambda plain: plain.pop()), "snapshot"),
        (change(lambda plain: plain.__setitem__(0, 3)), "snapshot.format"),
        (change(lambda plain: plain.__setitem__(0, 1)), "snapshot.format"),
        (change(lambda plain: plain.__setitem__(1, "othernet")), "snapshot.network"),
        (change(lambda plain: plain[2].__setitem__("at_ms", "late")), "snapshot.at_ms"),
        (change(lambda plain: plain[2].__setitem__("free_until_ms", 0)), "snapshot"),
        (change(lambda plain: plain[2]["references"].reverse()), "snapshot"),
    ],
)
def test_a_damaged_snapshot_is_refused(damage: Callable[[bytes], bytes], path: str) -> None:
    with pytest.raises(RemoteError) as refusal:
        decode_snapshot(NETWORK, damage(encode_snapshot(NETWORK, busy_world().state)))
    assert refusal.value.field == path


def test_only_a_party_that_encoded_a_snapshot_reads_it_without_encoding_it_again() -> None:
    reverse = change(lambda plain: plain[2]["references"].reverse())
    data = encode_snapshot(NETWORK, busy_world().state)
    assert decode_snapshot(NETWORK, data, is_canonical=True) == busy_world().state
    with pytest.raises(RemoteError, match="canonical"):
        decode_snapshot(NETWORK, reverse(data))
    decode_snapshot(NETWORK, reverse(data), is_canonical=True)


def test_a_snapshot_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_protocol.ledger.snapshots.snapshot.SNAPSHOT_BYTES_MAX", 10)
    with pytest.raises(RemoteError, match="the limit is 10"):
        decode_snapshot(NETWORK, bytes(11))


# --- Submissions that stay packed -----------------------------------------------------------------------------------


def read_own(data: bytes) -> PackedMapping[Digest, SubmissionState]:
    return decode_snapshot(NETWORK, data, is_canonical=True).runs[RUN].submissions


def test_a_closed_submission_stays_packed_until_it_is_needed() -> None:
    world = busy_world()
    data = encode_snapshot(NETWORK, world.state)
    kept = dict(read_own(data).iter_stored())
    closed = {name for name, known in world.run.submissions.items() if known.is_closed}
    assert closed
    assert closed == {name for name, value in kept.items() if isinstance(value, bytes)}
    assert kept.keys() - closed
    for name in closed:
        assert read_own(data)[name] == world.run.submissions[name]


def test_a_packed_submission_is_written_again_as_it_was_and_an_unpacked_one_as_it_is() -> None:
    world = busy_world()
    data = encode_snapshot(NETWORK, world.state)
    own = decode_snapshot(NETWORK, data, is_canonical=True)
    assert encode_snapshot(NETWORK, own) == data
    name = next(name for name, known in world.run.submissions.items() if known.is_closed)
    own.runs[RUN].submissions[name].trained_into = world.run.submissions[name].trained_into = Step(1)
    assert encode_snapshot(NETWORK, own) == encode_snapshot(NETWORK, world.state) != data


def change_submissions(edit: Callable[[list[Any]], object]) -> Callable[[bytes], bytes]:
    return change(lambda plain: edit(plain[2]["runs"][1]["submissions"]))


def unpack_closed(plain: list[Any]) -> None:
    for place, value in enumerate(plain):
        if type(value) is bytes and len(value) > 32:
            plain[place] = msgpack.unpackb(value[20:])


def pack_open(plain: list[Any]) -> None:
    for place, value in enumerate(plain):
        if type(value) is dict:
            plain[place] = value["node"] + msgpack.packb(value)


def relabel_closed(plain: list[Any]) -> None:
    for place, value in enumerate(plain):
        if type(value) is bytes and len(value) > 32:
            plain[place] = bytes(20) + value[20:]


def damage_closed(plain: list[Any]) -> None:
    (place, *_) = [place for place, value in enumerate(plain) if type(value) is bytes and len(value) > 32]
    plain[place] = plain[place][:-1]


@pytest.mark.parametrize("edit", [unpack_closed, pack_open, relabel_closed, damage_closed])
def test_another_partys_snapshot_with_submissions_packed_in_another_way_is_refused(
    edit: Callable[[list[Any]], object],
) -> None:
    with pytest.raises(RemoteError):
        decode_snapshot(NETWORK, change_submissions(edit)(encode_snapshot(NETWORK, busy_world().state)))


def test_an_open_submission_that_cannot_be_read_is_named_by_its_place() -> None:
    def damage(plain: list[Any]) -> None:
        open_ = [place for place, value in enumerate(plain) if type(value) is dict]
        plain[open_[-1]].pop("node")

    data = encode_snapshot(NETWORK, busy_world().state)
    with pytest.raises(RemoteError, match="is missing") as refusal:
        decode_snapshot(NETWORK, change_submissions(damage)(data))
    assert refusal.value.field == f"snapshot.runs[0].submissions[{len(busy_world().run.submissions) - 1}].node"


def test_a_party_reads_the_snapshots_that_it_wrote_in_format_1() -> None:
    def make_format_1(plain: list[Any]) -> None:
        plain[0] = 1
        for run in plain[2]["runs"][1::2]:
            del run["unsettled"]
            unpack_closed(run["submissions"])

    world = busy_world()
    old = change(make_format_1)(encode_snapshot(NETWORK, world.state))
    assert world.run.unsettled
    assert decode_snapshot(NETWORK, old, is_canonical=True) == world.state


def test_recent_submissions_are_those_of_steps_that_may_be_leased_or_trained_on() -> None:
    world = busy_world()
    run = decode_snapshot(NETWORK, encode_snapshot(NETWORK, world.state), is_canonical=True).runs[RUN]
    assert run.list_recent() == sorted(world.run.submissions.items(), key=lambda each: each[1].position.index)
    run.oldest = run.latest = 1 + max(run.steps) + run.terms.lag_max
    assert run.list_recent() == []


# --- In the log -----------------------------------------------------------------------------------------------------


def test_a_noted_snapshot_covers_more_than_the_last_and_no_more_than_there_is() -> None:
    world = World.started()
    size = world.state.size
    world.coordinate(SnapshotNoted(size=size, digest=compute_snapshot_digest(b""), format=1))
    for wrong in (size, size + 2):
        with world.refuses("size"):
            world.coordinate(SnapshotNoted(size=wrong, digest=digest("state"), format=1))
    world.coordinate(SnapshotNoted(size=size + 1, digest=digest("state"), format=2))
    assert world.state.snapshot_size == size + 1


def test_a_restored_log_names_all_entries_before_it_and_leaves_out_the_leases_that_may_be_lost() -> None:
    world = World.started()
    size, root, number = world.state.size, world.state.frontier.root(), world.run.lease_next
    for wrong in (LogRestored(size=size - 1, root=root), LogRestored(size=size, root=digest("another log"))):
        with world.refuses("size"):
            world.coordinate(wrong)
    assert (world.state.restores, world.state.restored_size) == (0, 0)
    world.coordinate(LogRestored(size=size, root=root))
    assert (world.state.restores, world.state.restored_size) == (1, size)
    assert world.run.lease_next == number + RESTORE_GAP


# --- Signatures that need no state ----------------------------------------------------------------------------------


def test_signatures_can_be_verified_apart_from_the_fold() -> None:
    world, checked = busy_world(), Ledger(NETWORK)
    for leaf in world.leaves:
        verify_leaf(leaf, NETWORK, world.state.domain, world.state.randomness)
        checked.apply_checked(leaf)
    assert checked.state == world.state
    with pytest.raises(RemoteError):
        verify_leaf(world.leaves[0], NetworkId("othernet"), world.state.domain, world.state.randomness)


@pytest.mark.parametrize("kind", [b"Submitted", b"VerdictGiven", b"RoundRecorded"])
def test_a_forged_signature_inside_an_entry_is_found_apart_from_the_fold(kind: bytes) -> None:
    world = busy_world()
    leaf = next(leaf for leaf in world.leaves if kind in leaf)
    payload = decode_leaf(leaf)[1]
    entry: Any = decode_entry(payload)
    forged = world.seal(
        world.names[payload.sender], type(entry)(**{**_fields(entry), "signature": _flip(entry.signature)})
    )
    with pytest.raises(RemoteError):
        verify_leaf(forged, NETWORK, world.state.domain, world.state.randomness)


def _fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _flip(signature: bytes) -> Any:
    return type(signature)(bytes([signature[0] ^ 1]) + signature[1:])
