"""A coordinator that grinds the draw: it tries in private what it may choose, and publishes what suits a friend.

A draw hangs on the first head after the submission, and the head on every entry before it. The last of these was taken
in at a time that only the coordinator knows, so each millisecond that it may claim is another head. A stranger sees one
log that holds, and no try that was thrown away.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prime_attacks.gallery import GROUND, Attack, Outcome, Verdict
from prime_attacks.histories import Leaves, rewrite
from prime_protocol import entries as e
from prime_protocol.catalogue import read_letter
from prime_protocol.codec import decode, encode
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.entries import Record
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.judgement import audit_rate_bps, expected_draw
from prime_protocol.ledger import ENTRY_TYPES, Ledger, replay
from prime_simulator.host import Host
from prime_simulator.plan import Plan
from prime_simulator.simulation import play
from prime_simulator.world import NETWORK, RUN

TRIES_MAX = 200
"""Far fewer than a coordinator has time for: a try is one hash of the log's right edge."""
Draw = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a log can be ground: its entries up to the last before a head, and the draw that hangs on that head."""

    leaves: Leaves
    """Without what comes after the draw."""
    head: int
    """Index of the noted head."""
    submission: Digest
    rate_bps: int
    """How likely it was to be drawn."""
    foe: NodeId
    """A judge whom the coordinator would rather not have."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A log that suits, and how many were tried."""

    leaves: Leaves
    drawn: Draw
    """Nobody: it is spared."""
    tries: int


def attack_draws() -> Iterator[tuple[Attack, Outcome]]:
    """In an honest world's log; the friend is the first worker past probation whose file was drawn."""
    _, scene = play(Plan(seed=1, nodes=16, steps=4, malicious=0.0))
    host = scene.world.host
    yield GROUND, grind_log(host, list(host.disk))


def grind_log(host: Host, leaves: Leaves) -> Outcome:
    place = choose_place(leaves)
    if place is None:
        return Outcome(verdict=None, checks=(), reason="nobody past probation was drawn")
    spared = grind(host, place, lambda drawn: not drawn)
    friendly = grind(host, place, lambda drawn: bool(drawn) and place.foe not in drawn)
    if spared is None or friendly is None:
        return Outcome(verdict=None, checks=(), reason=f"no draw suited in {TRIES_MAX} tries")
    for found in (spared, friendly):
        try:
            replay(NETWORK, found.leaves, coordinator=host.key.node)
        except RemoteError as error:
            return Outcome(verdict=Verdict.SHOWN, checks=("replay",), reason=str(error))
    told = (
        f"spared in try {spared.tries} at {place.rate_bps / BASIS_POINTS:.0%}, rid of a judge in try {friendly.tries}"
    )
    return Outcome(verdict=Verdict.UNSEEN, checks=(), reason=f"{told}; both replay")


def choose_place(leaves: Leaves) -> Place | None:
    """The first draw that fell on a submission which might have been spared."""
    ledger = Ledger(NETWORK)
    for index, leaf in enumerate(leaves):
        entry = read_entry(leaf)
        if isinstance(entry, e.AuditDrawn) and entry.validators and not entry.round:
            run = ledger.state.runs[RUN]
            node = run.submissions[entry.submission].node
            rate_bps = audit_rate_bps(ledger.state.nodes[node].streak, run.terms)
            if rate_bps < BASIS_POINTS:
                return Place(leaves[: index + 1], entry.head_size, entry.submission, rate_bps, entry.validators[0])
        ledger.restore(leaf)
    return None


def grind(host: Host, place: Place, suits: Callable[[Draw], bool]) -> Ground | None:
    """Claim one millisecond after the other for the last entry before the head, until the draw suits."""
    before = Ledger(NETWORK)
    for leaf in place.leaves[: place.head - 1]:
        before.restore(leaf)
    last, head, draw = place.leaves[place.head - 1], place.leaves[place.head], place.leaves[-1]
    for number in range(1, TRIES_MAX + 1):
        ledger, tried = deepcopy(before), delay(last, number)
        ledger.restore(tried)
        root = ledger.state.frontier.root()
        noted = delay(rewrite(host, head, partial(replace, root=root)), number)
        ledger.restore(noted)
        at_ms = decode(Record, draw).at_ms + number
        drawn = expected_draw(ledger.state, ledger.state.runs[RUN], place.submission, at_ms)
        if drawn is not None and suits(drawn):
            said = delay(rewrite(host, draw, partial(replace, validators=drawn)), number)
            return Ground([*place.leaves[: place.head - 1], tried, noted, said], drawn, number)
    return None


def delay(leaf: bytes, wait_ms: int) -> bytes:
    """The same entry, said to be taken in later. Its author's signature does not cover that."""
    record = decode(Record, leaf)
    return encode(replace(record, at_ms=record.at_ms + wait_ms))


def read_entry(leaf: bytes) -> Any:
    _, letter = read_letter(leaf)
    return decode(ENTRY_TYPES[letter.kind], letter.body)
