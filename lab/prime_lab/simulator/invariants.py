"""What must hold whatever happened, checked from outside: from the committed log, from what parties were told, and from
the truth about every file that only the simulator knows. The coordinator's own bookkeeping is not asked.

Each checker yields one sentence for each fault. No honest node is slashed, whoever the dice draw as judges. What a rule
by majority cannot promise, about a single round, stands with its condition in the checker.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prime_lab.simulator.coordinator_host import HONEST
from prime_lab.simulator.log_history import LoggedSubmission, LogHistory
from prime_lab.simulator.world import NETWORK, World
from prime_protocol.constants import SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import LogRecord, Outcome, Role
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.ledger.state import LedgerState
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import open_tree_head
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NodeId


@dataclass(frozen=True)
class FinishedWorld:
    """A finished world and who was honest in it."""

    world: World
    honest: frozenset[NodeId]
    """Nodes that kept to the protocol from first to last."""
    is_over: bool = True
    """All steps were trained and there was time to settle everything; else things may be open."""

    @property
    def chronicle(self) -> LogHistory:
        return self.world.host.chronicle

    def is_forged(self, tale: LoggedSubmission) -> bool:
        """Whether an honest audit would find the file dishonest."""
        file = self.world.files.get(tale.receipt.file_digest)
        return file is None or file.forgery != HONEST

    def votes(self, tale: LoggedSubmission, *, on_appeal: bool = False) -> tuple[Counter[Outcome], int, int]:
        """The verdicts before the outcome, or on appeal; how many of them honest and dishonest nodes gave."""
        settled = tale.settled[0].index if tale.settled else INDEX_MAX
        given = [line for line in tale.verdicts if (line.index > settled) is on_appeal]
        honest = sum(line.author in self.honest for line in given)
        return Counter(line.entry.outcome for line in given), honest, len(given) - honest


INDEX_MAX = 2**62
"""An index after all others."""

Invariant = Callable[[FinishedWorld], Iterator[str]]


# --- Work -----------------------------------------------------------------------------------------------------------


def no_slot_is_credited_twice(scene: FinishedWorld) -> Iterator[str]:
    taken: dict[tuple[int, int], Digest] = {}
    for name, tale in scene.chronicle.submissions.items():
        if len(tale.credited) > 1:
            yield f"{name} was credited {len(tale.credited)} times"
        if not tale.credited or tale.lease is None:
            continue
        for slot in tale.lease.slots:
            place = (tale.receipt.step, slot)
            if place in taken:
                yield f"slot {slot} of step {tale.receipt.step} was credited to {taken[place]} and {name}"
            taken[place] = name


def only_accepted_work_is_credited_or_trained_on(scene: FinishedWorld) -> Iterator[str]:
    for name, tale in scene.chronicle.submissions.items():
        if (tale.credited or tale.trained) and Outcome.ACCEPT not in _outcomes(tale):
            yield f"{name} was {tale.outcome}, but is credited or trained on"
        if len(tale.trained) > 1:
            yield f"{name} was trained on {len(tale.trained)} times"


def _outcomes(tale: LoggedSubmission) -> set[Outcome | None]:
    """What it was settled as, and what an appeal made of it."""
    return {tale.outcome} | ({Outcome.ACCEPT} if tale.overturned else set())


def every_lease_ends_once(scene: FinishedWorld) -> Iterator[str]:
    for number, tale in scene.chronicle.leases.items():
        if len(tale.ends) > 1 or (scene.is_over and not tale.ends):
            yield f"lease {number} has {len(tale.ends)} ends"
        for line in tale.ends:
            deadline_ms, holder = tale.granted.entry.deadline_ms, tale.granted.entry.node
            if isinstance(line.entry, e.Submitted):
                if line.author != holder or line.entry.receipt.node != holder:
                    yield f"lease {number} of {holder} was answered by {line.author}"
                if line.at_ms > deadline_ms:
                    yield f"lease {number} was answered {line.at_ms - deadline_ms} ms after its deadline"
            elif line.author != holder and line.at_ms <= deadline_ms:
                yield f"lease {number} was ended by {line.author} before its deadline"
    for line in scene.chronicle.strays:
        yield f"entry {line.index}, {type(line.entry).__name__}, is about something that the log does not know"


def leases_do_not_overlap(scene: FinishedWorld) -> Iterator[str]:
    """No two leases have a slot at one time, unless one is speculative. A submission keeps its slots until rejected."""
    spans: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    free_index: dict[int, int] = {}
    for tale in scene.chronicle.submissions.values():
        if tale.settled:
            rejected = tale.outcome is not Outcome.ACCEPT
            free_index[tale.receipt.lease] = tale.settled[0].index if rejected else INDEX_MAX
        else:
            free_index[tale.receipt.lease] = INDEX_MAX
    for number, lease in scene.chronicle.leases.items():
        if lease.granted.entry.speculative:
            continue
        ended = next((line.index for line in lease.ends if isinstance(line.entry, e.LeaseEnded)), INDEX_MAX)
        end = free_index.get(number, ended)
        for slot in lease.slots:
            for other, start, stop in spans.setdefault((lease.granted.entry.step, slot), []):
                if start < end and lease.granted.index < stop:
                    yield f"leases {other} and {number} both have slot {slot} of step {lease.granted.entry.step}"
            spans[(lease.granted.entry.step, slot)].append((number, lease.granted.index, end))


def leases_go_to_staked_workers(scene: FinishedWorld) -> Iterator[str]:
    total = scene.chronicle.terms.slots_per_step
    for number, lease in scene.chronicle.leases.items():
        node = lease.granted.entry.node
        if lease.slots.stop > total:
            yield f"lease {number} goes to slot {lease.slots.stop - 1}, a step has {total}"
        registered = scene.chronicle.registered.get(node)
        if registered is None or Role.WORKER not in registered.entry.roles:
            yield f"lease {number} went to {node}, which is no worker"
        staked = scene.chronicle.staked.get(node)
        if staked is None or staked.index > lease.granted.index:
            yield f"lease {number} went to {node}, which had no stake"


# --- Judgement ------------------------------------------------------------------------------------------------------


def every_outcome_has_its_votes(scene: FinishedWorld) -> Iterator[str]:
    """Recount: invalid also where nothing was decided, accepted also where no validator was drawn."""
    for name, tale in scene.chronicle.submissions.items():
        for line in tale.settled:
            votes = Counter(v.entry.outcome for v in tale.verdicts if v.index < line.index)
            outcome, decided = line.entry.outcome, _recount(votes, scene.chronicle.terms.quorum, tale.unasked)
            if outcome is Outcome.INVALID and decided is None:
                continue
            if outcome is Outcome.ACCEPT and tale.draws and not tale.draws[0].entry.validators:
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


def verdicts_come_from_those_who_were_drawn(scene: FinishedWorld) -> Iterator[str]:
    chronicle = scene.chronicle
    for name, tale in chronicle.submissions.items():
        drawn: Counter[NodeId] = Counter()
        for line in tale.draws:
            if not drawn.keys().isdisjoint(line.entry.validators):
                yield f"round {line.entry.round} of {name} asks somebody who was asked before"
            drawn.update(line.entry.validators)
            owners = [chronicle.owners.get(node) for node in line.entry.validators]
            if len(set(owners)) != len(owners):
                yield f"round {line.entry.round} of {name} has two validators of one owner"
            if tale.receipt.node in line.entry.validators or chronicle.owners.get(tale.receipt.node) in owners:
                yield f"round {line.entry.round} of {name} was drawn among its owner's own"
            if line.entry.head_size <= tale.submitted.index:
                yield f"round {line.entry.round} of {name} was drawn from a head before it was submitted"
        given = Counter(line.author for line in tale.verdicts)
        for node, count in given.items():
            if count > drawn[node]:
                yield f"{node} gave {count} verdicts on {name} and was drawn {drawn[node]} times"


def newcomers_are_all_audited(scene: FinishedWorld) -> Iterator[str]:
    """Until a node's first accepted submissions, every one of them is drawn."""
    accepted: Counter[NodeId] = Counter()
    probation = scene.chronicle.terms.audit_probation
    events = []
    for name, tale in scene.chronicle.submissions.items():
        events += [(line.index, name, tale, line) for line in tale.draws[:1] + tale.settled]
    for _, name, tale, line in sorted(events, key=lambda event: event[0]):
        if isinstance(line.entry, e.AuditDrawn):
            if not line.entry.validators and accepted[tale.receipt.node] < probation:
                yield f"{name} of a newcomer was not drawn"
        elif line.entry.outcome is Outcome.ACCEPT:
            accepted[tale.receipt.node] += 1


def drawn_forgeries_are_rejected(scene: FinishedWorld) -> Iterator[str]:
    """At first and on appeal, whoever was drawn to judge it."""
    for name, tale in scene.chronicle.submissions.items():
        is_drawn = tale.draws and tale.draws[0].entry.validators
        if is_drawn and scene.is_forged(tale) and (tale.outcome is Outcome.ACCEPT or tale.credited):
            votes, honest, dishonest = scene.votes(tale)
            told = f"with votes {dict(votes)} of {honest} honest and {dishonest} dishonest"
            on_appeal, honest, dishonest = scene.votes(tale, on_appeal=True)
            told += f", on appeal {dict(on_appeal)} of {honest} and {dishonest}" if tale.appealed else ""
            yield f"{name} is forged and was accepted {told}"


def honest_work_is_not_condemned(scene: FinishedWorld) -> Iterator[str]:
    """Unless dishonest validators led by a quorum; then there is the appeal."""
    quorum = scene.chronicle.terms.quorum
    for name, tale in scene.chronicle.submissions.items():
        if tale.receipt.node not in scene.honest:
            continue
        if scene.is_forged(tale):
            yield f"{name} is forged and by an honest node"
        if tale.outcome is not Outcome.FRAUDULENT:
            continue
        votes, honest, dishonest = scene.votes(tale)
        if dishonest < honest + quorum:
            yield f"{name} is honest and was condemned with votes {dict(votes)}, {honest} of them honest"


def no_honest_node_is_slashed(scene: FinishedWorld) -> Iterator[str]:
    for name, tale in scene.chronicle.submissions.items():
        if tale.executed and tale.receipt.node in scene.honest:
            on_appeal, honest, dishonest = scene.votes(tale, on_appeal=True)
            told = f"appeal with votes {dict(on_appeal)} of {honest} honest and {dishonest} dishonest"
            yield f"{tale.receipt.node} is honest and was slashed for {name}, {told if tale.appealed else 'no appeal'}"


def honest_validators_keep_their_score(scene: FinishedWorld) -> Iterator[str]:
    """Unless mostly dishonest ones decided, at first or on appeal."""
    for name, tale in scene.chronicle.submissions.items():
        for line in tale.scored:
            if line.entry.validator not in scene.honest:
                continue
            _, honest, dishonest = scene.votes(tale)
            if honest >= dishonest and not _was_outvoted(scene, tale):
                yield f"{line.entry.validator} is honest and lost score over {name}"
        for node in tale.unread() & scene.honest:
            yield f"{node} is honest, and is said not to have read {name}"


def _was_outvoted(scene: FinishedWorld, tale: LoggedSubmission) -> bool:
    """Whether most of those who judged an appeal were dishonest."""
    _, honest, dishonest = scene.votes(tale, on_appeal=True)
    return dishonest > honest


def everything_is_decided(scene: FinishedWorld) -> Iterator[str]:
    chronicle = scene.chronicle
    for name, tale in chronicle.submissions.items():
        if len(tale.settled) > 1 or (scene.is_over and not tale.settled):
            yield f"{name} was settled {len(tale.settled)} times"
        if len(tale.proposed) > 1 or (scene.is_over and tale.outcome is Outcome.FRAUDULENT and not tale.proposed):
            yield f"{name} was condemned, and a slash was proposed {len(tale.proposed)} times"
        ends = len(tale.executed) + len(tale.overturned)
        if ends > len(tale.proposed) or (scene.is_over and ends < len(tale.proposed)):
            yield f"the slash for {name} was neither executed nor overturned, or both"
        if tale.proposed and tale.outcome is not Outcome.FRAUDULENT:
            yield f"{name} was {tale.outcome}, but a slash was proposed"
        if tale.executed and not tale.appealed:
            waited_ms = tale.executed[0].at_ms - tale.proposed[0].at_ms
            if waited_ms < chronicle.terms.appeal_ms:
                yield f"the slash for {name} was executed {waited_ms} ms after it was proposed"


def finished_steps_are_paid_once(scene: FinishedWorld) -> Iterator[str]:
    chronicle = scene.chronicle
    worked = {lease.granted.entry.step for lease in chronicle.leases.values()}
    for step in sorted(worked):
        wanted = 1 if step < chronicle.latest else 0
        if chronicle.paid[step] > wanted or (scene.is_over and chronicle.paid[step] < wanted):
            yield f"step {step} was paid out {chronicle.paid[step]} times"


# --- The log --------------------------------------------------------------------------------------------------------


def every_shown_head_is_of_this_log(scene: FinishedWorld) -> Iterator[str]:
    host = scene.world.host
    tree = MerkleTree(compute_leaf_hash(leaf) for leaf in host.disk)
    for raw in scene.world.heads:
        head = open_tree_head(raw, [host.verifier])
        if head.size > tree.size or compute_root(head.size, tree.get_node) != head.root:
            yield f"a head of {head.size} entries was shown that is not of the log"


def every_acknowledged_entry_stays(scene: FinishedWorld) -> Iterator[str]:
    disk = scene.world.host.disk
    for index, (sender, body) in scene.world.acknowledged:
        if index < len(disk):
            letter = decode(Payload, decode(LogRecord, disk[index]).frame[SIGNATURE_BYTES:])
            if (letter.sender, letter.body) == (sender, body):
                continue
        yield f"an entry of {sender} was acknowledged at {index} and is not there"


def no_envelope_is_logged_twice(scene: FinishedWorld) -> Iterator[str]:
    seen: dict[bytes, int] = {}
    for index, leaf in enumerate(scene.world.host.disk):
        frame = decode(LogRecord, leaf).frame
        if frame in seen:
            yield f"entries {seen[frame]} and {index} are one envelope"
        seen[frame] = index


def the_log_replays(scene: FinishedWorld) -> Iterator[str]:
    """A stranger who checks every signature gets the state that the coordinator has."""
    host = scene.world.host
    try:
        ledger = replay(NETWORK, host.disk, coordinator=host.key.node)
    except RemoteError as error:
        yield f"the log does not replay: {error}"
        return
    if host.core is not None and ledger.state != host.core.state:
        yield "the coordinator's state is not what its log says"
    yield from _value_is_conserved(scene.chronicle, ledger)


def _value_is_conserved(chronicle: LogHistory, ledger: Ledger) -> Iterator[str]:
    books = ledger.state.funds
    burned_nano = sum(_compute_burned_nano(tale, chronicle) for tale in chronicle.submissions.values())
    held_nano = chronicle.deposited_nano - chronicle.withdrawn_nano - burned_nano
    if books.total_nano() != held_nano:
        yield f"the books hold {books.total_nano()}, what came in and went out leaves {held_nano}"
    if min([0, *_list_amounts_nano(ledger.state)]) < 0:
        yield "an account is below zero"
    budget_nano = sum(chronicle.paid.values()) * chronicle.terms.step_budget_nano
    paid_nano = ledger.state.runs["run-1"].funded.total() - books.pools["run-1"]  # type: ignore[index]
    if paid_nano > budget_nano:
        yield f"{paid_nano} were paid out of budgets of {budget_nano}"


def _compute_burned_nano(tale: LoggedSubmission, chronicle: LogHistory) -> int:
    bond_nano: int = chronicle.terms.appeal_bond_nano if tale.appealed else 0
    return sum(line.entry.amount_nano + bond_nano for line in tale.proposed) if tale.executed else 0


def _list_amounts_nano(state: LedgerState) -> Iterator[int]:
    yield from state.funds.balances.values()
    yield from state.funds.stakes.values()
    yield from state.funds.pools.values()


def parties_saw_nothing_wrong(scene: FinishedWorld) -> Iterator[str]:
    yield from scene.world.problems


INVARIANTS: tuple[Invariant, ...] = (
    parties_saw_nothing_wrong,
    no_slot_is_credited_twice,
    only_accepted_work_is_credited_or_trained_on,
    every_lease_ends_once,
    leases_do_not_overlap,
    leases_go_to_staked_workers,
    every_outcome_has_its_votes,
    verdicts_come_from_those_who_were_drawn,
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


def check_invariants(scene: FinishedWorld) -> list[str]:
    """All complaints, each with the name of its checker."""
    return [f"{checker.__name__}: {complaint}" for checker in INVARIANTS for complaint in checker(scene)]
