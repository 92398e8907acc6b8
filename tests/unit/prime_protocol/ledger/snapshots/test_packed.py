"""A mapping with packed values reads as a dict of the values, and unpacks each at most once."""

import pickle
from copy import deepcopy
from dataclasses import dataclass

import pytest

from prime_protocol.ledger.snapshots.packed import LABEL_BYTES, PackedMapping
from prime_protocol.wire.ids import NodeId

ANN, BOB = NodeId(b"a" * LABEL_BYTES), NodeId(b"b" * LABEL_BYTES)


@dataclass
class Item:
    label: NodeId
    number: int
    is_closed: bool = True


class Unpacker:
    def __init__(self) -> None:
        self.calls: list[int] = []
        """How many values each call was asked for."""

    def __call__(self, packed: list[bytes]) -> list[Item]:
        self.calls.append(len(packed))
        return [Item(NodeId(each[:LABEL_BYTES]), each[LABEL_BYTES]) for each in packed]


ITEMS = {1: Item(ANN, 1), 2: Item(BOB, 2), 3: Item(ANN, 3)}


def make(unpacker: Unpacker) -> PackedMapping[int, Item]:
    stored = [(1, ANN + b"\x01"), (2, Item(BOB, 2)), (3, ANN + b"\x03")]
    return PackedMapping(stored, unpacker)


def test_every_reader_gets_the_values() -> None:
    assert {key: make(Unpacker())[key] for key in ITEMS} == ITEMS
    assert [make(Unpacker()).get(key) for key in (1, 2, 4)] == [ITEMS[1], ITEMS[2], None]
    assert list(make(Unpacker()).items()) == list(ITEMS.items())
    assert list(make(Unpacker()).values()) == list(ITEMS.values())
    assert make(Unpacker()) == make(Unpacker()) == ITEMS
    assert make(Unpacker()) != {1: ITEMS[1]}
    assert deepcopy(make(Unpacker())) == ITEMS
    assert pickle.loads(pickle.dumps(make(Unpacker()))) == ITEMS
    assert PackedMapping[int, Item]() == {}


def test_a_value_is_unpacked_once_and_many_together() -> None:
    unpacker = Unpacker()
    items = make(unpacker)
    items[1].number = 9
    assert items[1].number == 9, "a change stays"
    items.unpack(items)
    items.unpack(items)
    assert list(items.values())[2] == ITEMS[3]
    assert unpacker.calls == [1, 1]
    together = Unpacker()
    make(together).unpack([1, 2, 3])
    assert together.calls == [2]


def test_labels_and_stored_values_need_no_unpacking() -> None:
    unpacker = Unpacker()
    items = make(unpacker)
    assert list(items.iter_labels()) == [(1, ANN), (2, BOB), (3, ANN)]
    assert {type(label) for _, label in items.iter_labels()} == {NodeId}
    assert [type(value) for _, value in items.iter_stored()] == [bytes, Item, bytes]
    assert items.list_unpacked() == [(2, ITEMS[2])]
    assert unpacker.calls == []


def test_a_missing_key_is_missing() -> None:
    with pytest.raises(KeyError):
        make(Unpacker())[4]
