"""Strangers with free keys who fill the log, or gossip, against the coordinator's and the node's own decisions. Pure.

The core is the one that a coordinator runs, with an empty ledger. Every entry is signed and comes in as a node's does,
and so does every message of gossip.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

from prime_coordinator.core import Core
from prime_coordinator.gossip.bootstrap import BootstrapNodes
from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import GOSSIP_ATTACKS, STRANGER_ATTACKS
from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    BOOTSTRAP_NODES,
    DELEGATION_LIFE_MS_MAX,
    DRAW_MARGIN_MS,
    ENTRY_VALUE_NANO,
    FREE_BYTES_PER_DAY,
    REGISTRATION_MS,
    SERVING_ACCEPTED_BURST,
    SIGNATURE_BYTES,
)
from prime_protocol.errors import RemoteError
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
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.randomness_chain import QUICKNET
from prime_protocol.ledger.replay import Ledger
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, sign_document
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.peer_book import PeerLimits
from prime_runtime.gossip.libp2p.peer_table import DialPeer, PeerTable

NETWORK = NetworkId("flooded")
START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
KEYS = 64
DELEGATORS = 8
"""Of the keys, those that also delegate to new keys and revoke that at once."""
LARGEST = e.NodeRegistered(
    roles=(Role.RELAY, Role.VALIDATOR, Role.WORKER),
    hardware="",
    addresses=("/" + "x" * (ADDRESS_CHARS_MAX - 1),) * ADDRESSES_MAX,
)
SPOILERS = 100
"""Entries that the spoiler tries to write between two heads."""


class FloodedCoordinator:
    """A core and the time, and what became of the entries that strangers sent."""

    def __init__(self) -> None:
        key = make_key("coordinator")
        self.core = Core(key, Ledger(NETWORK), now_ms=START_MS)
        self.now_ms = START_MS
        self.sequence = 0
        self.accepted = 0
        self.grown_bytes = 0
        self.refusals: list[RemoteError] = []
        created = e.NetworkCreated(
            log_key="key",
            chain_id=0,
            contract=NodeId(bytes(20)),
            unbonding_ms=DAY_MS,
            randomness=QUICKNET,
            draw_margin_ms=DRAW_MARGIN_MS,
        )
        self.core.entry_writer.append_own(created, None, START_MS)
        self.core.entry_writer.drain()

    def send(self, key: WalletKey, entry: Any, address_group: str) -> bool:
        """Whether the log took the entry."""
        self.sequence += 1
        frame = seal_envelope(
            key,
            kind=type(entry).__name__,
            body=encode(entry),
            network=NETWORK,
            run=None,
            sequence=self.sequence,
            issued_at_ms=self.now_ms,
            life_ms=60_000,
        )
        payload = decode(Payload, frame[SIGNATURE_BYTES:])
        try:
            self.core.append_entry(payload, entry, frame, address_group=address_group, now_ms=self.now_ms)
        except RemoteError as error:
            self.refusals.append(error)
            return False
        leaves = self.core.entry_writer.drain()
        self.accepted += len(leaves)
        self.grown_bytes += sum(map(len, leaves))
        return True


def make_key(name: str) -> WalletKey:
    return WalletKey.from_secret(sha256(f"flood/{name}".encode()).digest())


def flood_log(days: int = 1) -> FloodedCoordinator:
    """Every key writes whenever its own limit allows it; half of the keys are new each time."""
    flooded = FloodedCoordinator()
    known = [make_key(f"known {number}") for number in range(KEYS // 2)]
    for turn in range(days * DAY_MS // REGISTRATION_MS):
        fresh = [make_key(f"turn {turn}, {number}") for number in range(KEYS // 2)]
        for number, key in enumerate((*known, *fresh)):
            flooded.send(key, replace(LARGEST, hardware=f"{turn:0256}"), f"network {number}")
        for number, owner in enumerate(known[:DELEGATORS]):
            node, group = fresh[number], f"network {number}"
            if flooded.send(node, delegate(owner, node, flooded.now_ms), group):
                flooded.send(owner, e.DelegationRevoked(node=node.node), group)
        flooded.now_ms += REGISTRATION_MS
    return flooded


def delegate(owner: WalletKey, node: WalletKey, now_ms: int) -> e.Delegated:
    delegation = Delegation(
        network=NETWORK,
        owner=owner.node,
        node=node.node,
        issued_at_ms=now_ms,
        expires_at_ms=now_ms + DELEGATION_LIFE_MS_MAX,
    )
    return e.Delegated(delegation=delegation, signature=sign_document(owner, delegation, EMBEDDED_DOMAIN))


def is_newcomer_admitted(flooded: FloodedCoordinator) -> bool:
    """Whether a newcomer with a balance gets in during the flood."""
    newcomer = make_key("newcomer")
    reference = Digest(sha256(b"a deposit").digest())
    deposit = e.Deposited(account=newcomer.node, amount_nano=ENTRY_VALUE_NANO, reference=reference)
    flooded.core.append_operator_entry(deposit, None, flooded.now_ms)
    flooded.core.entry_writer.drain()
    return flooded.send(newcomer, e.NodeRegistered(roles=(Role.WORKER,), hardware="a laptop"), "network 0")


def attack_with_flood() -> AttackResult:
    flooded = flood_log()
    grown = f"{flooded.accepted} entries, {flooded.grown_bytes / 1e6:.1f} MB in a day"
    is_bounded = flooded.grown_bytes <= 2 * FREE_BYTES_PER_DAY and is_newcomer_admitted(flooded)
    return AttackResult(
        verdict=AttackVerdict.REFUSED if is_bounded else None,
        checks=tuple({error.field for error in flooded.refusals}),
        reason=f"{grown}, {len(flooded.refusals)} refused",
    )


def attack_with_spoilers() -> AttackResult:
    """Each entry that the log took would be another root to choose from."""
    flooded, key = FloodedCoordinator(), make_key("spoiler")
    entry = e.NodeRegistered(roles=(Role.WORKER,), hardware="")
    for number in range(SPOILERS):
        flooded.send(key, replace(entry, hardware=f"try {number}"), "network 0")
        flooded.now_ms += 10
    return AttackResult(
        verdict=AttackVerdict.REFUSED if flooded.accepted == 1 else None,
        checks=tuple({error.field for error in flooded.refusals}),
        reason=f"{flooded.accepted} of {SPOILERS} entries were taken in {SPOILERS * 10} ms",
    )


FLOODS: dict[str, Callable[[], AttackResult]] = {
    "log-flood": attack_with_flood,
    "spoiler-entries": attack_with_spoilers,
}


def attack_intake() -> Iterator[tuple[Attack, AttackResult]]:
    for attack in STRANGER_ATTACKS:
        yield attack, FLOODS[attack.name]()


# --- Gossip -----------------------------------------------------------------------------------------------------------

GOSSIPED, RUN = NetworkId("gossiped"), RunId("run-1")
GOSSIP_KEYS = 200
"""Of the attacker."""
HONEST = 20
KNOWN_MAX = 2_048


def make_address(key: WalletKey, host: str) -> str:
    return f"/ip4/{host}/tcp/4001/p2p/{key.peer_id()}"


def seal(key: WalletKey, message: GossipMessage, run: RunId | None = RUN) -> bytes:
    return seal_gossip(key, message, network=GOSSIPED, run=run, sequence=1, now_ms=START_MS)


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
    attackers = [make_key(f"attacker {number}") for number in range(GOSSIP_KEYS)]
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
    reason = f"{GOSSIP_KEYS} keys of one address range get {captured} of {len(dialled)} dials"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("address_range",), reason=reason)


def crowd_bootstrap() -> AttackResult:
    """One owner registers many nodes, at addresses of many providers, and all say that they can be dialled."""
    nodes = BootstrapNodes(Random(1), allows_private=False)
    owner = make_key("owner").node
    crowd = {make_key(f"crowd {number}"): owner for number in range(GOSSIP_KEYS)}
    honest = {make_key(f"honest {number}"): make_key(f"owner {number}").node for number in range(HONEST)}
    for number, (key, owned_by) in enumerate((crowd | honest).items()):
        host = f"{20 + number % 80}.{number}.1.1"
        frame = seal(key, PeerRecord(addresses=(make_address(key, host),)), run=None)
        nodes.put(RUN, open_peer_record(frame, network=GOSSIPED, now_ms=START_MS), owned_by, START_MS)
    named = [PeerAddress.parse(text).node for text in nodes.choose(RUN, make_key("newcomer").node, START_MS)]
    captured = len(set(named) & {key.node for key in crowd})
    if captured > 1 or len(named) < BOOTSTRAP_NODES:
        return AttackResult(verdict=None, checks=(), reason=f"{captured} of {len(named)} named are the attacker's")
    reason = f"{GOSSIP_KEYS} nodes of one owner get {captured} of {len(named)} places"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("owner",), reason=reason)


def flood_records() -> AttackResult:
    """Fresh keys send valid serving records, each once; then the trainer announces a checkpoint."""
    trainer = make_key("trainer")
    guard = GossipGuard(GOSSIPED, is_trainer=lambda run, node: node == trainer.node)
    budget = GossipBudget()

    def take(key: WalletKey, message: GossipMessage, kind: GossipKind) -> bool:
        frame = seal(key, message)
        verdict = guard.validate(get_topic(GOSSIPED, RUN, kind), frame, run=RUN, now_ms=START_MS, budget=budget)
        return isinstance(verdict, GossipAccepted)

    record = ServingRecord(urls=("http://203.0.113.9:1",), depth=1, slots_free=4, manifests=(Digest(bytes(32)),))
    taken = sum(take(make_key(f"flood {number}"), record, GossipKind.SERVING) for number in range(GOSSIP_KEYS))
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
    reason = f"{taken} of {GOSSIP_KEYS} records are taken, and the trainer is heard"
    return AttackResult(verdict=AttackVerdict.REFUSED, checks=("budget",), reason=reason)


GOSSIP_SCENARIOS: dict[str, Callable[[], AttackResult]] = {
    "eclipse": eclipse_node,
    "crowded-bootstrap": crowd_bootstrap,
    "record-flood": flood_records,
}


def attack_gossip() -> Iterator[tuple[Attack, AttackResult]]:
    for attack in GOSSIP_ATTACKS:
        yield attack, GOSSIP_SCENARIOS[attack.name]()
