"""The nodes that a coordinator names to a newcomer: reachable, of many owners and places, and few of one."""

from random import Random

from prime_coordinator.constants import BOOTSTRAP_OWNER_RECORDS, BOOTSTRAP_RECORDS
from prime_coordinator.gossip import bootstrap as module
from prime_coordinator.gossip.bootstrap import BootstrapNodes
from prime_protocol.constants import BOOTSTRAP_NODES, GOSSIP_LIFE_MS
from prime_protocol.gossip.messages import PeerRecord, ReceivedGossip, open_peer_record
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.ids import NodeId, RunId
from support.gossip_network import NETWORK, NOW_MS, RUN, peer_record, sealed, wallet

ASKER = wallet(9_999).node


def record(number: int, *hosts: str, now_ms: int = NOW_MS) -> ReceivedGossip:
    key = wallet(number)
    message = peer_record(key, *(f"/ip4/{host}/tcp/4001" for host in hosts))
    return open_peer_record(sealed(message, key, now_ms=now_ms, run=None), network=NETWORK, now_ms=now_ms)


def nodes(*, allows_private: bool = False) -> BootstrapNodes:
    return BootstrapNodes(Random(7), allows_private=allows_private)


def owner(number: int) -> NodeId:
    return wallet(5_000 + number).node


def test_a_newcomer_gets_one_address_of_each_node_of_its_run_but_itself() -> None:
    known = nodes()
    known.put(RUN, record(1, "10.0.0.1", "11.0.0.1", "12.0.0.1"), owner(1), NOW_MS)
    known.put(RUN, record(2, "13.0.0.1"), owner(2), NOW_MS)
    known.put(RunId("other"), record(3, "14.0.0.1"), owner(3), NOW_MS)
    told = known.choose(RUN, ASKER, NOW_MS)
    assert {PeerAddress.parse(text).host for text in told} == {"11.0.0.1", "13.0.0.1"}
    assert known.choose(RUN, wallet(1).node, NOW_MS) == tuple(text for text in told if "13.0.0.1" in text)


def test_an_owner_with_many_keys_and_a_range_with_many_owners_come_last() -> None:
    known = nodes()
    for number in range(1, 17):
        known.put(RUN, record(number, f"21.{number}.0.1"), owner(0), NOW_MS)  # one owner, many ranges
        known.put(RUN, record(100 + number, f"33.1.0.{number}"), owner(number), NOW_MS)  # one range, many owners
    honest = range(200, 200 + BOOTSTRAP_NODES - 2)
    for number in honest:
        known.put(RUN, record(number, f"{number - 100}.9.0.1"), owner(number), NOW_MS)
    told = [PeerAddress.parse(text).node for text in known.choose(RUN, ASKER, NOW_MS)]
    assert len(told) == BOOTSTRAP_NODES
    assert {wallet(number).node for number in honest} <= set(told)


def test_records_are_bounded_for_each_owner_and_in_all_and_expire() -> None:
    known = nodes()
    for number in range(1, 3 * BOOTSTRAP_OWNER_RECORDS):
        known.put(RUN, record(number, f"{number}.1.0.1"), owner(0), NOW_MS)
    assert len(known) == BOOTSTRAP_OWNER_RECORDS
    known.put(RUN, record(1, "1.2.0.1"), owner(1), NOW_MS)
    assert len(known) == BOOTSTRAP_OWNER_RECORDS + 1
    assert known.choose(RUN, ASKER, NOW_MS + GOSSIP_LIFE_MS) == ()
    assert len(known) == 0


def test_the_oldest_record_gives_way() -> None:
    known, one = nodes(), record(1, "11.0.0.1")
    address = one.message.parsed[0] if isinstance(one.message, PeerRecord) else None
    assert address is not None
    for number in range(BOOTSTRAP_RECORDS):
        key = (RUN, NodeId(number.to_bytes(20, "big")))
        known._known[key] = module.ReachableNode(key[1], address, NOW_MS + 1)
        known._owned[key[1]] = [key]
    known.put(RUN, one, owner(1), NOW_MS)
    assert len(known) == BOOTSTRAP_RECORDS
    assert (RUN, NodeId(bytes(20))) not in known._known


def test_a_private_address_is_named_only_inside() -> None:
    for is_inside in (False, True):
        known = nodes(allows_private=is_inside)
        known.put(RUN, record(1, "192.168.1.7"), owner(1), NOW_MS)
        assert bool(known.choose(RUN, ASKER, NOW_MS)) is is_inside
