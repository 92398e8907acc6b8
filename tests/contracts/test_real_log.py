"""Slashes of a real log on the chain: its receipts, verdicts, leaves and proofs, and in the end the same stakes."""

from collections.abc import Sequence
from typing import Any

import pytest

from prime_node.settlement.payout_check import PostedRoot, check_root
from prime_protocol.constants import BASIS_POINTS, SIGNATURE_BYTES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import LogRecord, Outcome, Role, Submitted, VerdictGiven
from prime_protocol.ledger.payout_tree import PayoutTree, list_payable
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.typed_data import Domain, compute_receipt_id
from prime_runtime.chain.abi import compute_penalty_name
from support.contracts.evm import CHAIN_ID, Chain, node_id
from support.contracts.network import RUN_KEY, Scene, receipt_values, verdict_values
from support.ledger_network import (
    BOND,
    BUDGET,
    DAY_MS,
    MINUTE_MS,
    PENALTY,
    RUN,
    SLASH,
    STAKE,
    START_MS,
    TERMS,
    VALIDATORS,
    World,
    digest,
)

WINDOW_S = 2 * 3600


class Settled:
    """A log whose network names the court as its domain, and the chain that follows it."""

    def __init__(self) -> None:
        self.world = World()
        operator = self.world.key("coordinator")
        self.chain = Chain(operator.node, now_s=START_MS // 1000, delay_s=10 * 86_400)
        self.scene = Scene(self.chain, operator)
        self.scene.create_run(
            stakeMin=STAKE,
            slashAmount=SLASH,
            slashPerDay=2 * SLASH,
            validatorSlash=PENALTY,
            appealBond=BOND,
            appealWindow=WINDOW_S,
            epochBudget=2 * BUDGET,
        )
        self.world.create_network(domain=Domain(CHAIN_ID, node_id(self.chain.court)))
        for name in ("ann", "bob", *VALIDATORS):
            self.world.join(name, Role.WORKER if name in ("ann", "bob") else Role.VALIDATOR)
            self.scene.stake(self.world.id(name), STAKE)
        self.world.create_run(step_budget_nano=BUDGET, validator_slash_nano=PENALTY)
        self.world.publish()

    def anchor(self) -> None:
        """The head of everything so far, an hour later."""
        self.world.wait(MINUTE_MS)
        self.chain.warp(self.world.now_ms // 1000)
        for leaf in self.world.leaves[len(self.scene.log.leaves) :]:
            self.scene.log.add(leaf)
        self.scene.log.anchor()

    def entries(self, kind: type) -> list[tuple[int, Any]]:
        found = []
        for index, leaf in enumerate(self.world.leaves):
            letter = decode(Payload, decode(LogRecord, leaf).frame[SIGNATURE_BYTES:])
            if letter.kind == kind.__name__:
                found.append((index, decode(kind, letter.body)))
        return found

    def verdicts(self, name: Digest, outcomes: Sequence[Outcome], *, after: int = 0) -> list[tuple[Any, ...]]:
        given = [entry for index, entry in self.entries(VerdictGiven) if index > after]
        chosen = [entry for entry in given if entry.receipt.submission == name and entry.outcome in outcomes]
        chosen.sort(key=lambda entry: bytes(entry.receipt.validator))
        return [verdict_values(entry.receipt, entry.signature) for entry in chosen]

    def logged(self, kind: type, name: Digest) -> tuple[int, Any]:
        return next((index, entry) for index, entry in self.entries(kind) if entry.submission == name)

    def propose(self, name: Digest) -> None:
        self.anchor()
        work = next(entry for _, entry in self.entries(Submitted) if compute_receipt_id(entry.receipt) == name)
        index, entry = self.logged(e.SlashProposed, name)
        receipt, verdicts = receipt_values(work.receipt, work.signature), self.verdicts(name, [Outcome.FRAUDULENT])
        logged = self.scene.log.entry(index)
        assert self.chain.call(self.chain.court, "propose", RUN_KEY, receipt, verdicts, entry.evidence, logged) == name

    def appeal(self, name: Digest) -> None:
        ann = self.world.id("ann")
        self.world.appeal("ann", name)
        self.scene.give(ann, BOND, self.chain.court)
        self.chain.call(self.chain.court, "appeal", name, by=ann)

    def judge(self, name: Digest, kind: type, outcomes: Sequence[Outcome]) -> None:
        """Take the log's decision on an appeal to the court."""
        self.anchor()
        appealed, _ = self.logged(e.Appealed, name)
        proposed, _ = self.logged(e.SlashProposed, name)
        first = [values[0] for values in self.verdicts(name, [Outcome.FRAUDULENT])]
        first = [bytes(node) for node in first if self.spoke_before(bytes(node), proposed)]
        index, _ = self.logged(kind, name)
        others = self.verdicts(name, outcomes, after=appealed)
        self.chain.call(
            self.chain.court, "judge", name, [*first, *first], others, bytes(20), self.scene.log.entry(index)
        )

    def end(self, name: Digest, kind: type) -> tuple[Any, ...]:
        """The log's own end of a slash, anchored, as the court wants to see it."""
        self.anchor()
        return self.scene.log.entry(self.logged(kind, name)[0])

    def spoke_before(self, node: bytes, place: int) -> bool:
        return any(bytes(entry.receipt.validator) == node and at < place for at, entry in self.entries(VerdictGiven))

    def position(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.chain.call(self.chain.vault, "positionOf", self.world.id(name))
        return found


@pytest.fixture
def settled() -> Settled:
    return Settled()


def test_slash_without_appeal_ends_alike_on_both_sides(settled: Settled) -> None:
    name = settled.world.convicted("ann")
    settled.propose(name)
    assert settled.position("ann")["escrow"] == SLASH
    proposal = settled.scene.log.entry(settled.logged(e.SlashProposed, name)[0])
    with settled.chain.refuses("AppealWindowOpen"):
        settled.chain.call(settled.chain.court, "execute", name, bytes(20), proposal)
    settled.world.wait(DAY_MS)
    settled.world.execute(name)
    entry = settled.end(name, e.SlashExecuted)
    with settled.chain.refuses("NotInLeaf"):
        settled.chain.call(settled.chain.court, "execute", name, bytes(20), proposal)
    settled.chain.call(settled.chain.court, "execute", name, bytes(20), entry)
    assert settled.position("ann")["stake"] == settled.world.stake_of("ann") == STAKE - SLASH


def test_slash_that_was_overturned_in_the_log_alone_is_never_executed_on_the_chain(settled: Settled) -> None:
    name = settled.world.convicted("ann")
    settled.propose(name)
    settled.world.appeal("ann", name)
    settled.world.agree(name, Outcome.ACCEPT)
    settled.world.overturn(name)
    entry = settled.end(name, e.SlashOverturned)
    settled.chain.warp(settled.chain.now_s + DAY_MS // 1000)
    with settled.chain.refuses("NotInLeaf"):
        settled.chain.call(settled.chain.court, "execute", name, bytes(20), entry)
    settled.chain.call(settled.chain.court, "overturn", name, entry, by=settled.world.id("bob"))
    assert settled.position("ann")["stake"] == settled.world.stake_of("ann") == STAKE


def test_appeal_that_others_refuse_costs_stake_and_bond(settled: Settled) -> None:
    name = settled.world.convicted("ann")
    settled.propose(name)
    settled.appeal(name)
    settled.world.agree(name, Outcome.FRAUDULENT)
    settled.world.execute(name)
    settled.judge(name, e.SlashExecuted, [Outcome.FRAUDULENT])
    assert settled.position("ann")["stake"] == settled.world.stake_of("ann") == STAKE - SLASH
    assert settled.chain.call(settled.chain.pool, "held") == SLASH + BOND
    assert settled.chain.call(settled.chain.court, "bonds") == 0


def test_appeal_that_others_uphold_gives_everything_back(settled: Settled) -> None:
    name = settled.world.convicted("ann")
    settled.propose(name)
    settled.appeal(name)
    settled.world.agree(name, Outcome.ACCEPT)
    settled.world.overturn(name)
    settled.judge(name, e.SlashOverturned, [Outcome.ACCEPT])
    assert settled.position("ann")["stake"] == settled.world.stake_of("ann") == STAKE
    assert settled.chain.call(settled.chain.token, "balanceOf", settled.world.id("ann")) == BOND


def test_no_leaf_of_a_real_log_but_its_own_proposes_a_slash(settled: Settled) -> None:
    """Every other leaf, at every place where the wanted bytes could begin, is refused."""
    name = settled.world.convicted("ann")
    settled.anchor()
    work = next(entry for _, entry in settled.entries(Submitted))
    right, entry = settled.logged(e.SlashProposed, name)
    receipt, verdicts = receipt_values(work.receipt, work.signature), settled.verdicts(name, [Outcome.FRAUDULENT])
    honest = settled.scene.log.entry(right)
    for index, leaf in enumerate(settled.world.leaves):
        if index == right or entry.submission not in leaf:
            continue
        wrong = (leaf, leaf.index(bytes(entry.submission)) - 13, *honest[2:4], index, *honest[5:])
        with settled.chain.refuses("NotInLeaf"):
            settled.chain.call(settled.chain.court, "propose", RUN_KEY, receipt, verdicts, entry.evidence, wrong)


# --- Penalties and bounties: `invented-penalty` and `stolen-bounty` of the gallery ------------------------------------


class Refuted:
    """A validator that called honest work fraudulent, in a real log, and what its penalty takes to the court."""

    def __init__(self, settled: Settled) -> None:
        world = settled.world
        self.settled = settled
        self.name = world.submit(world.lease("ann"))
        self.liar = world.judge(self.name, Outcome.FRAUDULENT, Outcome.ACCEPT, Outcome.ACCEPT)[0]
        world.agree(self.name, Outcome.ACCEPT)
        world.settle(self.name)
        self.penalty_nano = world.score(self.liar, self.name)
        settled.anchor()
        self.index, _ = settled.logged(e.ValidatorScored, self.name)

    def verdict(self, validator: str) -> tuple[Any, ...]:
        node = self.settled.world.id(validator)
        return next(each for each in self.settled.verdicts(self.name, list(Outcome)) if each[0] == node)

    def propose(self, entry: tuple[Any, ...], *, validator: str = "", penalty_nano: int = 0) -> Digest:
        """By default what the log says."""
        chain, verdict = self.settled.chain, self.verdict(validator or self.liar)
        amount_nano = penalty_nano or self.penalty_nano
        values = RUN_KEY, self.name, verdict, amount_nano, entry
        return Digest(chain.call(chain.court, "proposePenalty", *values))


def test_a_penalty_of_a_real_log_leads_to_the_same_stake_on_both_sides(settled: Settled) -> None:
    refuted = Refuted(settled)
    chain, world = settled.chain, settled.world
    penalty = refuted.propose(settled.scene.log.entry(refuted.index))
    assert penalty == compute_penalty_name(refuted.name, world.id(refuted.liar))
    chain.warp(chain.now_s + WINDOW_S)
    chain.call(chain.court, "executePenalty", penalty)
    assert settled.position(refuted.liar)["stake"] == world.stake_of(refuted.liar) == STAKE - PENALTY
    with chain.refuses("SlashExists"):
        refuted.propose(settled.scene.log.entry(refuted.index))


def test_appeal_of_a_penalty_fails_against_the_verdicts_of_the_log(settled: Settled) -> None:
    refuted = Refuted(settled)
    chain, liar = settled.chain, settled.world.id(refuted.liar)
    penalty = refuted.propose(settled.scene.log.entry(refuted.index))
    settled.scene.give(liar, BOND, chain.court)
    chain.call(chain.court, "appeal", penalty, by=liar)
    others = settled.verdicts(refuted.name, [Outcome.ACCEPT])[:3]
    chain.call(chain.court, "judgePenalty", refuted.name, liar, others)
    assert settled.position(refuted.liar)["stake"] == STAKE - PENALTY


def test_penalty_that_the_log_does_not_contain_is_refused(settled: Settled) -> None:
    """`invented-penalty`: the coordinator brings one about another validator, of another amount, or from any other
    leaf of its log."""
    refuted = Refuted(settled)
    log = settled.scene.log
    honest = log.entry(refuted.index)
    right = next(each for each in settled.world.readers(refuted.name) if each != refuted.liar)
    with settled.chain.refuses("NotInLeaf"):
        refuted.propose(honest, validator=right)
    with settled.chain.refuses("NotInLeaf"):
        refuted.propose(honest, penalty_nano=refuted.penalty_nano + 1)
    for index, leaf in enumerate(settled.world.leaves):
        if index != refuted.index and bytes(refuted.name) in leaf:
            wrong = (leaf, leaf.index(bytes(refuted.name)) - 13, *honest[2:4], index, *honest[5:])
            with settled.chain.refuses("NotInLeaf"):
                refuted.propose(wrong)
    unanchored = settled.scene.write(
        e.ValidatorScored(submission=refuted.name, validator=settled.world.id(right), penalty_nano=7)
    )
    leaf = log.leaves[unanchored]
    forged = (leaf, leaf.index(b"\x83\xacpenalty_nano"), *forged_times(leaf), refuted.index, *honest[5:])
    with settled.chain.refuses("HeadUnknown"):
        refuted.propose(forged, validator=right, penalty_nano=7)


def forged_times(leaf: bytes) -> tuple[int, int]:
    payload = decode(Payload, decode(LogRecord, leaf).frame[SIGNATURE_BYTES:])
    return payload.issued_at_ms, payload.expires_at_ms


def test_bounty_goes_to_the_finder_that_the_log_names(settled: Settled) -> None:
    """`stolen-bounty`: the coordinator names its own account, or none, when it executes a slash that was found."""
    world, chain = settled.world, settled.chain
    finder = world.id("eve")
    name = world.convicted("ann")
    settled.propose(name)
    world.wait(DAY_MS)
    chain.warp(world.now_ms // 1000)
    index = settled.scene.write(e.SlashExecuted(submission=name, bounty_to=finder))
    settled.scene.log.anchor()
    entry = settled.scene.log.entry(index)
    for thief in (bytes(world.id("coordinator")), bytes(20)):
        with chain.refuses("NotInLeaf"):
            chain.call(chain.court, "execute", name, thief, entry)
    chain.call(chain.court, "execute", name, finder, entry)
    bounty = SLASH * TERMS.bounty_share // BASIS_POINTS
    with chain.refuses("NothingToClaim"):
        chain.call(chain.court, "claimBounty", world.id("coordinator"))
    assert chain.call(chain.court, "claimBounty", finder, by=world.id("coordinator")) == bounty
    assert chain.call(chain.token, "balanceOf", finder) == bounty


def test_payout_root_that_pays_its_operator_is_caught_by_a_replay_and_void_before_it_matures(settled: Settled) -> None:
    world, chain = settled.world, settled.chain
    world.coordinate(
        e.Deposited(account=world.id("sponsor"), amount_nano=2 * BUDGET, reference=digest("funding"), run=RUN)
    )
    settled.scene.give(world.id("sponsor"), 2 * BUDGET, chain.pool)
    chain.call(chain.pool, "fund", RUN_KEY, 2 * BUDGET, by=world.id("sponsor"))
    world.settled("ann", Outcome.ACCEPT)
    world.publish()
    world.pay_out(0)
    world.wait(DAY_MS)
    settled.anchor()
    ledger = replay(world.ledger.network, settled.scene.log.leaves)
    honest = PayoutTree(list_payable(ledger.state.runs[RUN].paid, 1))
    false = PayoutTree({**honest.cumulative, world.id("coordinator"): 5})
    head_root = ledger.state.frontier.root()

    def post(tree: PayoutTree) -> PostedRoot:
        size = ledger.state.size
        by = world.id("coordinator")
        chain.call(chain.pool, "postRoot", RUN_KEY, 1, size, tree.root, tree.total, by=by)
        return PostedRoot(1, tree.root, tree.total, size, matures_at_s=0)

    posted = post(false)
    assert not check_root(ledger.state, RUN, posted, scale=1).is_right
    for number, validator in enumerate(VALIDATORS[:3]):
        assert chain.call(chain.pool, "poolOf", RUN_KEY)["epoch"] == 1, f"void after {number} votes"
        voter = world.id(validator)
        chain.call(chain.pool, "challenge", RUN_KEY, 1, false.root, head_root, voter, by=voter)
    assert chain.call(chain.pool, "poolOf", RUN_KEY)["epoch"] == 0
    chain.warp(chain.now_s + 3600)
    with chain.refuses("RootVoid"):
        post(false)
    assert check_root(ledger.state, RUN, post(honest), scale=1).is_right
    chain.warp(chain.now_s + 2 * DAY_MS // 1000)
    with chain.refuses("BadProof"):
        chain.call(chain.pool, "claim", RUN_KEY, 1, world.id("coordinator"), 5, false.proof(world.id("coordinator")))
    ann = world.id("ann")
    paid = chain.call(chain.pool, "claim", RUN_KEY, 1, ann, honest.cumulative[ann], honest.proof(ann))
    assert paid == honest.cumulative[ann] > 0
