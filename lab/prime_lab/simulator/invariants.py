"""What must hold in every run, checked from outside: from the committed log, from what participants were told, and from
the truth about every file that only the simulator knows. The coordinator's own state is not used.

Each invariant yields one sentence for each violation. No honest node may be slashed, whichever validators are drawn. A
majority rule cannot promise everything about a single round; the conditions are in the invariants.

"""

from collections import Counter
from collections.abc import Callable, Iterator

from prime_lab.simulator.finding_invariants import (
    compute_bond_losses_nano,
    compute_bounty_nano,
    every_finding_is_decided_by_its_votes,
    findings_are_about_unpaid_accepted_work,
    findings_are_ruled_on_by_inspectors_without_part_in_them,
    found_work_is_not_trained_on,
    true_findings_are_upheld_and_false_ones_are_not,
)
from prime_lab.simulator.finished_world import INDEX_MAX, FinishedWorld
from prime_lab.simulator.lease_invariants import no_node_has_more_in_hand_than_it_may
from prime_lab.simulator.log_history import LoggedSubmission, LogHistory
from prime_lab.simulator.world import NETWORK, STAKE
from prime_protocol.constants import DRAW_MARGIN_MS, ROUNDS_MAX, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import LogRecord, Outcome, Role
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import open_tree_head
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NodeId, hash_bytes

Invariant = Callable[[FinishedWorld], Iterator[str]]


# --- Work -----------------------------------------------------------------------------------------------------------


def no_slot_is_credited_twice(finished: FinishedWorld) -> Iterator[str]:
    taken: dict[tuple[int, int], Digest] = {}
    for name, logged in finished.history.submissions.items():
        if len(logged.credited) > 1 + bool(logged.upheld and logged.overturned):
            yield f"{name} was credited {len(logged.credited)} times"
        # A finding that is upheld takes the credit back; an appeal may give it again.
        standing = logged.upheld[0].index if logged.upheld else 0
        if not any(line.index > standing for line in logged.credited) or logged.lease is None:
            continue
        for slot in logged.lease.slots:
            place = (logged.receipt.step, slot)
            if place in taken:
                yield f"slot {slot} of step {logged.receipt.step} was credited to {taken[place]} and {name}"
            taken[place] = name


def only_accepted_work_is_credited_or_trained_on(finished: FinishedWorld) -> Iterator[str]:
    for name, logged in finished.history.submissions.items():
        if (logged.credited or logged.trained) and Outcome.ACCEPT not in _outcomes(logged):
            yield f"{name} was {logged.outcome}, but is credited or trained on"
        if len(logged.trained) > 1:
            yield f"{name} was trained on {len(logged.trained)} times"


def _outcomes(logged: LoggedSubmission) -> set[Outcome | None]:
    """What it was settled as, and what an appeal made of it."""
    return {logged.outcome} | ({Outcome.ACCEPT} if logged.overturned else set())


def every_lease_ends_once(finished: FinishedWorld) -> Iterator[str]:
    for number, logged in finished.history.leases.items():
        if len(logged.ends) > 1 or (finished.is_over and not logged.ends):
            yield f"lease {number} has {len(logged.ends)} ends"
        for line in logged.ends:
            deadline_ms, holder = logged.granted.entry.deadline_ms, logged.granted.entry.node
            if isinstance(line.entry, e.Submitted):
                if line.author != holder or line.entry.receipt.node != holder:
                    yield f"lease {number} of {holder} was answered by {line.author}"
                if line.at_ms > deadline_ms:
                    yield f"lease {number} was answered {line.at_ms - deadline_ms} ms after its deadline"
            elif line.author != holder and line.at_ms <= deadline_ms:
                yield f"lease {number} was ended by {line.author} before its deadline"
    for line in finished.history.unmatched:
        yield f"entry {line.index}, {type(line.entry).__name__}, is about something that is not in the log"


def leases_do_not_overlap(finished: FinishedWorld) -> Iterator[str]:
    """No two leases have a slot at one time, unless one is speculative. A submission keeps its slots until rejected."""
    spans: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    free_index: dict[int, int] = {}
    for logged in finished.history.submissions.values():
        rejected = logged.settled if logged.outcome is not Outcome.ACCEPT else logged.upheld
        free_index[logged.receipt.lease] = rejected[0].index if rejected else INDEX_MAX
    for number, lease in finished.history.leases.items():
        if lease.granted.entry.speculative:
            continue
        ended = next((line.index for line in lease.ends if isinstance(line.entry, e.LeaseEnded)), INDEX_MAX)
        end = free_index.get(number, ended)
        for slot in lease.slots:
            for other, start, stop in spans.setdefault((lease.granted.entry.step, slot), []):
                if start < end and lease.granted.index < stop:
                    yield f"leases {other} and {number} both have slot {slot} of step {lease.granted.entry.step}"
            spans[(lease.granted.entry.step, slot)].append((number, lease.granted.index, end))


def leases_go_to_staked_workers(finished: FinishedWorld) -> Iterator[str]:
    total = finished.history.terms.slots_per_step
    for number, lease in finished.history.leases.items():
        node = lease.granted.entry.node
        if lease.slots.stop > total:
            yield f"lease {number} goes to slot {lease.slots.stop - 1}, a step has {total}"
        registered = finished.history.registered.get(node)
        if registered is None or Role.WORKER not in registered.entry.roles:
            yield f"lease {number} went to {node}, which is no worker"
        staked = finished.history.staked.get(node)
        if staked is None or staked.index > lease.granted.index:
            yield f"lease {number} went to {node}, which had no stake"


# --- Judgement ------------------------------------------------------------------------------------------------------


def every_outcome_has_its_votes(finished: FinishedWorld) -> Iterator[str]:
    """Recount: invalid also where nothing was decided, accepted also where no validator was drawn."""
    for name, logged in finished.history.submissions.items():
        for line in logged.settled:
            votes = Counter(v.entry.outcome for v in logged.verdicts if v.index < line.index)
            quorum, outcome = finished.history.terms.quorum, logged.outcome
            ruled = [ruling.entry.outcome for ruling in logged.ruled if ruling.index < line.index]
            decided = ruled[-1] if ruled else _recount(votes, quorum, logged.unasked)
            if outcome is Outcome.INVALID and decided is None:
                if logged.unasked >= quorum and len(logged.draws) + bool(logged.spared) < ROUNDS_MAX:
                    yield f"{name} was given up with votes {dict(votes)}, {logged.unasked} owners were not asked"
                continue
            if outcome is Outcome.ACCEPT and logged.spared is line:
                continue
            if outcome is not decided:
                yield f"{name} was settled as {outcome} with votes {dict(votes)}"


def _recount(votes: Counter[Outcome], quorum: int, unasked: int) -> Outcome | None:
    """What led all others by two quorums less one, fraudulent by one quorum; accepted also by a plain majority where no
    quorum was left to ask."""
    accept = votes[Outcome.ACCEPT]
    if unasked < quorum and quorum < 2 * accept > votes.total():
        return Outcome.ACCEPT
    for outcome in Outcome:
        others = votes.total() - votes[outcome]
        if votes[outcome] - others >= (quorum if outcome is Outcome.FRAUDULENT else 2 * quorum - 1):
            return outcome
    return None


def verdicts_come_from_those_who_were_drawn(finished: FinishedWorld) -> Iterator[str]:
    history = finished.history
    for name, logged in history.submissions.items():
        drawn: Counter[NodeId] = Counter()
        for line in (*logged.draws, *([logged.spared] if logged.spared else [])):
            published_ms = finished.world.host.chain.round_time_ms(line.entry.randomness_round)
            if published_ms < logged.submitted.at_ms + DRAW_MARGIN_MS:
                yield f"{name} was drawn in entry {line.index} from randomness that was known too early"
        for line in logged.draws:
            if not drawn.keys().isdisjoint(line.entry.validators):
                yield f"round {line.entry.round} of {name} draws a validator that was drawn before"
            drawn.update(line.entry.validators)
            owners = [history.owners.get(node) for node in line.entry.validators]
            if len(set(owners)) != len(owners):
                yield f"round {line.entry.round} of {name} has two validators of one owner"
            # What a validator has left counts too: nobody in a world leaves long enough before.
            every_owner = set().union(*(history.all_owners[node] for node in line.entry.validators))
            if logged.lease and {logged.receipt.node, logged.lease.owner} & (every_owner | set(line.entry.validators)):
                yield f"round {line.entry.round} of {name} was drawn among its owner's own"
        for lines, what in ((logged.committed, "commitments"), (logged.verdicts, "verdicts")):
            for node, count in Counter(line.author for line in lines).items():
                if count > drawn[node]:
                    yield f"{node} gave {count} {what} on {name} and was drawn {drawn[node]} times"


def no_verdict_can_be_copied(finished: FinishedWorld) -> Iterator[str]:
    """In a round of several validators each verdict was committed before any of the round could be read."""
    for name, logged in finished.history.submissions.items():
        committed = {line.author: line for line in logged.committed}
        for draw in logged.draws:
            validators = draw.entry.validators
            given = [line for line in logged.verdicts if line.author in validators]
            if not given or len(validators) == 1:
                continue
            deadline_ms = draw.at_ms + finished.history.terms.verdict_ms
            if given[0].at_ms < deadline_ms and not committed.keys() >= set(validators):
                yield f"a verdict on {name} was given before everybody drawn with it had committed"
            for line in given:
                fixed = committed.get(line.author)
                if fixed is None or fixed.index > given[0].index:
                    yield f"{line.author} gave a verdict on {name} and could have read another of its round"
                elif fixed.entry.commitment != hash_bytes(encode(line.entry)):
                    yield f"{line.author} gave another verdict on {name} than it had committed to"


def newcomers_are_all_audited(finished: FinishedWorld) -> Iterator[str]:
    """Until a node's first accepted submissions, every one of them is drawn."""
    accepted: Counter[NodeId] = Counter()
    probation = finished.history.terms.audit_probation
    events = []
    for name, logged in finished.history.submissions.items():
        # The draws of an entry are computed before any of its submissions is accepted.
        if logged.spared:
            events.append((logged.spared.index, False, name, logged.receipt.node))
        if logged.outcome is Outcome.ACCEPT:
            events.append((logged.settled[0].index, True, name, logged.receipt.node))
    for _, is_accepted, name, node in sorted(events, key=lambda event: event[:2]):
        if is_accepted:
            accepted[node] += 1
        elif accepted[node] < probation:
            yield f"{name} of a newcomer was not drawn"


def drawn_forgeries_are_rejected(finished: FinishedWorld) -> Iterator[str]:
    """A forgery that was drawn is neither accepted nor credited, at first or on appeal, by any draw."""
    for name, logged in finished.history.submissions.items():
        if logged.is_audited and finished.is_forged(logged) and (logged.outcome is Outcome.ACCEPT or logged.credited):
            told = f"with votes {finished.count_first_votes(logged)}"
            told += f", on appeal {finished.count_appeal_votes(logged)}" if logged.appealed else ""
            yield f"{name} is forged and was accepted {told}"


def honest_work_is_not_condemned(finished: FinishedWorld) -> Iterator[str]:
    """Unless dishonest validators led by a quorum; then there is the appeal."""
    quorum = finished.history.terms.quorum
    for name, logged in finished.history.submissions.items():
        if logged.receipt.node not in finished.honest:
            continue
        if finished.is_forged(logged):
            yield f"{name} is forged and by an honest node"
        if logged.outcome is not Outcome.FRAUDULENT:
            continue
        counted = finished.count_first_votes(logged)
        if counted.dishonest < counted.honest + quorum:
            yield f"{name} is honest and was condemned with votes {counted}"


def no_honest_node_is_slashed(finished: FinishedWorld) -> Iterator[str]:
    for name, logged in finished.history.submissions.items():
        if logged.executed and logged.receipt.node in finished.honest:
            appeal = f"appeal with votes {finished.count_appeal_votes(logged)}" if logged.appealed else "no appeal"
            yield f"{logged.receipt.node} is honest and was slashed for {name}, {appeal}"


def honest_validators_keep_their_score(finished: FinishedWorld) -> Iterator[str]:
    """Unless mostly dishonest ones decided, at first, about a finding or on appeal."""
    quorum = finished.history.terms.quorum
    for name, logged in finished.history.submissions.items():
        for line in logged.scored:
            if line.entry.validator not in finished.honest:
                continue
            leads = [
                counted.dishonest - counted.honest
                for counted in (finished.count_first_votes(logged), *finished.count_finding_votes(logged))
            ]
            on_appeal = finished.count_appeal_votes(logged)
            if max(*leads, on_appeal.dishonest - on_appeal.honest) <= 0:
                yield f"{line.entry.validator} is honest and lost score over {name}"
            if line.entry.penalty_nano and max(leads) < quorum:
                yield f"{line.entry.validator} is honest and lost {line.entry.penalty_nano} of its stake over {name}"
        for node in logged.unread() & finished.honest:
            yield f"{node} is honest, and is said not to have read {name}"


def everything_is_decided(finished: FinishedWorld) -> Iterator[str]:
    history = finished.history
    for name, logged in history.submissions.items():
        if len(logged.settled) > 1 or (finished.is_over and not logged.settled):
            yield f"{name} was settled {len(logged.settled)} times"
        if len(logged.proposed) > 1 or (finished.is_over and logged.is_condemned and not logged.proposed):
            yield f"{name} was condemned, and a slash was proposed {len(logged.proposed)} times"
        ends = len(logged.executed) + len(logged.overturned)
        if ends > len(logged.proposed) or (finished.is_over and ends < len(logged.proposed)):
            yield f"the slash for {name} was neither executed nor overturned, or both"
        if logged.proposed and not logged.is_condemned:
            yield f"{name} was {logged.outcome}, but a slash was proposed"
        if logged.executed and not logged.appealed:
            waited_ms = logged.executed[0].at_ms - logged.proposed[0].at_ms
            if waited_ms < history.terms.appeal_ms:
                yield f"the slash for {name} was executed {waited_ms} ms after it was proposed"


def finished_steps_are_paid_once(finished: FinishedWorld) -> Iterator[str]:
    history = finished.history
    worked = {lease.granted.entry.step for lease in history.leases.values()}
    for step in sorted(worked):
        wanted = 1 if step < history.latest else 0
        if history.paid[step] > wanted or (finished.is_over and history.paid[step] < wanted):
            yield f"step {step} was paid out {history.paid[step]} times"


# --- The log --------------------------------------------------------------------------------------------------------


def every_shown_head_is_of_this_log(finished: FinishedWorld) -> Iterator[str]:
    host = finished.world.host
    tree = MerkleTree(compute_leaf_hash(leaf) for leaf in host.disk)
    for raw in finished.world.heads:
        head = open_tree_head(raw, [host.verifier])
        if head.size > tree.size or compute_root(head.size, tree.get_node) != head.root:
            yield f"a head of {head.size} entries was shown that is not of the log"


def every_acknowledged_entry_stays(finished: FinishedWorld) -> Iterator[str]:
    disk = finished.world.host.disk
    for index, (sender, body) in finished.world.acknowledged:
        if index < len(disk):
            payload = decode(Payload, decode(LogRecord, disk[index]).frame[SIGNATURE_BYTES:])
            if (payload.sender, payload.body) == (sender, body):
                continue
        yield f"an entry of {sender} was acknowledged at {index} and is not there"


def no_envelope_is_logged_twice(finished: FinishedWorld) -> Iterator[str]:
    seen: dict[bytes, int] = {}
    for index, leaf in enumerate(finished.world.host.disk):
        frame = decode(LogRecord, leaf).frame
        if frame in seen:
            yield f"entries {seen[frame]} and {index} are one envelope"
        seen[frame] = index


def the_log_replays(finished: FinishedWorld) -> Iterator[str]:
    """An independent replay that checks every signature gets the coordinator's state."""
    host = finished.world.host
    try:
        ledger = replay(NETWORK, host.disk, coordinator=host.key.node)
    except RemoteError as error:
        yield f"the log does not replay: {error}"
        return
    if host.core is not None and ledger.state != host.core.state:
        yield "the coordinator's state is not what its log says"
    yield from _value_is_conserved(finished.history, ledger)


def _value_is_conserved(history: LogHistory, ledger: Ledger) -> Iterator[str]:
    books = ledger.state.funds
    burned_nano = sum(_compute_burned_nano(logged, history) for logged in history.submissions.values())
    burned_nano += sum(min(STAKE, lost_nano) for lost_nano in _count_penalties_nano(history).values())
    bonds_least_nano, bonds_most_nano = compute_bond_losses_nano(history)
    held_nano = history.deposited_nano - history.withdrawn_nano - burned_nano - bonds_most_nano
    # An owner without balance and stake appeals with what is in escrow already: then no bond is lost on top.
    bonds_nano = history.terms.appeal_bond_nano * sum(
        bool(logged.executed and logged.appealed) for logged in history.submissions.values()
    )
    bonds_nano += bonds_most_nano - bonds_least_nano
    if not held_nano <= books.total_nano() <= held_nano + bonds_nano or not books.is_conserved():
        yield f"the books hold {books.total_nano()}, what came in and went out leaves {held_nano}"
    if min([0, *_list_amounts_nano(ledger.state)]) < 0:
        yield "an account is below zero"
    budget_nano = sum(history.paid.values()) * history.terms.step_budget_nano
    paid_nano = ledger.state.runs["run-1"].funded.total() - books.pools["run-1"]  # type: ignore[index]
    if paid_nano > budget_nano:
        yield f"{paid_nano} were paid out of budgets of {budget_nano}"


def _count_penalties_nano(history: LogHistory) -> Counter[NodeId]:
    """What validators were to lose over refuted verdicts, and over verdicts on files that they had not read."""
    lost: Counter[NodeId] = Counter()
    for logged in history.submissions.values():
        for line in logged.scored:
            lost[line.entry.validator] += line.entry.penalty_nano
        for node in logged.unread():
            lost[node] += history.terms.validator_slash_nano
    return lost


def _compute_burned_nano(logged: LoggedSubmission, history: LogHistory) -> int:
    bond_nano: int = history.terms.appeal_bond_nano if logged.appealed else 0
    seized_nano = sum(line.entry.amount_nano + bond_nano for line in logged.proposed) if logged.executed else 0
    return seized_nano - compute_bounty_nano(logged, history)


def _list_amounts_nano(state: LedgerState) -> Iterator[int]:
    yield from state.funds.balances.values()
    yield from state.funds.stakes.values()
    yield from state.funds.pools.values()


def parties_saw_nothing_wrong(finished: FinishedWorld) -> Iterator[str]:
    yield from finished.world.problems


INVARIANTS: tuple[Invariant, ...] = (
    parties_saw_nothing_wrong,
    no_slot_is_credited_twice,
    only_accepted_work_is_credited_or_trained_on,
    every_lease_ends_once,
    leases_do_not_overlap,
    leases_go_to_staked_workers,
    no_node_has_more_in_hand_than_it_may,
    every_outcome_has_its_votes,
    verdicts_come_from_those_who_were_drawn,
    no_verdict_can_be_copied,
    newcomers_are_all_audited,
    drawn_forgeries_are_rejected,
    honest_work_is_not_condemned,
    no_honest_node_is_slashed,
    honest_validators_keep_their_score,
    everything_is_decided,
    findings_are_about_unpaid_accepted_work,
    every_finding_is_decided_by_its_votes,
    findings_are_ruled_on_by_inspectors_without_part_in_them,
    true_findings_are_upheld_and_false_ones_are_not,
    found_work_is_not_trained_on,
    finished_steps_are_paid_once,
    every_shown_head_is_of_this_log,
    every_acknowledged_entry_stays,
    no_envelope_is_logged_twice,
    the_log_replays,
)


def check_invariants(finished: FinishedWorld) -> list[str]:
    """All complaints, each with the name of its checker."""
    return [f"{checker.__name__}: {complaint}" for checker in INVARIANTS for complaint in checker(finished)]
