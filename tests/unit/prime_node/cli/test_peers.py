"""`prime-node peers` shows who is connected, how far away, at what rates, and through which relay."""

from prime_node.cli.peers import HEADERS, make_peers_grid
from prime_node.status.report import describe_p2p
from prime_protocol.wire.ids import NodeId, friendly_name
from prime_runtime.gossip.config import ConnectedPeer, P2PStatus
from support.gossip_network import ANN, BOB, wallet

NAMES = ("connected", "known", "banned", "inbox_dropped", "bytes_in", "bytes_out", "restarts")
KINDS = ("messages_in", "messages_out", "messages_refused", "messages_ignored")
COUNTS = dict.fromkeys((*NAMES, *KINDS), 0)


def connected(number: int, **changed: object) -> ConnectedPeer:
    key = wallet(number)
    usual: dict[str, object] = {
        "peer_id": key.peer_id(),
        "node": str(key.node),
        "address": "203.0.113.9",
        "is_outbound": True,
        "relay": "",
        "connected_ms": 90_000,
        "rtt_ms": 31,
        "bytes_in": 2_000_000,
        "bytes_out": 1_000,
        "in_per_s": 2_000,
        "out_per_s": 0,
        "named_by": "coordinator",
    }
    return ConnectedPeer(**(usual | changed))  # type: ignore[arg-type]


def status(*connections: ConnectedPeer) -> P2PStatus:
    return P2PStatus(
        is_running=True, peer_id=ANN.peer_id(), addresses=(), connections=connections, last_error="", **COUNTS
    )


def test_a_row_says_who_how_far_how_fast_and_through_which_relay() -> None:
    relay = wallet(7).peer_id()
    through = connected(3, relay=relay, rtt_ms=None, is_outbound=False, named_by="", address="evil\x1b[2J")
    depths: dict[NodeId, int] = {ANN.node: 2}
    report = describe_p2p(status(connected(2), through), "", depths.get)
    first, second = make_peers_grid(report["connections"]).rows
    shown = dict(zip(HEADERS, first, strict=True))
    assert (shown["peer"], shown["node"]) == (friendly_name(ANN.node), str(ANN.node))
    assert (shown["round trip"], shown["depth"], shown["through"]) == ("31 ms", "2", "direct")
    assert (shown["in"], shown["out"]) == ("2.0 kB/s, 2.0 MB", "0 B/s, 1.0 kB")
    assert (shown["opened by"], shown["found by"]) == ("this node", "coordinator")
    other = dict(zip(HEADERS, second, strict=True))
    assert other["node"] == str(BOB.node)
    assert (other["round trip"], other["depth"], other["opened by"]) == ("-", "-", "the peer")
    assert other["through"] == f"relay …{relay[-8:]}"
    assert other["found by"] == "itself"
    assert "\x1b" not in other["address"], "what a stranger says cannot move the cursor"


def test_a_peer_that_another_peer_named_is_shown_with_its_name() -> None:
    (row,) = make_peers_grid(describe_p2p(status(connected(2, named_by=BOB.peer_id())), "")["connections"]).rows
    assert row[-1] == f"…{BOB.peer_id()[-8:]}"
