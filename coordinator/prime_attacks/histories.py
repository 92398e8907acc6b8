"""A dishonest coordinator: logs that are bent after the fact, signed with its own keys, shown to a stranger.

Whoever runs a coordinator can sign any entry of its own and any tree head. What it cannot do is make a stranger's
replay hold, or make two heads that it signed fit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from prime_attacks.gallery import COORDINATORS, Attack, Outcome, Verdict
from prime_node.heads import Relation, Seen, compare, relate
from prime_protocol import entries as e
from prime_protocol.catalogue import read_letter
from prime_protocol.codec import decode, encode
from prime_protocol.entries import Record
from prime_protocol.envelope import Letter, seal
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import ENTRY_TYPES, replay
from prime_protocol.merkle import Tree, leaf_hash
from prime_protocol.tiles import encode_tile
from prime_protocol.treehead import TreeHead, sign_tree_head
from prime_simulator.host import Host
from prime_simulator.plan import Plan
from prime_simulator.simulation import play
from prime_simulator.world import NETWORK

Leaves = Sequence[bytes]


def find(leaves: Leaves, kind: type, is_wanted: Callable[[Any], bool] = lambda entry: True) -> int:
    """Index of the first entry of a kind."""
    for index, leaf in enumerate(leaves):
        _, letter = read_letter(leaf)
        if letter.kind == kind.__name__ and is_wanted(decode(kind, letter.body)):
            return index
    raise AssertionError(f"the world has no {kind.__name__}")


def rewrite(host: Host, leaf: bytes, change: Callable[[Any], Any]) -> bytes:
    """One of the coordinator's own entries with other words, signed by it at the same place and time."""
    record = decode(Record, leaf)
    _, letter = read_letter(leaf)
    entry = change(decode(ENTRY_TYPES[letter.kind], letter.body))
    frame = seal(
        host.key,
        kind=letter.kind,
        body=encode(entry),
        network=letter.network,
        run=letter.run,
        sequence=letter.sequence,
        issued_at_ms=letter.issued_at_ms,
        life_ms=life_ms(letter),
    )
    return encode(replace(record, frame=frame))


def life_ms(letter: Letter) -> int:
    return letter.expires_at_ms - letter.issued_at_ms


# --- Histories ------------------------------------------------------------------------------------------------------


def tell_another(host: Host, leaves: Leaves) -> list[bytes]:
    """The same length, and one payment of another time in it."""
    other = list(leaves)
    record = decode(Record, other[-1])
    other[-1] = encode(replace(record, at_ms=record.at_ms + 1))
    return other


def reorder(host: Host, leaves: Leaves) -> list[bytes]:
    """Two submissions change places."""
    first = find(leaves, e.Submitted)
    second = first + 1 + find(leaves[first + 1 :], e.Submitted)
    other = list(leaves)
    other[first], other[second] = other[second], other[first]
    return other


def drop(host: Host, leaves: Leaves) -> list[bytes]:
    """Up to a submission whose author was told that it is in the log, and on without it."""
    return list(leaves[: find(leaves, e.Submitted)])


def redraw(change: Callable[[e.AuditDrawn], e.AuditDrawn]) -> Callable[[Host, Leaves], list[bytes]]:
    def bend(host: Host, leaves: Leaves) -> list[bytes]:
        place = find(leaves, e.AuditDrawn, lambda entry: bool(entry.validators))
        return [*leaves[:place], rewrite(host, leaves[place], change), *leaves[place + 1 :]]

    return bend


def backdate(host: Host, leaves: Leaves) -> list[bytes]:
    place = find(leaves, e.Submitted)
    record = decode(Record, leaves[place])
    before = decode(Record, leaves[place - 1])
    return [*leaves[:place], encode(replace(record, at_ms=before.at_ms - 1)), *leaves[place + 1 :]]


BENT: dict[str, Callable[[Host, Leaves], list[bytes]]] = {
    "two-histories": tell_another,
    "reordered-log": reorder,
    "dropped-submission": drop,
    "invented-draw": redraw(lambda entry: replace(entry, validators=tuple(reversed(entry.validators)))),
    "spared-draw": redraw(lambda entry: replace(entry, validators=())),
    "back-dated-head": redraw(lambda entry: replace(entry, head_size=entry.head_size - 1)),
    "back-dated-entry": backdate,
}


# --- What a stranger makes of them ----------------------------------------------------------------------------------


def attack_histories() -> Iterator[tuple[Attack, Outcome]]:
    _, scene = play(Plan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    leaves = list(host.disk)
    for attack in COORDINATORS:
        yield attack, look_at(host, leaves, BENT[attack.name](host, leaves))


def look_at(host: Host, shown: Leaves, bent: Leaves) -> Outcome:
    """A party that kept a head of what it was shown first, and is now shown something else."""
    try:
        replay(NETWORK, bent, coordinator=host.key.node)
    except RemoteError as error:
        return Outcome(verdict=Verdict.SHOWN, checks=("replay",), reason=str(error))
    # The bent log goes on as long as the other did, so that it cannot be told by its length.
    longer = [*bent, *shown[len(bent) :][1:]] if len(bent) < len(shown) else list(bent)
    one, other = sign(host, shown), sign(host, longer)
    relation = relate(one, other)
    if relation is Relation.UNKNOWN:
        newer = shown if one.size > other.size else longer
        tree = Tree([leaf_hash(leaf) for leaf in newer])
        relation = compare(one, other, lambda tile: encode_tile(tile, tree.get_node))
    verdict = Verdict.SHOWN if relation is Relation.FORK else None
    sizes = f"heads over {one.size} and {other.size} entries"
    return Outcome(
        verdict=verdict,
        checks=("consistency",) if verdict else (),
        reason=f"{sizes}, both signed, do not fit" if verdict else f"{sizes} fit",
    )


def sign(host: Host, leaves: Leaves) -> Seen:
    tree = Tree([leaf_hash(leaf) for leaf in leaves])
    head = TreeHead(host.origin, len(leaves), tree.root())
    return Seen(head, sign_tree_head(head, host.log_key))
