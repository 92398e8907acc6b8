"""Tree heads of a rotated key, and rotations that only one key has signed."""

from collections.abc import Iterator
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    KEY_ATTACKS,
)
from prime_lab.attacks.coordinator.forged_logs import sign_head
from prime_lab.attacks.coordinator.grinding import (
    Leaves,
)
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK
from prime_node.log.signed_heads import SignedHead
from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.keys.rotation import LogKeyRotated, make_log_key_rotation
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.signing import WalletKey


def attack_keys() -> Iterator[tuple[Attack, AttackResult]]:
    """In a log whose key is rotated: the thief of the old log key signs on, and thieves of one key rotate it."""
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host, leaves = scene.world.host, list(scene.world.host.disk)
    successor, thief = (Ed25519PrivateKey.from_private_bytes(sha256(name).digest()) for name in (b"next", b"thief"))
    honest = make_log_key_rotation(NETWORK, index=len(leaves), old=host.log_key, new=successor)
    old_head, self_rotated = KEY_ATTACKS
    rotated = [*leaves, seal_rotation(leaves, honest, host.key)]
    keys = KeyChain.begin(leaves[0], NETWORK).extend(rotated[-1])
    yield old_head, judge_old_head(sign_head(host, rotated).note, keys)
    # It has the log key and not the coordinator's; and it has the coordinator's and not the log key.
    stranger = WalletKey.from_secret(sha256(b"stranger").digest())
    by_stranger = seal_rotation(leaves, honest, stranger)
    forged = make_log_key_rotation(NETWORK, index=len(leaves), old=thief, new=successor)
    by_coordinator = seal_rotation(leaves, forged, host.key)
    yield self_rotated, judge_rotations(leaves, [by_stranger, by_coordinator])


def seal_rotation(leaves: Leaves, entry: LogKeyRotated, author: WalletKey) -> bytes:
    state = replay(NETWORK, leaves).state
    frame = seal_envelope(
        author,
        kind=LogKeyRotated.__name__,
        body=encode(entry),
        network=NETWORK,
        run=None,
        sequence=state.sequences.get(author.node, -1) + 1,
        issued_at_ms=state.at_ms,
        life_ms=ENVELOPE_LIFE_MS_MAX,
    )
    return encode(LogRecord(state.at_ms, frame))


def judge_old_head(note: bytes, keys: KeyChain) -> AttackResult:
    """What a node makes of the head that has followed the log's keys."""
    try:
        SignedHead.open(note, keys)
    except RemoteError as error:
        return AttackResult(verdict=AttackVerdict.REFUSED, checks=("log keys",), reason=str(error))
    return AttackResult(verdict=None, checks=(), reason="the head was accepted")


def judge_rotations(leaves: Leaves, forged: Leaves) -> AttackResult:
    """Each must be refused by those who replay the log, and by those who follow its keys only."""
    problems = []
    for leaf in forged:
        try:
            replay(NETWORK, [*leaves, leaf])
        except RemoteError as error:
            problems.append(str(error))
        try:
            KeyChain.of_leaves([leaves[0], leaf], NETWORK)
        except RemoteError as error:
            problems.append(str(error))
    is_proven = len(problems) == 2 * len(forged)
    verdict = AttackVerdict.PROVEN if is_proven else None
    return AttackResult(verdict=verdict, checks=("replay",) if is_proven else (), reason="; ".join(problems[::2]))
