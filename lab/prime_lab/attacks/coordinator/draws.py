"""Draws that a coordinator grinds until they suit it, and credits that it smuggles past one.

How it grinds is in grinding.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    BACKDATED_ENTRY,
    GROUND_DRAW,
    SMUGGLED_CREDIT,
)
from prime_lab.attacks.coordinator.forged_logs import rewrite_entry
from prime_lab.attacks.coordinator.grinding import (
    TRIES_MAX,
    DishonestOperator,
    Leaves,
    find_grinding_position,
    find_refusal,
    grind_draw,
    read_entry,
)
from prime_lab.attacks.coordinator.rules import seal_next
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK, RUN
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.rewards import find_uncredited
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest

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
