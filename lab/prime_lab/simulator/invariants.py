"""What must hold in every run, checked from outside: from the committed log, from what participants were told, and from
the truth about every file that only the simulator knows. The coordinator's own state is not used.

Each invariant yields one sentence for each violation. No honest node may be slashed, whichever validators are drawn. A
majority rule cannot promise everything about a single round; the conditions are in the invariants.

"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prime_lab.simulator.coordinator_host import HONEST
from prime_lab.simulator.log_history import LoggedSubmission, LogHistory
from prime_lab.simulator.world import NETWORK, STAKE, World
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


@dataclass(frozen=True)
class FinishedWorld:
    """A finished world, and which nodes were honest."""

    world: World
    honest: frozenset[NodeId]
    """Nodes that followed the protocol throughout."""
    is_over: bool = True
    """All steps were trained and there was time to settle everything; else things may be open."""

    @property
    def history(self) -> LogHistory:
        return self.world.host.history

    def is_forged(self, logged: LoggedSubmission) -> bool:
        """Whether an honest audit would find the file dishonest."""
        file = self.world.files.get(logged.receipt.file_digest)
        return file is None or file.forgery != HONEST

    def votes(self, logged: LoggedSubmission, *, on_appeal: bool = False) -> tuple[Counter[Outcome], int, int]:
        """The verdicts before the outcome, or on appeal; how many of them honest and dishonest nodes gave."""
        settled = logged.settled[0].index if logged.settled else INDEX_MAX
        given = [line for line in logged.verdicts if (line.index > settled) is on_appeal]
        honest = sum(line.author in self.honest for line in given)
        return Counter(line.entry.outcome for line in given), honest, len(given) - honest


INDEX_MAX = 2**62
"""An index after all others."""

Invariant = Callable[[FinishedWorld], Iterator[str]]


# --- Work -----------------------------------------------------------------------------------------------------------


def no_slot_is_credited_twice(finished: FinishedWorld) -> Iterator[str]:
    taken: dict[tuple[int, int], Digest] = {}
    for name, logged in finished.history.submissions.items():
        if len(logged.credited) > 1:
            yield f"{name} was credited {len(logged.credited)} times"
        if not logged.credited or logged.lease is None:
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
        if logged.settled:
            rejected = logged.outcome is not Outcome.ACCEPT
            free_index[logged.receipt.lease] = logged.settled[0].index if rejected else INDEX_MAX
        else:
            free_index[logged.receipt.lease] = INDEX_MAX
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
            quorum, outcome = finished.history.terms.quorum, line.entry.outcome
            ruled = [ruling.entry.outcome for ruling in logged.ruled if ruling.index < line.index]
            decided = ruled[-1] if ruled else _recount(votes, quorum, logged.unasked)
            if outcome is Outcome.INVALID and decided is None:
                if logged.unasked >= quorum and len(logged.draws) < ROUNDS_MAX:
                    yield f"{name} was given up with votes {dict(votes)}, {logged.unasked} owners were not asked"
                continue
            if outcome is Outcome.ACCEPT and logged.draws and not logged.draws[0].entry.validators:
                continue
            if outcome is not decided:
                yield f"{name} was settled as {outcome} with votes {dict(votes)}"


def _recount(votes: Counter[Outcome], quorum: int, unasked: int) -> Outcome | None:
    """What led all others by a quorum; to be accepted, by two less one, or by any where no quorum was left to ask."""
    accept = votes[Outcome.ACCEPT]
    if unasked < quorum and quorum < 2 * accept > votes.total():
        return Outcome.ACCEPT
    for outcome in Outcome:
        others = votes.total() - votes[outcome]
        if votes[outcome] - others >= (2 * quorum - 1 if outcome is Outcome.ACCEPT else quorum):
            return outcome
    return None


def verdicts_come_from_those_who_were_drawn(finished: FinishedWorld) -> Iterator[str]:
    history = finished.history
    for name, logged in history.submissions.items():
        drawn: Counter[NodeId] = Counter()
        for line in logged.draws:
            if not drawn.keys().isdisjoint(line.entry.validators):
                yield f"round {line.entry.round} of {name} draws a validator that was drawn before"
            drawn.update(line.entry.validators)
            owners = [history.owners.get(node) for node in line.entry.validators]
            if len(set(owners)) != len(owners):
                yield f"round {line.entry.round} of {name} has two validators of one owner"
            if logged.receipt.node in line.entry.validators or history.owners.get(logged.receipt.node) in owners:
                yield f"round {line.entry.round} of {name} was drawn among its owner's own"
            published_ms = finished.world.host.chain.round_time_ms(line.entry.randomness_round)
            if published_ms < logged.submitted.at_ms + DRAW_MARGIN_MS:
                yield f"round {line.entry.round} of {name} was drawn from randomness that was known too early"
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
        events += [(line.index, name, logged, line) for line in logged.draws[:1] + logged.settled]
    for _, name, logged, line in sorted(events, key=lambda event: event[0]):
        if isinstance(line.entry, e.AuditDrawn):
            if not line.entry.validators and accepted[logged.receipt.node] < probation:
                yield f"{name} of a newcomer was not drawn"
        elif line.entry.outcome is Outcome.ACCEPT:
            accepted[logged.receipt.node] += 1


def drawn_forgeries_are_rejected(finished: FinishedWorld) -> Iterator[str]:
    """A forgery that was drawn is neither accepted nor credited, at first or on appeal, by any draw."""
    for name, logged in finished.history.submissions.items():
        is_drawn = logged.draws and logged.draws[0].entry.validators
        if is_drawn and finished.is_forged(logged) and (logged.outcome is Outcome.ACCEPT or logged.credited):
            votes, honest, dishonest = finished.votes(logged)
            told = f"with votes {dict(votes)} of {honest} honest and {dishonest} dishonest"
            on_appeal, honest, dishonest = finished.votes(logged, on_appeal=True)
            told += f", on appeal {dict(on_appeal)} of {honest} and {dishonest}" if logged.appealed else ""
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
        votes, honest, dishonest = finished.votes(logged)
        if dishonest < honest + quorum:
            yield f"{name} is honest and was condemned with votes {dict(votes)}, {honest} of them honest"


def no_honest_node_is_slashed(finished: FinishedWorld) -> Iterator[str]:
    for name, logged in finished.history.submissions.items():
        if logged.executed and logged.receipt.node in finished.honest:
            on_appeal, honest, dishonest = finished.votes(logged, on_appeal=True)
            told = f"appeal with votes {dict(on_appeal)} of {honest} honest and {dishonest} dishonest"
            appeal = told if logged.appealed else "no appeal"
            yield f"{logged.receipt.node} is honest and was slashed for {name}, {appeal}"


def honest_validators_keep_their_score(finished: FinishedWorld) -> Iterator[str]:
    """Unless mostly dishonest ones decided, at first or on appeal."""
    for name, logged in finished.history.submissions.items():
        for line in logged.scored:
            if line.entry.validator not in finished.honest:
                continue
            _, honest, dishonest = finished.votes(logged)
            if honest >= dishonest and not _was_outvoted(finished, logged):
                yield f"{line.entry.validator} is honest and lost score over {name}"
            if line.entry.penalty_nano and dishonest < honest + finished.history.terms.quorum:
                yield f"{line.entry.validator} is honest and lost {line.entry.penalty_nano} of its stake over {name}"
        for node in logged.unread() & finished.honest:
            yield f"{node} is honest, and is said not to have read {name}"


def _was_outvoted(finished: FinishedWorld, logged: LoggedSubmission) -> bool:
    """Whether most judges of an appeal were dishonest."""
    _, honest, dishonest = finished.votes(logged, on_appeal=True)
    return dishonest > honest


def everything_is_decided(finished: FinishedWorld) -> Iterator[str]:
    history = finished.history
    for name, logged in history.submissions.items():
        if len(logged.settled) > 1 or (finished.is_over and not logged.settled):
            yield f"{name} was settled {len(logged.settled)} times"
        if len(logged.proposed) > 1 or (
            finished.is_over and logged.outcome is Outcome.FRAUDULENT and not logged.proposed
        ):
            yield f"{name} was condemned, and a slash was proposed {len(logged.proposed)} times"
        ends = len(logged.executed) + len(logged.overturned)
        if ends > len(logged.proposed) or (finished.is_over and ends < len(logged.proposed)):
            yield f"the slash for {name} was neither executed nor overturned, or both"
        if logged.proposed and logged.outcome is not Outcome.FRAUDULENT:
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
    held_nano = history.deposited_nano - history.withdrawn_nano - burned_nano
    # An owner without balance and stake appeals with what is in escrow already: then no bond is lost on top.
    bonds_nano = history.terms.appeal_bond_nano * sum(
        bool(logged.executed and logged.appealed) for logged in history.submissions.values()
    )
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
    return sum(line.entry.amount_nano + bond_nano for line in logged.proposed) if logged.executed else 0


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
    every_outcome_has_its_votes,
    verdicts_come_from_those_who_were_drawn,
    no_verdict_can_be_copied,
    newcomers_are_all_audited,
    drawn_forgeries_are_rejected,
    honest_work_is_not_condemned,
    no_honest_node_is_slashed,
    honest_validators_keep_their_score,
    everything_is_decided,
    finished_steps_are_paid_once,
    every_shown_head_is_of_this_log,
    every_acknowledged_entry_stays,
    no_envelope_is_logged_twice,
    the_log_replays,
)


def check_invariants(finished: FinishedWorld) -> list[str]:
    """All complaints, each with the name of its checker."""
    return [f"{checker.__name__}: {complaint}" for checker in INVARIANTS for complaint in checker(finished)]
