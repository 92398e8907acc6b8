"""From a plan to a report: populate a world, run it, wait until nothing is open, and check the invariants."""

import traceback
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from prime_lab.simulator.adversaries import ATTACK_INTERVAL_MS, NodeBehavior, register_sybils
from prime_lab.simulator.finders import FINDER_BALANCE, make_finders
from prime_lab.simulator.finished_world import FinishedWorld
from prime_lab.simulator.invariants import check_invariants
from prime_lab.simulator.log_history import LogHistory
from prime_lab.simulator.participants import NodeHardware, SimulatedNode, SimulatedOwner, SimulatedTrainer
from prime_lab.simulator.plan import MINUTE_MS, SimulationPlan
from prime_lab.simulator.rare_adversaries import draw_behavior
from prime_lab.simulator.world import BOND, NETWORK, RUN, SETTLE_MS_MAX, STAKE, START_MS, TICK_MS, World, get_wallet
from prime_node.agent.outbox import NodeProfile
from prime_protocol.ledger.entries import Delegated, Outcome, Role, RunStatus
from prime_protocol.log.tree_head import derive_witness_key
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, sign_document

VALIDATORS_EVERY = 4
OWNED_SHARE = 0.2
"""Nodes of an owner with several."""
SPEED_MIN = 30.0
"""Tokens per second of the slowest machine. The median is 245, the fastest of a thousand about 3,000."""
DOWN_MS_MAX = 40_000
"""Longest crash of a node, and longest cut. Two of them, a crash of the coordinator and a beat fit into the time for an
appeal: a node that is away for longer cannot defend itself."""
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """The result of one plan."""

    plan: SimulationPlan
    complaints: tuple[str, ...]
    root: str
    """Of the log: two runs of one plan must agree on it."""
    entries: int
    steps: int
    virtual_s: int
    events: int
    messages: int
    outcomes: dict[str, int]
    adversaries: int
    slashed: int


def simulate(plan: SimulationPlan) -> SimulationReport:
    """Run one world to its end."""
    return simulate_world(plan)[0]


def simulate_world(plan: SimulationPlan) -> tuple[SimulationReport, FinishedWorld]:
    """The same, and the world in its final state."""
    world = World(plan)
    population = Population(world)
    trainer = SimulatedTrainer(world, -1, get_wallet("trainer"), train_ms=8_000)
    world.at(world.now_ms, trainer.act)
    finished = FinishedWorld(world, population.honest())
    try:
        complaints = _run_to_end(finished, population)
    except Exception:  # boundary: whatever breaks in the code under test is a finding about this seed
        world.host.crash()
        complaints = [f"nothing_breaks: {traceback.format_exc()}", *check_invariants(replace(finished, is_over=False))]
    return _make_report(finished, population, complaints), finished


def _run_to_end(finished: FinishedWorld, population: "Population") -> list[str]:
    """From the first entry to the last; what is wrong with it."""
    world = finished.world
    if not _run_training(world):
        workers, latest = population.count_honest_workers(), world.host.history.latest
        lost = f"no checkpoint after {latest} for {world.plan.starve_ms} ms, with {workers} honest workers up"
        world.host.flush(world.now_ms)
        return [f"training_never_starves: {lost}", *check_invariants(replace(finished, is_over=False))]
    world.set_run(RunStatus.PAUSED)
    _run_until_settled(world)
    world.host.flush(world.now_ms)
    return check_invariants(finished)


def _run_training(world: World) -> bool:
    """Until the last step is there; False as soon as one takes too long."""
    history, plan = world.host.history, world.plan
    while history.latest < plan.steps:
        before = len(history.checkpoints)
        if not world.run_until(world.now_ms + plan.starve_ms, partial(_has_new_checkpoint, history, before)):
            return False
    # The pause that follows needs the coordinator.
    return world.run_until(world.now_ms + SETTLE_MS_MAX, lambda: world.host.is_up)


def _has_new_checkpoint(history: LogHistory, checkpoints: int) -> bool:
    return len(history.checkpoints) > checkpoints


def _run_until_settled(world: World) -> None:
    """Run until nothing is open, or until the time limit for open matters."""
    history, host = world.host.history, world.host

    def is_quiet() -> bool:
        if history.open_leases or history.unsettled or history.open_slashes or history.open_findings or not host.is_up:
            return False
        return all(history.paid[step] for step in history.checkpoints if step < history.latest)

    if world.run_until(world.now_ms + SETTLE_MS_MAX, is_quiet):
        end_ms = world.now_ms + 3 * TICK_MS
        world.run_until(end_ms, lambda: world.now_ms > end_ms)


def _make_report(finished: FinishedWorld, population: "Population", complaints: list[str]) -> SimulationReport:
    world, history = finished.world, finished.history
    submissions = history.submissions.values()
    return SimulationReport(
        plan=world.plan,
        complaints=tuple(complaints),
        root=str(world.host.root()),
        entries=history.size,
        steps=history.latest,
        virtual_s=(world.now_ms - START_MS) // 1000,
        events=world.events,
        messages=world.network.sent,
        outcomes={outcome.value: sum(logged.outcome is outcome for logged in submissions) for outcome in Outcome},
        adversaries=population.count_adversaries(),
        slashed=sum(bool(logged.executed) for logged in submissions),
    )


class Population:
    """The nodes of a world and their faults, drawn from the seed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"crowd {world.plan.seed}")
        self.parties: list[SimulatedNode] = []
        self._adversaries = self._draw_adversaries()
        world.inspectors = self._draw_inspectors()
        accounts: dict[NodeId, int] = {}
        owners: list[SimulatedOwner] = []
        numbers = list(range(world.plan.nodes))
        while numbers:
            size = self._rng.randint(2, 4) if self._rng.random() < OWNED_SHARE / 2 else 1
            group, numbers = numbers[:size], numbers[size:]
            owner = get_wallet(f"owner {group[0]}") if size > 1 else None
            keys = [self._join(number, owner) for number in group]
            account = owner.node if owner else keys[0]
            accounts[account] = len(keys) * (STAKE + 3 * BOND)
            for party in self.parties[-len(keys) :] if owner else ():
                if party.behavior.own_nano:
                    accounts[party.node] = party.behavior.own_nano
            if owner:
                owners.append(SimulatedOwner(world, group[0], owner, keys))
        finders = make_finders(world)
        world.create_network(accounts | {finder.key.node: FINDER_BALANCE for finder in finders})
        for finder in finders:
            world.at(world.now_ms, finder.act)
        for owner_party in owners:
            world.after(self._rng.uniform(5_000, 15_000), owner_party.act)
        self._schedule()

    def honest(self) -> frozenset[NodeId]:
        return frozenset(party.node for party in self.parties if party.behavior.is_honest)

    def count_adversaries(self) -> int:
        return sum(not party.behavior.is_honest for party in self.parties)

    def count_honest_workers(self) -> int:
        return sum(
            party.behavior.is_honest and party.agent is not None and Role.WORKER in party.profile.roles
            for party in self.parties
        )

    def _draw_adversaries(self) -> frozenset[int]:
        """The planned share of workers, and of validators."""
        chosen: list[int] = []
        for role in (Role.WORKER, Role.VALIDATOR):
            able = [number for number in range(self._world.plan.nodes) if get_role(number) is role]
            chosen += self._rng.sample(able, round(self._world.plan.malicious * len(able)))
        return frozenset(chosen)

    def _draw_inspectors(self) -> tuple[NodeId, ...]:
        plan = self._world.plan
        able = [n for n in range(plan.nodes) if n not in self._adversaries and get_role(n) is Role.VALIDATOR]
        chosen = Random(f"inspectors {plan.seed}").sample(able, min(plan.inspectors, len(able)))
        return tuple(get_wallet(f"node {number}").node for number in sorted(chosen))

    def _join(self, number: int, owner: WalletKey | None) -> NodeId:
        plan, rng, key = self._world.plan, self._rng, get_wallet(f"node {number}")
        role = get_role(number)
        behavior = draw_behavior(role, plan.adversaries, rng) if number in self._adversaries else NodeBehavior()
        speed = min(4_000.0, max(SPEED_MIN, rng.lognormvariate(5.5, 0.8)))
        profile = NodeProfile(
            network=NETWORK,
            run=RUN,
            roles=(role,),
            delegation=_make_delegation(owner, key.node) if owner else None,
            stake_nano=0 if owner else STAKE,
            tokens_per_s=int(speed),
            audits_at_once=2,
            witness_key=derive_witness_key(key).public_key().public_bytes_raw(),
        )
        machine = NodeHardware(
            tokens_per_s=speed,
            load_ms=rng.uniform(1_000, 8_000),
            audit_ms=rng.uniform(500, 3_000),
            skew_ms=rng.randint(-plan.skew_ms, plan.skew_ms),
        )
        self.parties.append(SimulatedNode(self._world, number, key, profile, machine, behavior))
        return key.node

    def _schedule(self) -> None:
        """When each node starts, and which faults it has. Faults happen in the first ten minutes."""
        world, rng, plan = self._world, self._rng, self._world.plan
        span_ms = 8 * MINUTE_MS
        for party in self.parties:
            is_late = rng.random() < 0.1
            world.after(rng.uniform(0, 3 * MINUTE_MS if is_late else 5_000), party.start)
            if type(party.behavior).attack is not NodeBehavior.attack:
                world.after(rng.uniform(20_000, 60_000), self._attack, party)
        for _ in range(plan.host_crashes):
            crash = rng.choice([world.crash_host, world.crash_host_writing])
            world.after(rng.uniform(0, span_ms), crash, rng.randint(100, 30_000))
        for _ in range(plan.node_crashes):
            party = rng.choice(self.parties)
            world.after(rng.uniform(0, span_ms), party.crash, rng.randint(1_000, DOWN_MS_MAX))
        for _ in range(plan.partitions):
            world.after(rng.uniform(0, span_ms), self._cut_off, rng.uniform(0.1, 0.6), rng.randint(1_000, DOWN_MS_MAX))
        if plan.flood:
            world.after(30_000, register_sybils, self.parties[-1], plan.flood)

    def _attack(self, party: SimulatedNode) -> None:
        if party.agent is not None:
            party.behavior.attack(party)
        self._world.after(ATTACK_INTERVAL_MS, self._attack, party)

    def _cut_off(self, share: float, duration_ms: int) -> None:
        for party in self.parties:
            if self._rng.random() < share:
                self._world.network.cut_off(party.number, self._world.now_ms + duration_ms)


def get_role(number: int) -> Role:
    """Every fourth node validates, so that a quorum and its appeal can be drawn in small worlds too."""
    return Role.VALIDATOR if number % VALIDATORS_EVERY == 0 else Role.WORKER


def _make_delegation(owner: WalletKey, node: NodeId) -> Delegated:
    word = Delegation(
        network=NETWORK, owner=owner.node, node=node, issued_at_ms=START_MS, expires_at_ms=START_MS + YEAR_MS
    )
    return Delegated(delegation=word, signature=sign_document(owner, word, EMBEDDED_DOMAIN))
