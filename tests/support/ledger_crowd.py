"""A crowd that writes into a World's log: honest next steps, and forged entries of every type by anybody.

Everything is drawn from one seed. What it writes may be refused; who watches decides whether that was right.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from enum import StrEnum
from functools import partial
from types import UnionType
from typing import Annotated, Any, NewType, get_args, get_origin, get_type_hints

from prime_protocol.constants import LEASE_MS_MAX, READ_PROOF_BYTES, REVEAL_MS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw, compute_settled_outcome, tally_outcome
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.funds import StakeKey
from prime_protocol.ledger.replay import ENTRY_RULES, EntryAuthor
from prime_protocol.ledger.rewards import compute_refund_nano, find_uncredited, is_creditable
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step, Ticker
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, SubmissionReceipt, VerdictReceipt
from support.ledger_network import (
    BOND,
    DAY_MS,
    HOUR_MS,
    NETWORK,
    ON_CHAIN,
    RUN,
    SLASH,
    STAKE,
    TERMS,
    World,
    digest,
    make_commitment,
    make_settled,
)

WORKERS = ["ann", "bob", "cat", "key"]
PEOPLE = ["coordinator", "trainer", "inspector", "sponsor", *WORKERS, "owner", *(f"val-{n}" for n in range(7))]
INSPECTORS = ("inspector", "val-0")
STEPS_MAX = 3


class Mob:
    """Chooses the next thing to write."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.honesty = self.dice.choice([0.5, 0.8, 0.95])
        """Share of verdicts that say what the validator saw."""
        self.verdicts: dict[tuple[str, Digest], e.VerdictGiven] = {}
        """What each validator that was drawn has found."""

    def act(self) -> None:
        """One honest step, one forged entry, or a while of nothing. Raises what the ledger refuses."""
        chance = self.dice.random()
        if chance < 0.05:
            spans = [1, TERMS.verdict_ms, TERMS.judgement_ms, TERMS.appeal_ms, HOUR_MS, 7 * DAY_MS]
            self.world.wait(self.dice.choice(spans))
        elif chance < 0.2:
            self.forge(self.dice.choice(list(ENTRY_RULES)))
        else:
            self.dice.choice(self.moves())()

    # --- Honest steps -----------------------------------------------------------------------------------------------

    def moves(self) -> Sequence[Callable[[], object]]:
        """What somebody could reasonably do now, of one sort."""
        world, run, pick = self.world, self.world.run, self.dice.choice
        worker = pick(["ann", "bob", "key"])
        ripe = [number for number, step in run.steps.items() if not step.paid]
        sorts: list[Sequence[Callable[[], object]]] = [
            *[[partial(self.further, name) for name in run.submissions]] * 8,
            *[[partial(world.submit, number) for number in run.leases]] * 2,
            *[[partial(self.further_finding, name) for name in run.findings if name not in run.slashes]] * 3,
            [partial(world.lease, worker, pick(range(8)), 1, speculative=pick([False, True]))],
            [partial(self.end_lease, number) for number in run.leases],
            [partial(world.pay_out, number) for number in ripe],
            [partial(self.release, place) for place in world.state.funds.unbonding],
            [self.manage] if self.dice.random() < 0.5 else [],
        ]
        return pick([sort for sort in sorts if sort])

    def manage(self) -> None:
        """What concerns the run or the accounts."""
        world, run, pick = self.world, self.world.run, self.dice.choice
        kind = self.dice.randrange(6)
        if (
            world.state.domain != EMBEDDED_DOMAIN
            and run.terms.slash_to is SlashDestination.POOL
            and self.dice.random() < 0.2
        ):
            world.forfeit(pick([1, SLASH]))
        elif self.dice.random() < 0.05:
            pick([world.rotate_log_key, world.rotate_coordinator])(f"key {world.state.size}")
        elif run.status is RunStatus.CLOSED:
            self.return_pool()
        elif run.status is RunStatus.PAUSED:
            world.set_run(RunStatus.ACTIVE)
        elif run.latest == STEPS_MAX and self.dice.random() < 0.2:
            world.set_run(RunStatus.CLOSED)
        elif kind < 2:
            self.publish()
        elif kind == 2:
            pick([world.deposit, world.fund])(pick(PEOPLE), pick([1, BOND, STAKE]))
        elif kind in (3, 4):
            self.move_stake(pick(PEOPLE), pick(PEOPLE))
        else:
            self.restore(pick(["ann", "bob", "key"]))

    def restore(self, worker: str) -> None:
        """A worker that was left without stake or owner starts again."""
        self.world.coordinate(e.NodeStatusSet(node=self.world.id(worker), status=NodeStatus.ACTIVE, reason=""))
        self.world.join(worker, Role.WORKER, owner="owner" if worker == "key" else None)

    def further(self, name: Digest) -> None:
        """The next step in the life of a submission."""
        world, run, submission = self.world, self.world.run, self.world.submission(name)
        if submission.rounds and self.dice.random() < 0.1:
            world.rule(name, self.dice.choice(list(Outcome)), by=self.dice.choice(INSPECTORS))
        elif name in run.slashes:
            self.further_slash(name)
        elif name in run.findings and not run.findings[name].is_upheld:
            self.further_finding(name)
        elif submission.outcome is not None and self.dice.random() < 0.1:
            self.inspect(name)
        elif submission.credited and self.dice.random() < 0.5:
            self.file_finding(name)
        elif submission.outcome is Outcome.FRAUDULENT:
            world.propose(name)
        elif any(each.verdicts for each in submission.rounds) and submission.judged and self.dice.random() < 0.2:
            self.score(name)
        elif submission.outcome is Outcome.ACCEPT:
            world.credit(name)
        elif submission.outcome is None and self.dice.random() < 0.5:
            outcome = compute_settled_outcome(world.state, run, name, world.now_ms)
            world.coordinate(settled_by_the_slots(world, name, outcome or Outcome.ACCEPT))
        else:
            self.judge(name)

    def further_slash(self, name: Digest) -> None:
        world, slash = self.world, self.world.run.slashes[name]
        if slash.appealed_at_ms is None and self.dice.random() < 0.25:
            world.appeal(world.names[self.dice.choice([slash.node, slash.owner])], name)
        else:
            self.dice.choice([world.execute, world.overturn, self.judge, self.judge, self.judge])(name)

    def file_finding(self, name: Digest) -> None:
        """By anybody, true or not; most have got the bond before."""
        finder, bond_nano = self.dice.choice(PEOPLE), self.world.run.terms.finding_bond_nano
        if self.dice.random() < 0.8:
            self.world.deposit(finder, bond_nano)
        self.world.file_finding(finder, name)

    def further_finding(self, name: Digest) -> None:
        """Some judges speak, then the coordinator tries to end it."""
        for _ in range(self.dice.randrange(12)):
            if tally_outcome(self.world.state, self.world.run, name, self.world.now_ms) is None:
                self.judge(name)
        self.dice.choice([self.world.uphold, self.world.dismiss])(name)

    def judge(self, name: Digest) -> None:
        """A commitment or a verdict of somebody who was drawn and has not spoken; a draw where all have."""
        world, submission = self.world, self.world.submission(name)
        last = submission.rounds[-1] if submission.rounds else None
        silent = [node for node in last.validators if node not in last.verdicts] if last else []
        if last and silent and self.dice.random() < 0.9:
            waiting = [node for node in silent if node not in last.commitments] if last.is_committed_first else []
            is_hasty = self.dice.random() < 0.1
            validator = world.names[self.dice.choice(silent if is_hasty or not waiting else waiting)]
            verdict = self.verdicts.setdefault((validator, name), self.make_verdict(validator, name))
            world.write(validator, verdict if is_hasty or not waiting else make_commitment(verdict))
        elif submission.randomness is None:
            world.note_head()
        else:
            drawn = compute_draw(world.state, world.run, name, world.now_ms) or ()
            number, source = len(submission.rounds), submission.randomness[0]
            if drawn or number:
                drawn = drawn or (world.id("ann"),)
                world.coordinate(e.AuditDrawn(submission=name, round=number, randomness_round=source, validators=drawn))
            else:
                self.accept_unaudited(source)

    def accept_unaudited(self, source: int) -> None:
        """All that wait for this round and are spared; now and then one too many."""
        world, run, is_greedy = self.world, self.world.run, self.dice.random() < 0.1
        waiting = [
            name
            for name, each in run.submissions.items()
            if each.outcome is None and not each.rounds and each.randomness and each.randomness[0] == source
        ]
        draws = {name: compute_draw(world.state, run, name, world.now_ms) for name in waiting}
        names = tuple(name for name, drawn in draws.items() if drawn == () or is_greedy)
        world.coordinate(
            e.AcceptedUnaudited(randomness_round=source, submissions=names, uncredited=find_uncredited(run, names))
        )

    def make_verdict(self, validator: str, name: Digest) -> e.VerdictGiven:
        """What somebody who was drawn finds."""
        world, guilty = self.world, digest(f"is {name} good?")[0] < 128
        truth = Outcome.FRAUDULENT if guilty else Outcome.ACCEPT
        found = truth if self.dice.random() < self.honesty else self.dice.choice(list(Outcome))
        looks = world.looks(validator, name) if self.dice.random() < self.honesty else self.guess_looks()
        return world.opinion(validator, name, found, looks=looks)

    def score(self, name: Digest) -> None:
        submission = self.world.submission(name)
        spoken = {node: outcome for each in submission.rounds for node, outcome in each.verdicts.items()}
        overruled = [node for node, outcome in spoken.items() if outcome is not submission.judged]
        validator = self.dice.choice(overruled or list(spoken))
        self.world.score(self.world.names[validator], name)

    def guess_looks(self) -> bytes:
        """Of who has not read the file: none, or some that are made up."""
        return self.dice.choice([b"", self.dice.randbytes(READ_PROOF_BYTES)])

    def inspect(self, name: Digest) -> None:
        """Some of those who judged it are looked at."""
        world, readers = self.world, self.world.readers(name)
        chosen = self.dice.sample(readers, self.dice.randint(0, len(readers)))
        found = {reader: world.looks(reader, name) for reader in chosen}
        world.write(self.dice.choice(INSPECTORS), world.inspection(name, found))

    def release(self, place: StakeKey) -> None:
        self.world.write(self.world.names[place[0]], e.Released(node=place[1]))

    def publish(self) -> None:
        accepted = [n for n, s in self.world.run.submissions.items() if s.outcome is Outcome.ACCEPT]
        self.world.publish(*self.dice.sample(accepted, min(len(accepted), self.dice.randrange(3))))
        if self.world.run.latest % 2:
            self.world.measure(self.world.run.latest, held_out=0.5)

    def end_lease(self, number: int) -> None:
        author = self.dice.choice([self.world.names[self.world.run.leases[number].node], self.world.coordinator_name])
        self.world.write(author, e.LeaseEnded(lease=number, reason=""))

    def move_stake(self, owner: str, node: str) -> None:
        world, key = self.world, self.world.id(node)
        amount_nano = self.dice.choice([1, SLASH, STAKE])
        kind = self.dice.randrange(5)
        if kind == 0:
            world.delegate(owner, node, life_ms=self.dice.choice([HOUR_MS, 100 * HOUR_MS]))
        elif kind == 1:
            world.write(owner, e.DelegationRevoked(node=key))
        elif kind == 2:
            holder = world.names[world.state.owners.get(key, key)]
            world.write(self.dice.choice([owner, holder]), e.Unbonded(node=key, amount_nano=amount_nano))
        else:
            world.stake(world.names[world.state.owners.get(key, key)], node, amount_nano)

    def return_pool(self) -> None:
        for account in list(self.world.run.funded):
            amount_nano = compute_refund_nano(self.world.state, RUN, account)
            self.world.write(self.world.names[account], e.PoolReturned(amount_nano=amount_nano))

    # --- Forged entries ---------------------------------------------------------------------------------------------

    def forge(self, kind: type) -> None:
        """A well-formed entry whose fields are plausible and whose author may be anybody."""
        entry = self.invent(kind)
        author = self.dice.choice(PEOPLE)
        if ENTRY_RULES[kind].author is EntryAuthor.COORDINATOR and self.dice.random() < 0.8:
            author = self.world.coordinator_name
        word = getattr(entry, "receipt", None) or getattr(entry, "delegation", None)
        if word is not None:
            signer = self.dice.choice([author, author, self.dice.choice(PEOPLE)])
            entry = replace(entry, signature=self.world.sign(signer, word))
        self.world.write(author, entry)

    def invent(self, kind: Any) -> Any:
        """A value of that type, from what is known in this world where that makes it more plausible."""
        pick, world = self.dice.choice, self.world
        if get_origin(kind) is Annotated:
            return self.invent(get_args(kind)[0])
        if isinstance(kind, NewType):
            return self.invent(kind.__supertype__)
        if get_origin(kind) is tuple:
            return tuple(self.invent(get_args(kind)[0]) for _ in range(pick([0, 1, 3])))
        if kind is RunTerms:
            changes = pick(
                [{}, {"quorum": pick([1, 3])}, {"lag_max": pick([0, 3])}, {"appeal_ms": 0}, {"slash_nano": STAKE}]
            )
            return world.terms(slash_to=pick(list(SlashDestination)), **changes)
        if is_dataclass(kind):
            return self.invent_message(kind)
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return pick([value for value in kind if value is not RunStatus.CLOSED])
        known: dict[Any, Callable[[], Any]] = {
            NodeId: lambda: world.id(pick(PEOPLE)),
            Digest: lambda: pick(
                [*world.run.submissions, world.state.frontier.root(), digest(f"evidence of {pick(PEOPLE)}")]
            ),
            NetworkId: lambda: NETWORK,
            RunId: lambda: RUN,
            Ticker: lambda: Ticker("COIN"),
            Signature: lambda: Signature(bytes(65)),
            str: lambda: "words",
            bytes: lambda: b"",
            bool: lambda: pick([True, False]),
            float: lambda: 0.5,
            int: lambda: (
                pick([0, 0, 1, 1, 2, 5, 20, 40, world.run.lease_next, world.state.size, BOND, SLASH, STAKE])
                + pick([0, 0, 0, world.now_ms])
            ),
        }
        return known[kind]()

    def invent_message(self, kind: Any) -> Any:
        hints = get_type_hints(kind, include_extras=True)
        fields = {name: self.invent(hint) for name, hint in hints.items() if not isinstance(hint, UnionType)}
        if kind is e.NodeRegistered:
            fields["roles"] = tuple(sorted(set(fields["roles"]) | {Role.WORKER, Role.VALIDATOR}))
        if kind is e.VerdictGiven:
            fields["outcome"] = list(Outcome)[fields["receipt"].outcome]
        if kind is e.InspectedVerdict:
            fields["read_proof"] = bytes(READ_PROOF_BYTES)
        if kind is e.Inspected:
            fields["seen"] = tuple(dict(sorted((each.reader, each) for each in fields["seen"])).values())
        if kind is Delegation:
            fields |= {"issued_at_ms": self.world.now_ms - 1, "expires_at_ms": self.world.now_ms + HOUR_MS}
        if kind is VerdictReceipt:
            fields["outcome"] = self.dice.randrange(3)
        if kind is SubmissionReceipt:
            fields["checkpoint_root"] = self.world.run.checkpoints[Step(self.world.run.latest)].root
        return kind(**fields)


def wind_down(world: World) -> None:
    """Honest people end everything that is open, and everybody takes out what is theirs."""
    run, books = world.run, world.state.funds
    world.wait(LEASE_MS_MAX)
    for lease in list(run.leases):
        world.coordinate(e.LeaseEnded(lease=lease, reason="the end"))
    for name in list(run.submissions):
        end_submission(world, name)
    if run.status is not RunStatus.CLOSED:
        world.set_run(RunStatus.CLOSED)
    world.wait(DAY_MS)  # until all pay has vested
    for number in [number for number, step in run.steps.items() if not step.paid]:
        world.pay_out(number)
    for account in list(run.funded):
        amount_nano = compute_refund_nano(world.state, RUN, account)
        world.write(world.names[account], e.PoolReturned(amount_nano=amount_nano))
    stakes: Counter[StakeKey]
    for stakes in (+books.stakes, Counter()):
        world.wait(world.state.unbonding_ms)
        for place in list(books.unbonding):
            world.write(world.names[place[0]], e.Released(node=place[1]))
        for place, amount_nano in stakes.items():
            world.write(world.names[place[0]], e.Unbonded(node=place[1], amount_nano=amount_nano))
    for account, amount_nano in list((+books.balances).items()):
        world.write(world.names[account], e.Withdrawn(amount_nano=amount_nano))


def settled_by_the_slots(world: World, name: Digest, outcome: Outcome) -> e.Settled:
    """The outcome of one submission, credited where its slots are free."""
    return make_settled(name, outcome, find_uncredited(world.run, [name] if outcome is Outcome.ACCEPT else []))


def end_submission(world: World, name: Digest) -> None:
    """Settle it, credit it or carry out its slash, without any further verdict."""
    run, submission = world.run, world.submission(name)
    world.note_head()
    world.wait(TERMS.verdict_ms + REVEAL_MS)
    if submission.outcome is None:
        while compute_settled_outcome(world.state, run, name, world.now_ms) is None:
            world.note_head()
            if compute_draw(world.state, run, name, world.now_ms) is not None and not world.draw(name):
                break
            world.wait(2 * TERMS.verdict_ms + REVEAL_MS)  # for verdicts, or for an inspector
        if submission.outcome is None:
            world.settle(name)
    if name in run.findings and not run.findings[name].is_upheld:
        world.wait(run.get_terms(submission).judgement_ms)
        is_fraud = tally_outcome(world.state, run, name, world.now_ms) is Outcome.FRAUDULENT
        (world.uphold if is_fraud else world.dismiss)(name)
    if submission.outcome is Outcome.FRAUDULENT and not submission.slashed:
        world.propose(name)
    if name in run.slashes:
        world.wait(max(run.get_terms(submission).appeal_ms, run.get_terms(submission).long_stop_ms))
        slash = run.slashes[name]
        failed = tally_outcome(world.state, run, name, world.now_ms) is Outcome.FRAUDULENT
        end = world.execute if slash.appealed_at_ms is None or failed else world.overturn
        end(name)
    if is_creditable(run, submission):
        world.credit(name)


def crowd(seed: int, **terms: Any) -> tuple[World, Mob]:
    """A started world with a delegated node among its workers, and its mob."""
    dice = random.Random(seed)
    drawn: dict[str, Any] = {
        "domain": dice.choice([EMBEDDED_DOMAIN, EMBEDDED_DOMAIN, ON_CHAIN]),
        "slash_to": dice.choice(list(SlashDestination)),
        "audit_probation": dice.choice([0, 1000]),
        "appeal_bond_nano": dice.choice([0, BOND]),
    }
    world = World.started(inspectors=tuple(map(World().id, INSPECTORS)), **drawn | terms)
    world.join("key", Role.WORKER, owner="owner")
    world.register("inspector", Role.RELAY)
    for name in PEOPLE:
        world.key(name)
    return world, Mob(world, seed)


def try_act(mob: Mob) -> RemoteError | None:
    """One act; what the ledger refused, if it did."""
    try:
        mob.act()
    except RemoteError as error:
        return error
    return None
