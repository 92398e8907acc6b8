"""A dishonest coordinator: logs changed after the fact, draws that it grinds until they suit it, rules that it breaks.

A coordinator can sign any entry of its own and any tree head. It cannot make an independent replay of a changed log
succeed, nor make two heads that it signed consistent. How it grinds a draw is in grinding.py. Validators that follow
the log find a broken rule without being asked: `attack_rules` runs the code with which a node does it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_lab.attacks.catalog import (
    BACKDATED_ENTRY,
    BROKEN_RULE,
    COORDINATOR_ATTACKS,
    FALSE_RESTORE,
    GROUND_DRAW,
    KEY_ATTACKS,
    SMUGGLED_CREDIT,
    SUDDEN_RULES,
    WRONG_CLOCK,
    Attack,
    AttackResult,
    AttackVerdict,
)
from prime_lab.attacks.grinding import (
    TRIES_MAX,
    DishonestOperator,
    Leaves,
    find_grinding_position,
    find_refusal,
    grind_draw,
    read_entry,
)
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK, RUN
from prime_node.log.replay import HeadSighting, HeadSightings, LedgerReplay, check_entries, make_accusation
from prime_node.log.restores import HeadHistory, Restore, open_restore
from prime_node.log.signed_heads import HeadRelation, SignedHead, compare_sizes, compare_with_tiles
from prime_protocol.constants import BASIS_POINTS, ENVELOPE_LIFE_MS_MAX, RESTORE_LOSS_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.accusation import Accusation, BrokenRule, judge_accusation
from prime_protocol.keys.chain import KeyChain
from prime_protocol.keys.rotation import LogKeyRotated, make_log_key_rotation
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import Entry, LogRecord
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, Ledger, decode_entry, replay
from prime_protocol.ledger.rewards import find_uncredited
from prime_protocol.ledger.state import LedgerState
from prime_protocol.ledger.versions.upgrades import encode_form
from prime_protocol.log.merkle import Frontier, MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import Tile, encode_tile, list_new_bundles
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey


def find_entry(leaves: Leaves, kind: type, is_wanted: Callable[[Any], bool] = lambda entry: True) -> int:
    """Index of the first entry of a kind."""
    for index, leaf in enumerate(leaves):
        _, payload = decode_leaf(leaf)
        if payload.kind == kind.__name__ and is_wanted(decode_entry(payload)):
            return index
    raise AssertionError(f"the world has no {kind.__name__}")


def rewrite_entry(host: CoordinatorHost, leaf: bytes, change: Callable[[Any], Any]) -> bytes:
    """One of the coordinator's own entries with other content, signed by it at the same position and time."""
    record = decode(LogRecord, leaf)
    _, payload = decode_leaf(leaf)
    entry = change(decode_entry(payload))
    frame = seal_envelope(
        host.key,
        kind=type(entry).__name__,
        body=encode_form(entry, payload.version),
        network=payload.network,
        run=payload.run,
        sequence=payload.sequence,
        issued_at_ms=payload.issued_at_ms,
        life_ms=get_life_ms(payload),
        version=payload.version,
    )
    return encode(replace(record, frame=frame))


def get_life_ms(payload: Payload) -> int:
    return payload.expires_at_ms - payload.issued_at_ms


# --- Histories ------------------------------------------------------------------------------------------------------


def fork_log(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """A log of the same length, with another time in its last entry."""
    other = list(leaves)
    record = decode(LogRecord, other[-1])
    other[-1] = encode(replace(record, at_ms=record.at_ms + 1))
    return other


def reorder_submissions(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """Swap two submissions."""
    first = find_entry(leaves, e.Submitted)
    second = first + 1 + find_entry(leaves[first + 1 :], e.Submitted)
    other = list(leaves)
    other[first], other[second] = other[second], other[first]
    return other


def drop_submission(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """Cut the log before a submission that was acknowledged to its author."""
    return list(leaves[: find_entry(leaves, e.Submitted)])


def change_draw(change: Callable[[e.AuditDrawn], Entry]) -> Callable[[CoordinatorHost, Leaves], list[bytes]]:
    def bend(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
        position = find_entry(leaves, e.AuditDrawn)
        return [*leaves[:position], rewrite_entry(host, leaves[position], change), *leaves[position + 1 :]]

    return bend


def spare(entry: e.AuditDrawn) -> e.AcceptedUnaudited:
    """Accept what was to be audited."""
    return e.AcceptedUnaudited(randomness_round=entry.randomness_round, submissions=(entry.submission,))


def backdate_entry(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    position = find_entry(leaves, e.Submitted)
    record = decode(LogRecord, leaves[position])
    before = decode(LogRecord, leaves[position - 1])
    return [*leaves[:position], encode(replace(record, at_ms=before.at_ms - 1)), *leaves[position + 1 :]]


FORGED_LOGS: dict[str, Callable[[CoordinatorHost, Leaves], list[bytes]]] = {
    "two-histories": fork_log,
    "reordered-log": reorder_submissions,
    "dropped-submission": drop_submission,
    "invented-draw": change_draw(lambda entry: replace(entry, validators=tuple(reversed(entry.validators)))),
    "spared-draw": change_draw(spare),
    "back-dated-head": change_draw(lambda entry: replace(entry, randomness_round=entry.randomness_round - 1)),
    "back-dated-entry": backdate_entry,
}


# --- Detection ------------------------------------------------------------------------------------------------------


def attack_logs() -> Iterator[tuple[Attack, AttackResult]]:
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    leaves = list(host.disk)
    for attack in COORDINATOR_ATTACKS:
        yield attack, verify_forged_log(host, leaves, FORGED_LOGS[attack.name](host, leaves))


def verify_forged_log(host: CoordinatorHost, shown: Leaves, bent: Leaves) -> AttackResult:
    """What a reader finds that kept a head of the first log, and is now shown the second."""
    try:
        replay(NETWORK, bent, coordinator=host.key.node)
    except RemoteError as error:
        return AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason=str(error))
    # The changed log is as long as the other, so that its length does not give it away.
    longer = [*bent, *shown[len(bent) :][1:]] if len(bent) < len(shown) else list(bent)
    one, other = sign_head(host, shown), sign_head(host, longer)
    relation = compare_sizes(one, other)
    if relation is HeadRelation.UNKNOWN:
        newer = shown if one.size > other.size else longer
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in newer])
        relation = compare_with_tiles(one, other, lambda tile: encode_tile(tile, tree.get_node))
    verdict = AttackVerdict.PROVEN if relation is HeadRelation.FORK else None
    sizes = f"heads over {one.size} and {other.size} entries"
    return AttackResult(
        verdict=verdict,
        checks=("consistency",) if verdict else (),
        reason=f"{sizes}, both signed, do not fit" if verdict else f"{sizes} fit",
    )


def sign_head(host: CoordinatorHost, leaves: Leaves) -> SignedHead:
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    head = TreeHead(host.origin, len(leaves), tree.root())
    return SignedHead(head, sign_tree_head(head, host.log_key))


GRINDING_SEEDS = range(1, 25)


def attack_draws() -> Iterator[tuple[Attack, AttackResult]]:
    """In the log of an honest world, for the first worker past probation whose file was drawn.

    Some worlds have too few eligible validators for another draw, so several seeds are tried until one gives a result.
    """
    pairs: list[tuple[Attack, Callable[[CoordinatorHost, Leaves], AttackResult]]] = [
        (GROUND_DRAW, grind_log),
        (BACKDATED_ENTRY, insert_behind_round),
        (SMUGGLED_CREDIT, smuggle_credit),
    ]
    for attack, attempt in pairs:
        for seed in GRINDING_SEEDS:
            _, finished = simulate_world(SimulationPlan(seed=seed, nodes=24, steps=5, malicious=0.0))
            host = finished.world.host
            result = attempt(host, list(host.disk))
            if result.verdict is not None:
                break
        yield attack, result


def grind_log(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """The coordinator runs the chain itself, so it knows every round. It does not have the validators' keys."""
    operator = make_operator(host)
    position = find_grinding_position(operator, leaves)
    if position is None:
        return AttackResult(verdict=None, checks=(), reason="no worker past probation was drawn")
    spared = grind_draw(operator, position, lambda drawn: not drawn)
    friendly = grind_draw(operator, position, lambda drawn: bool(drawn) and position.foe not in drawn)
    if spared is None or friendly is None:
        return AttackResult(verdict=None, checks=(), reason=f"no draw suited in {TRIES_MAX} tries")
    rate = f"{position.rate_bps / BASIS_POINTS:.0%}"
    told = f"spared in try {spared.tries} at {rate}, rid of a judge in try {friendly.tries}"
    refusals = [find_refusal(operator, found.leaves) for found in (spared, friendly)]
    if all("cosignatures" in refusal for refusal in refusals):
        return AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason=f"{told}; {refusals[0]}")
    return AttackResult(verdict=AttackVerdict.UNDETECTED, checks=(), reason=f"{told}; a log replays")


def make_operator(host: CoordinatorHost) -> DishonestOperator:
    return DishonestOperator(key=host.key, network=NETWORK, run=RUN, chain=host.chain, sign_round=host.sign_round)


def insert_behind_round(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """A friend's submission comes after a round is out, and is put before the head that the round belongs to."""
    for recorded, leaf in enumerate(leaves):
        late = recorded + 1
        if not isinstance(read_entry(leaf), e.RoundRecorded) or not read_entry(leaf).cosignatures:
            continue
        if late >= len(leaves) or not isinstance(read_entry(leaves[late]), e.Submitted):
            continue
        head = max(place for place in range(recorded) if isinstance(read_entry(leaves[place]), e.HeadNoted))
        bent = backdate_submission(host, leaves, head, late)
        refusal = find_refusal(make_operator(host), bent)
        if "cosignatures" in refusal:
            return AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason=refusal)
    return AttackResult(verdict=None, checks=(), reason="no submission came right after a round")


def backdate_submission(host: CoordinatorHost, leaves: Leaves, head: int, late: int) -> list[bytes]:
    """The log with the entry at `late` before the head, whose root is made right again."""
    at_ms = decode(LogRecord, leaves[head]).at_ms
    moved = encode(replace(decode(LogRecord, leaves[late]), at_ms=at_ms))
    ledger = Ledger(NETWORK)
    for leaf in (*leaves[:head], moved):
        try:
            ledger.restore(leaf)
        except RemoteError:
            return list(leaves)  # its lease was granted after the head
    noted = rewrite_entry(host, leaves[head], partial(replace, root=ledger.state.frontier.root()))
    return [*leaves[:head], moved, noted, *leaves[head + 1 : late]]


def smuggle_credit(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """One false name in a shared entry. The names around it are right, and the entry is signed and in its place."""
    operator, ledger = make_operator(host), Ledger(NETWORK)
    for index, leaf in enumerate(leaves):
        entry = read_entry(leaf)
        if isinstance(entry, e.AuditDrawn) and not entry.round:
            run = ledger.state.runs[RUN]
            spared = [name for name in run.submissions if is_spared(ledger.state, name, entry.randomness_round)]
            names = tuple(name for name in run.submissions if name in (*spared, entry.submission))
            if spared:
                uncredited = find_uncredited(run, names)
                shared = e.AcceptedUnaudited(
                    randomness_round=entry.randomness_round, submissions=names, uncredited=uncredited
                )
                refusal = find_refusal(operator, [*leaves[:index], seal_next(host, ledger, shared)])
                place = f"submissions[{names.index(entry.submission)}]"
                verdict = AttackVerdict.PROVEN if place in refusal else AttackVerdict.UNDETECTED
                told = f"1 of {len(names)} names is false; {refusal or 'the log replays'}"
                return AttackResult(verdict=verdict, checks=("replay",) if place in refusal else (), reason=told)
        ledger.restore(leaf)
    return AttackResult(verdict=None, checks=(), reason="no submission was spared when another was drawn")


def is_spared(state: LedgerState, name: Digest, number: int) -> bool:
    """Whether a submission waits for the draw from this round, and it does not fall on it."""
    run = state.runs[RUN]
    submission = run.submissions[name]
    if submission.outcome is not None or submission.rounds or submission.randomness is None:
        return False
    return submission.randomness[0] == number and compute_draw(state, run, name, state.at_ms) == ()


# --- Rules ------------------------------------------------------------------------------------------------------------

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

HEADS_SHOWN = 60
"""To the node, over twice the time that a restore may lose."""


def attack_restores() -> Iterator[tuple[Attack, AttackResult]]:
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    yield FALSE_RESTORE, drop_history(host, list(host.disk))


def drop_history(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """The log goes on from before the first submission, with an entry that notes a restore."""
    size = find_entry(leaves, e.Submitted)
    ledger = replay(NETWORK, leaves[:size])
    forged = [*leaves[:size], seal_next(host, ledger, e.LogRestored(size=size, root=ledger.state.frontier.root()))]
    replay(NETWORK, forged, coordinator=host.key.node)  # it keeps every rule of the ledger
    history, now_ms = show_heads(len(leaves))
    objection = history.find_objection(open_claim(host, forged, size), now_ms)
    one, other = sign_head(host, leaves), sign_head(host, [*forged, *forged[: len(leaves) - len(forged)]])
    relation = compare_sizes(one, other)
    if relation is HeadRelation.UNKNOWN:
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
        relation = compare_with_tiles(one, other, lambda tile: encode_tile(tile, tree.get_node))
    is_caught = bool(objection) and relation is HeadRelation.FORK
    return AttackResult(
        verdict=AttackVerdict.PROVEN if is_caught else None,
        checks=("consistency",) if is_caught else (),
        reason=objection or "the node follows the restored log",
    )


def show_heads(size: int) -> tuple[HeadHistory, int]:
    """What a node has seen of a log that grew evenly."""
    history, span_ms = HeadHistory(), 2 * RESTORE_LOSS_MS_MAX // HEADS_SHOWN
    for number in range(1, HEADS_SHOWN + 1):
        history = history.add(size * number // HEADS_SHOWN, b"", number * span_ms)
    return history, HEADS_SHOWN * span_ms


def open_claim(host: CoordinatorHost, forged: Leaves, size: int) -> Restore:
    """The entry, proven to be in the forged log."""
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in forged])
    head = sign_head(host, forged).head
    leaf = forged[size]

    def get_tile(tile: Tile) -> bytes:
        return encode_tile(tile, tree.get_node)

    return open_restore(leaf, size, head, get_tile, network=NETWORK, coordinator=host.key.node)
