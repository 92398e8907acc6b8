"""Strangers with free keys against gossip: whom a node dials, whom the coordinator names, what a node takes. Pure.

Each attack runs against the real decisions of a node or of the coordinator, with honest nodes beside the attacker.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from random import Random

from prime_coordinator.gossip.bootstrap import BootstrapNodes
from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import GOSSIP_ATTACKS
from prime_protocol.constants import BOOTSTRAP_NODES, SERVING_ACCEPTED_BURST
from prime_protocol.gossip.guard import GossipAccepted, GossipBudget, GossipGuard
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    GossipMessage,
    PeerRecord,
    ServingRecord,
    get_topic,
    open_peer_record,
    seal_gossip,
)
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.peer_book import PeerLimits
from prime_runtime.gossip.libp2p.peer_table import DialPeer, PeerTable

NETWORK, RUN = NetworkId("gossiped"), RunId("run-1")
NOW_MS = 1_800_000_000_000
KEYS = 200
"""Of the attacker."""
HONEST = 20
KNOWN_MAX = 2_048


def make_key(name: str) -> WalletKey:
    return WalletKey.from_secret(sha256(f"gossip/{name}".encode()).digest())


def make_address(key: WalletKey, host: str) -> str:
    return f"/ip4/{host}/tcp/4001/p2p/{key.peer_id()}"


def seal(key: WalletKey, message: GossipMessage, run: RunId | None = RUN) -> bytes:
    return seal_gossip(key, message, network=NETWORK, run=run, sequence=1, now_ms=NOW_MS)


def eclipse_node() -> AttackResult:
    """The attacker names its keys at the addresses of one provider, and answers every dial."""
    usual = P2PConfig()
    limits = PeerLimits(
        target=usual.peers_target,
        known_max=KNOWN_MAX,
        per_host_max=usual.connections_per_address_max,
        ping_ms=usual.ping_ms,
        ask_ms=usual.exchange_ms,
    )
    victim = make_key("victim")
    table = PeerTable(victim.peer_id(), limits, salt=b"salt")
    attackers = [make_key(f"attacker {number}") for number in range(KEYS)]
    for number, key in enumerate(attackers):
        table.book.learn(
            (PeerAddress.parse(make_address(key, f"11.1.{number}.1")),),
            record=b"",
            until_ms=0,
            now_ms=0,
            source=attackers[0].peer_id(),
        )
    for number in range(HONEST):
        address = make_address(make_key(f"honest {number}"), f"{20 + 2 * number}.7.7.7")
        table.book.learn((PeerAddress.parse(address),), record=b"", until_ms=0, now_ms=0, source="saved")
    dialled = {effect.peer for effect in table.tick(10**6) if isinstance(effect, DialPeer)}
    captured = len(dialled & {key.peer_id() for key in attackers})
    if captured > 1:
        return AttackResult(verdict=None, checks=(), reason=f"{captured} of {len(dialled)} dials are the attacker's")
    reason = f"{KEYS} keys of one address range get {captured} of {len(dialled)} dials"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("address_range",), reason=reason)


def crowd_bootstrap() -> AttackResult:
    """One owner registers many nodes, at addresses of many providers, and all say that they can be dialled."""
    nodes = BootstrapNodes(Random(1), allows_private=False)
    owner = make_key("owner").node
    crowd = {make_key(f"crowd {number}"): owner for number in range(KEYS)}
    honest = {make_key(f"honest {number}"): make_key(f"owner {number}").node for number in range(HONEST)}
    for number, (key, owned_by) in enumerate((crowd | honest).items()):
        host = f"{20 + number % 80}.{number}.1.1"
        frame = seal(key, PeerRecord(addresses=(make_address(key, host),)), run=None)
        nodes.put(RUN, open_peer_record(frame, network=NETWORK, now_ms=NOW_MS), owned_by, NOW_MS)
    named = [PeerAddress.parse(text).node for text in nodes.choose(RUN, make_key("newcomer").node, NOW_MS)]
    captured = len(set(named) & {key.node for key in crowd})
    if captured > 1 or len(named) < BOOTSTRAP_NODES:
        return AttackResult(verdict=None, checks=(), reason=f"{captured} of {len(named)} named are the attacker's")
    reason = f"{KEYS} nodes of one owner get {captured} of {len(named)} places"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("owner",), reason=reason)


def flood_records() -> AttackResult:
    """Fresh keys send valid serving records, each once; then the trainer announces a checkpoint."""
    trainer = make_key("trainer")
    guard = GossipGuard(NETWORK, is_trainer=lambda run, node: node == trainer.node)
    budget = GossipBudget()

    def take(key: WalletKey, message: GossipMessage, kind: GossipKind) -> bool:
        frame = seal(key, message)
        verdict = guard.validate(get_topic(NETWORK, RUN, kind), frame, run=RUN, now_ms=NOW_MS, budget=budget)
        return isinstance(verdict, GossipAccepted)

    record = ServingRecord(urls=("http://203.0.113.9:1",), depth=1, slots_free=4, manifests=(Digest(bytes(32)),))
    taken = sum(take(make_key(f"flood {number}"), record, GossipKind.SERVING) for number in range(KEYS))
    announced = CheckpointAnnounced(
        step=Step(1),
        root=Digest(bytes(32)),
        manifest=Digest(bytes(32)),
        manifest_bytes=5_000,
        kind=ManifestKind.KEYFRAME,
        base=None,
        transport_bytes=10**9,
    )
    is_heard = take(trainer, announced, GossipKind.ANNOUNCED)
    if taken > SERVING_ACCEPTED_BURST or not is_heard:
        return AttackResult(verdict=None, checks=(), reason=f"{taken} records taken, trainer heard: {is_heard}")
    reason = f"{taken} of {KEYS} records are taken, and the trainer is heard"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("budget",), reason=reason)


GOSSIP_SCENARIOS: dict[str, Callable[[], AttackResult]] = {
    "eclipse": eclipse_node,
    "crowded-bootstrap": crowd_bootstrap,
    "record-flood": flood_records,
}


def attack_gossip() -> Iterator[tuple[Attack, AttackResult]]:
    for attack in GOSSIP_ATTACKS:
        yield attack, GOSSIP_SCENARIOS[attack.name]()
