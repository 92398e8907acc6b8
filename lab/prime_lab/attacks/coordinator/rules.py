"""Rules of the ledger that a coordinator breaks. Validators that follow the log find it without being asked."""

from collections.abc import Callable, Iterator

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    BROKEN_RULE,
    SUDDEN_RULES,
    WRONG_CLOCK,
)
from prime_lab.attacks.coordinator.forged_logs import find_entry, sign_head
from prime_lab.attacks.coordinator.grinding import (
    Leaves,
)
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK, RUN
from prime_node.log.replay import HeadSighting, HeadSightings, LedgerReplay, check_entries, make_accusation
from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX
from prime_protocol.gossip.accusation import Accusation, BrokenRule, judge_accusation
from prime_protocol.keys.chain import KeyChain
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Entry, LogRecord
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, Ledger, replay
from prime_protocol.log.merkle import Frontier, MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import Tile, encode_tile, list_new_bundles
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import seal_envelope

HEAD_INTERVAL_MS = 10_000
"""Between the last two heads that a validator is shown."""
AHEAD_MS = 3_600_000


def credit_unjudged(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """The log up to a submission, and then its credit instead of its audit."""
    before = list(leaves[: find_entry(leaves, e.Submitted) + 1])
    ledger = replay(NETWORK, before)
    (submission, *_) = reversed(ledger.state.runs[RUN].submissions)
    return [*before, seal_next(host, ledger, e.Credited(submission=submission, units=1_000_000))]


def hurry_clock(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """The log, and one more entry that keeps every rule, with a time that has not come."""
    ledger = replay(NETWORK, leaves)
    return [*leaves, seal_next(host, ledger, e.HeadNoted(root=ledger.state.frontier.root()), ahead_ms=AHEAD_MS)]


def change_rules_at_once(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """The log, and rules that start with its next entry."""
    ledger = replay(NETWORK, leaves)
    state = ledger.state
    change = e.RulesChanged(rules=state.rules.after + 1, from_ms=state.at_ms, release="9.0")
    return [*leaves, seal_next(host, ledger, change)]


def seal_next(host: CoordinatorHost, ledger: Ledger, entry: Entry, *, ahead_ms: int = 0) -> bytes:
    """The next leaf of a log, signed by its coordinator. No rule is asked."""
    at_ms = ledger.state.at_ms + ahead_ms
    frame = seal_envelope(
        host.key,
        kind=type(entry).__name__,
        body=encode(entry),
        network=NETWORK,
        run=RUN if ENTRY_RULES[type(entry)].scope is EntryScope.RUN else None,
        sequence=ledger.state.sequences[host.key.node] + 1,
        issued_at_ms=at_ms,
        life_ms=ENVELOPE_LIFE_MS_MAX,
    )
    return encode(LogRecord(at_ms, frame))


RULE_BREAKERS: dict[Attack, Callable[[CoordinatorHost, Leaves], list[bytes]]] = {
    BROKEN_RULE: credit_unjudged,
    WRONG_CLOCK: hurry_clock,
    SUDDEN_RULES: change_rules_at_once,
}


def attack_rules() -> Iterator[tuple[Attack, AttackResult]]:
    """Against the code that a node follows the log with."""
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    for attack, break_rule in RULE_BREAKERS.items():
        yield attack, judge_followed(host, break_rule(host, list(host.disk)))


def judge_followed(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """What a validator makes of a log, and whether a second one that receives its accusation agrees."""
    accusation = follow_log(host, leaves)
    if accusation is None:
        return AttackResult(verdict=None, checks=(), reason="the follower found nothing")
    judge_accusation(accusation, KeyChain.begin(leaves[0], NETWORK), known_size=len(leaves))
    is_shared = accusation.rule is BrokenRule.LEDGER and follow_log(host, leaves) == accusation
    verdict = AttackVerdict.PROVEN if is_shared else AttackVerdict.REFUSED
    return AttackResult(
        verdict=verdict, checks=("ledger follower",), reason=f"entry {accusation.index}: {accusation.problem}"
    )


def follow_log(host: CoordinatorHost, leaves: Leaves) -> Accusation | None:
    """The accusation of a validator that was shown a head before the last entry, and then one with it."""
    heads, seen = [sign_head(host, leaves[:-1]), sign_head(host, leaves)], HeadSightings()
    shown_ms = decode(LogRecord, leaves[-2]).at_ms
    for number, shown in enumerate(heads):
        seen.add(HeadSighting(shown.size, shown_ms + number * HEAD_INTERVAL_MS, is_newest=True))
    tree, head = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves]), heads[-1]

    def get_tile(tile: Tile) -> bytes:
        return encode_tile(tile, tree.get_node)

    ledger, frontier = LedgerReplay(NETWORK, host.key.node), Frontier()
    for bundle in list_new_bundles(0, len(leaves)):
        start, stop = frontier.size, frontier.size + bundle.width
        frontier = check_entries(frontier, leaves[start:stop], head.head, get_tile)
        for end, window in seen.split(start, stop):
            finding = ledger.apply(leaves[start:end], window).finding
            start = end
            if finding is not None:
                return make_accusation(finding, head.head, head.note, get_tile)
    return None


# --- Restores ---------------------------------------------------------------------------------------------------------
