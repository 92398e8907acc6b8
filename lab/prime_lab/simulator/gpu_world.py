"""A network of GPU nodes with long completions: the real coordinator core and agents, engines of gpu_engine.py.

It measures which share of the tokens that full KV caches allow reaches the log in time, and how many leases are lost.
Lengths are log-normal. Weights arrive seconds after they are published. Proofs, uploads and self-checks are left out:
they are no steps of the engine.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from prime_lab.simulator.adversaries import NodeBehavior
from prime_lab.simulator.gpu_engine import GpuEngine, GpuModel, measure_full_engine
from prime_lab.simulator.participants import NodeHardware, SimulatedNode, SimulatedTrainer
from prime_lab.simulator.plan import MINUTE_MS, SimulationPlan
from prime_lab.simulator.rare_adversaries import CapacityLiar
from prime_lab.simulator.world import BOND, NETWORK, RUN, STAKE, START_MS, World, get_wallet, make_terms
from prime_node.agent.events import EngineReported, Generate, GenerationProgressed
from prime_node.agent.outbox import NodeProfile
from prime_node.planning.cards import get_card
from prime_node.planning.sizes import open_model
from prime_protocol.ledger.entries import LeaseEnded, Outcome, Role
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.log.tree_head import derive_witness_key

REPORT_MS = 2_000
"""Between two reports of an engine at work. The real one reports five times a second."""
LOAD_MS = 5_000
"""From the news of a checkpoint to its files on the disk; the engine swaps weights later."""
AUDIT_MS = 10_000
"""In which a validator reads a file: 100 rows of 2k tokens through a model of 1.5B on an RTX 4090."""
SIGMA = 1.0
"""Of the logarithm of a length: one row of 200 has eight times the mean."""
SAMPLES = 16
PROMPT_TOKENS = 300
PROMPT_TOKENS_MAX = 512
OUTPUT_TOKENS_MAX = 16_384


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """One such network."""

    seed: int
    model: str
    cards: tuple[str, ...]
    """The card of each worker."""
    mean_tokens: int
    minutes: int
    """That are measured, after `warm_minutes`."""
    warm_minutes: int
    slots_per_step: int
    batch: float
    """Part of a step's slots that the trainer waits for."""
    train_ms: int = 60_000
    validators: int = 8
    late_starts: tuple[int, ...] = ()
    """Minutes after which the last workers join."""
    hoarders: int = 0
    """Further workers that take leases and never answer."""
    sequences_max: int = 256

    def draw_length(self, rng: Random) -> int:
        mu = math.log(self.mean_tokens) - SIGMA**2 / 2
        return max(1, min(OUTPUT_TOKENS_MAX, int(rng.lognormvariate(mu, SIGMA))))

    def get_gpu(self, card: str) -> GpuModel:
        found = GpuModel.of(
            open_model(self.model), get_card(card), sequence_tokens=PROMPT_TOKENS_MAX + OUTPUT_TOKENS_MAX
        )
        return replace(found, sequences_max=self.sequences_max)


class GpuNode(SimulatedNode):
    """A worker whose engine generates the rows of all its leases together."""

    def __init__(
        self,
        world: World,
        number: int,
        profile: NodeProfile,
        behavior: NodeBehavior,
        *,
        plan: GpuPlan,
        card: str,
    ) -> None:
        machine = NodeHardware(tokens_per_s=1.0, load_ms=LOAD_MS, audit_ms=0.0, skew_ms=0)
        super().__init__(world, number, get_wallet(f"node {number}"), profile, machine, behavior)
        self._plan = plan
        self.gpu = plan.get_gpu(card)
        self.engine = GpuEngine(self.gpu)
        self._reported: dict[int, int] = {}
        self._rounds = 0
        self._began_ms = 0

    def start(self) -> None:
        self.engine, self._reported = GpuEngine(self.gpu), {}
        self._began_ms = self.world.now_ms
        self._rounds += 1
        super().start()
        self.world.after(REPORT_MS, self._report, self._rounds)

    def _generate(self, job: Generate) -> None:
        lease = job.lease
        rows = [
            (PROMPT_TOKENS, self._plan.draw_length(rng))
            for slot in range(lease.first_slot, lease.first_slot + lease.slots)
            for rng in [Random(f"{job.beacon.hex()} {slot}")]
            for _ in range(SAMPLES)
        ]
        self.keep_file(job, sum(length for _, length in rows))
        self.engine.add(lease.lease, job.checkpoint_root, rows)

    def _cancel(self, lease: int) -> None:
        super()._cancel(lease)
        self.engine.cancel(lease)

    def _report(self, number: int) -> None:
        if number == self._rounds and self.agent is not None:
            self.report()
            self.world.after(REPORT_MS, self._report, number)

    def report(self) -> None:
        """What the engine did since the last report: progress, finished leases, and how full it is."""
        engine, life = self.engine, self._life
        # The engine may be ahead: it always ends a step that it has begun, and a swap of weights.
        for lease in engine.advance((self.world.now_ms - self._began_ms) / 1000):
            self._reported.pop(lease, None)
            self._generated(lease, life)
        for lease, job in list(engine.jobs.items()):
            if engine.is_begun(lease) and self._reported.get(lease) != job.done:
                self._reported[lease] = job.done
                self.tell(GenerationProgressed(lease, job.done, len(job.rows)), life)
        if engine.jobs:
            gpu = self.gpu
            self.tell(EngineReported(engine.running, engine.waiting, gpu.sequences_max, gpu.kv_tokens), life)


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """What one network did while it was measured."""

    utilisation: float
    """Output tokens of leases that were not lost, over those that full caches allow."""
    lost: float
    """Share of the leases, granted and ended in that time, that brought no submission."""
    tokens_per_s: float
    possible_tokens_per_s: float
    leases: int
    rows_per_lease: float
    open_leases: float
    """Of a worker, in the mean over the submissions."""
    steps: int
    by_worker: tuple[float, ...]
    """Utilisation of each."""
    possible: tuple[float, ...]
    """Tokens per second of each with a full cache."""
    hoarded: float
    """Share of the leases granted in that time that went to hoarders."""


class GpuWorld:
    """Workers, validators and a trainer, from one plan."""

    def __init__(self, plan: GpuPlan) -> None:
        self.plan = plan
        simulation = SimulationPlan(
            seed=plan.seed, nodes=len(plan.cards) + plan.validators, steps=10**6, malicious=0.0, batch=plan.batch
        )
        self.world = World(simulation, make_gpu_terms(plan, simulation))
        self.workers = [self._make_worker(number, card) for number, card in enumerate(plan.cards)]
        self.hoarders = [
            self._make_worker(len(plan.cards) + number, plan.cards[0], CapacityLiar())
            for number in range(plan.hoarders)
        ]
        first = len(plan.cards) + plan.hoarders
        self.validators = [self._make_validator(first + number) for number in range(plan.validators)]
        parties: list[SimulatedNode] = [*self.workers, *self.hoarders, *self.validators]
        self.world.create_network({party.node: STAKE + 3 * BOND for party in parties})
        late = {worker.number: minutes for worker, minutes in zip(self.workers[::-1], plan.late_starts, strict=False)}
        for party in parties:
            self.world.after(100 * party.number + late.get(party.number, 0) * MINUTE_MS, party.start)
        trainer = SimulatedTrainer(self.world, -1, get_wallet("trainer"), train_ms=plan.train_ms)
        self.world.at(self.world.now_ms, trainer.act)

    def _make_profile(self, number: int, role: Role) -> NodeProfile:
        key = get_wallet(f"node {number}")
        return NodeProfile(
            network=NETWORK,
            run=RUN,
            roles=(role,),
            stake_nano=STAKE,
            audits_at_once=2,
            witness_key=derive_witness_key(key).public_key().public_bytes_raw(),
        )

    def _make_worker(self, number: int, card: str, behavior: NodeBehavior | None = None) -> GpuNode:
        profile = self._make_profile(number, Role.WORKER)
        return GpuNode(self.world, number, profile, behavior or NodeBehavior(), plan=self.plan, card=card)

    def _make_validator(self, number: int) -> SimulatedNode:
        key = get_wallet(f"node {number}")
        machine = NodeHardware(tokens_per_s=1.0, load_ms=LOAD_MS, audit_ms=AUDIT_MS, skew_ms=0)
        return SimulatedNode(
            self.world, number, key, self._make_profile(number, Role.VALIDATOR), machine, NodeBehavior()
        )

    def run(self) -> GpuReport:
        begin_ms = START_MS + self.plan.warm_minutes * MINUTE_MS
        end_ms = begin_ms + self.plan.minutes * MINUTE_MS
        self.world.run_until(begin_ms, lambda: False)
        before = self.count_tokens()
        self.world.run_until(end_ms, lambda: False)
        self.world.host.flush(self.world.now_ms)
        if self.world.problems:
            raise AssertionError(self.world.problems[0])
        tokens = [now - then for now, then in zip(self.count_tokens(), before, strict=True)]
        return self._make_report(begin_ms, end_ms, tokens)

    def count_tokens(self) -> list[int]:
        """What each worker's engine has generated until now, without cancelled leases."""
        for worker in self.workers:
            worker.report()
        return [worker.engine.tokens for worker in self.workers]

    @cached_property
    def possible(self) -> list[float]:
        """Tokens per second of each worker with a full cache."""
        rng = Random(f"lengths {self.plan.seed}")
        lengths = [(PROMPT_TOKENS, self.plan.draw_length(rng)) for _ in range(20_000)]
        found = {
            gpu: measure_full_engine(gpu, lengths, warm_s=3_000, until_s=20_000)
            for gpu in {worker.gpu for worker in self.workers}
        }
        return [found[worker.gpu] for worker in self.workers]

    def _make_report(self, begin_ms: int, end_ms: int, tokens: list[int]) -> GpuReport:
        history, seconds = self.world.host.history, (end_ms - begin_ms) / 1000
        honest = {worker.node for worker in self.workers}
        for name, logged in history.submissions.items():
            if logged.receipt.node in honest and logged.outcome not in (None, Outcome.ACCEPT):
                raise AssertionError(f"{name} is honest work and was {logged.outcome}")
        granted = [lease for lease in history.leases.values() if lease.granted.at_ms >= begin_ms]
        ended = [
            lease
            for lease in history.leases.values()
            if lease.ends and lease.ends[0].at_ms >= begin_ms and lease.granted.entry.node in honest
        ]
        lost = sum(isinstance(lease.ends[0].entry, LeaseEnded) for lease in ended)
        lives_ms = sum(lease.ends[0].at_ms - lease.granted.at_ms for lease in ended)
        shares = [made / seconds / most for made, most in zip(tokens, self.possible, strict=True)]
        return GpuReport(
            utilisation=sum(tokens) / seconds / sum(self.possible),
            lost=lost / max(1, len(ended)),
            tokens_per_s=sum(tokens) / seconds,
            possible_tokens_per_s=sum(self.possible),
            leases=len(ended),
            rows_per_lease=SAMPLES * sum(len(lease.slots) for lease in ended) / max(1, len(ended)),
            open_leases=lives_ms / 1000 / seconds / len(honest),
            steps=sum(line.at_ms >= begin_ms for line in history.checkpoints.values()),
            by_worker=tuple(shares),
            possible=tuple(self.possible),
            hoarded=sum(lease.granted.entry.node not in honest for lease in granted) / max(1, len(granted)),
        )


def make_gpu_terms(plan: GpuPlan, simulation: SimulationPlan) -> RunTerms:
    """Long completions of many samples, and time to read them."""
    return replace(
        make_terms(simulation),
        slots_per_step=plan.slots_per_step,
        samples_per_slot=SAMPLES,
        vocabulary=152_000,
        prompt_tokens_max=PROMPT_TOKENS_MAX,
        output_tokens_max=OUTPUT_TOKENS_MAX,
        verdict_ms=10 * MINUTE_MS,
        judgement_ms=20 * MINUTE_MS,
        long_stop_ms=60 * MINUTE_MS,
        units_per_token=10**6,
    )


def simulate_gpus(plan: GpuPlan) -> GpuReport:
    return GpuWorld(plan).run()
