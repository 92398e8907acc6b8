"""The simulated nodes, which run the real Agent with a fake engine, the owners and the trainer.

A node's disk survives its crashes; its process does not. How adversaries behave is in adversaries.py.

"""

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_lab.simulator.adversaries import NodeBehavior
from prime_lab.simulator.coordinator_host import HONEST, FakeFile
from prime_lab.simulator.world import (
    OUTPUT_MAX,
    PARETO_EXPONENT,
    PROMPT_MAX,
    RUN,
    SAMPLES,
    STAKE,
    World,
    hash_text,
    ignore,
)
from prime_node.agent.agent import Agent
from prime_node.agent.events import (
    Audit,
    AuditDone,
    AuditFailed,
    AuditFinding,
    CancelGeneration,
    CheckTreeHead,
    CosignTreeHead,
    Effect,
    Event,
    FinishedFile,
    Generate,
    Generated,
    HeadCosigned,
    LoadWeights,
    ReplyReceived,
    SavedState,
    SaveState,
    Send,
    SendRefused,
    SendTimedOut,
    SlashReported,
    Started,
    Stop,
    Tick,
    WeightsReady,
)
from prime_node.agent.outbox import NodeProfile
from prime_protocol.constants import LINEAGE_MAX
from prime_protocol.ledger.entries import Outcome, Staked, Submitted, VerdictGiven
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.log.tree_head import SignedNote, TreeHead, derive_witness_key, encode_cosigned_message
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.messages import AuditTask, Cosigned, HeartbeatReply, LeaseRequest
from prime_protocol.wire.signing import WalletKey

TRAINER_POLL_MS = 2_000
"""How often the trainer reads the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHardware:
    """The machine of a node."""

    tokens_per_s: float
    load_ms: float
    audit_ms: float
    skew_ms: int


class SimulatedNode:
    """One node: its machine, its disk, its process, and its habits."""

    def __init__(
        self,
        world: World,
        number: int,
        key: WalletKey,
        profile: NodeProfile,
        machine: NodeHardware,
        behavior: NodeBehavior,
    ) -> None:
        self.world = world
        self.number = number
        self.key = key
        self.profile = profile
        self.machine = machine
        self.behavior = behavior
        self.rng = Random(f"node {world.plan.seed} {number}")
        self.address_group = f"group {number // 8}"
        self.disk = SavedState()
        self.agent: Agent | None = None
        self.is_stopped = False
        self._life = 0
        self._wake_ms = 0
        self._jobs: dict[int, FakeFile] = {}
        self._engine_free_ms = 0
        """Until then this engine, which makes one file after the other, is busy."""
        self._told: set[Digest] = set()
        self._answers: dict[int, Digest] = {}

    @property
    def node(self) -> NodeId:
        return self.key.node

    @property
    def clock_ms(self) -> int:
        return self.world.now_ms + self.machine.skew_ms

    @cached_property
    def _witness_key(self) -> Ed25519PrivateKey:
        return derive_witness_key(self.key)

    # --- Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_stopped or self.agent is not None:
            return
        self._life += 1
        self._wake_ms = 0
        self._jobs = {}
        self._engine_free_ms = 0
        self.agent = Agent(self.key, self.profile, Random(f"agent {self.world.plan.seed} {self.number} {self._life}"))
        self.tell(Started(self.disk))

    def crash(self, down_ms: int) -> None:
        if self.agent is not None:
            self.agent = None
            self.world.forget_sequence(self.node)
            self.world.after(down_ms, self.start)

    def tell(self, event: Event, life: int | None = None) -> None:
        """Deliver an event to the process it was meant for, unless that has crashed since."""
        agent = self.agent
        if agent is None or life not in (None, self._life):
            return
        for effect in agent.handle(event, self.clock_ms):
            self._carry_out(agent, effect)
        wake_ms = agent.wake_ms - self.machine.skew_ms
        if self.agent is agent and not self.world.now_ms < self._wake_ms <= wake_ms:
            self._wake_ms = wake_ms
            self.world.at(wake_ms, self._wake, self._life)

    def _wake(self, life: int) -> None:
        if life != self._life or self.agent is None or self.world.now_ms != self._wake_ms:
            return
        due_ms = self.agent.wake_ms - self.machine.skew_ms
        if due_ms > self.world.now_ms:
            self._wake_ms = due_ms
            self.world.at(due_ms, self._wake, life)
        else:
            self.tell(Tick())

    # --- Effects ----------------------------------------------------------------------------------------------------

    def _carry_out(self, agent: Agent, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case LoadWeights(weights):
                wait_ms = self.machine.load_ms * self.rng.paretovariate(2 * PARETO_EXPONENT)
                self.world.after(wait_ms, self.tell, WeightsReady(weights.step, weights.root), self._life)
            case Generate():
                self._generate(effect)
            case CancelGeneration(lease):
                self._cancel(lease)
            case Audit(task):
                wait_ms = self.machine.audit_ms * self.rng.paretovariate(2 * PARETO_EXPONENT)
                self.world.after(wait_ms, self._audited, task, self._life)
            case SaveState(memory):
                self.disk = memory
            case CheckTreeHead(head):
                self.world.heads[head] = None
                agent.set_head_size(int(head.split(b"\n", 2)[1]))
            case CosignTreeHead(head):
                if self.behavior.is_witness:
                    self.tell(HeadCosigned(self._cosign(head)), self._life)
            case Stop():
                self.agent = None
                self.is_stopped = True

    def _cosign(self, note: bytes) -> Cosigned:
        head, time_s = TreeHead.parse(SignedNote.parse(note).text), self.clock_ms // 1000
        signature = self._witness_key.sign(encode_cosigned_message(head.text, time_s))
        return Cosigned(head_size=head.size, time_s=time_s, signature=signature)

    def _send(self, send: Send) -> None:
        if isinstance(send.message, Submitted):
            self._check_single_answer(send.message)
            is_sent = self.behavior.on_submit(self, send.message)
        else:
            is_sent = not isinstance(send.message, VerdictGiven) or self.behavior.on_reveal(self, send.message)
        if not is_sent:
            self.world.after(1_000, self.tell, SendTimedOut(send.request), self._life)
            return
        is_request = isinstance(send.message, LeaseRequest)
        self.post(self.behavior.make_request(send.message) if is_request else send.message, send.run, send.request)

    def _check_single_answer(self, entry: Submitted) -> None:
        known = self._answers.setdefault(entry.receipt.lease, entry.receipt.file_digest)
        if known != entry.receipt.file_digest:
            self.world.problems.append(f"{self.node} answered lease {entry.receipt.lease} with different bytes")

    def post(self, message: Any, run: Any, request: int = 0, key: WalletKey | None = None) -> None:
        """Seal and send. Request 0 belongs to no one, so its answer is ignored."""
        packet = self.world.seal(key or self.key, message, run, self.clock_ms, self.address_group)
        life = self._life

        def answer(event: Event) -> None:
            self.tell(event, life)
            if isinstance(event, ReplyReceived) and isinstance(event.reply, HeartbeatReply):
                self._read_log()

        self.world.post(self.number, request, packet, answer if request else ignore)

    def _read_log(self) -> None:
        """Whether the public log, which a node follows beside its beats, wants this one slashed."""
        history = self.world.host.history
        for name in history.accused.get(self.node, ()):
            if name not in self._told:
                self._told.add(name)
                proposed = history.submissions[name].proposed[0]
                self.tell(SlashReported(name, proposed.at_ms + history.terms.appeal_ms))

    # --- The engine -------------------------------------------------------------------------------------------------

    def _generate(self, job: Generate) -> None:
        lease = job.lease
        lengths = Random(f"{job.beacon.hex()} {lease.first_slot} {lease.slots}")
        rollouts = lease.slots * SAMPLES
        tokens = sum(lengths.randint(50, OUTPUT_MAX) for _ in range(rollouts))
        self.keep_file(job, tokens)
        duration_ms = (
            self.behavior.time_factor
            * 1000
            * tokens
            / self.machine.tokens_per_s
            * self.rng.paretovariate(3 * PARETO_EXPONENT)
        )
        began_ms = max(self.world.now_ms, self._engine_free_ms)
        self._engine_free_ms = began_ms + int(duration_ms)
        self.world.at(self._engine_free_ms, self._generated, lease.lease, self._life)

    def keep_file(self, job: Generate, tokens: int) -> None:
        """The file that the engine will have made of a lease."""
        lease = job.lease
        honest = FakeFile(
            run=RUN,
            step=lease.step,
            lease=lease.lease,
            node=lease.node,
            checkpoint_root=job.checkpoint_root,
            first_slot=lease.first_slot,
            slots=lease.slots,
            output_tokens=tokens,
            context_tokens=tokens * PROMPT_MAX,
            salt=self.rng.getrandbits(32),  # no engine gives the same bits twice
        )
        self._jobs[lease.lease] = self.behavior.make_file(self, honest)

    def _cancel(self, lease: int) -> None:
        self._jobs.pop(lease, None)

    def _generated(self, lease: int, life: int) -> None:
        file = self._jobs.pop(lease, None) if life == self._life else None
        if file is not None:
            self.tell(Generated(lease, self.describe(file)), life)

    def describe(self, file: FakeFile) -> FinishedFile:
        """What the engine reports of a finished file."""
        return FinishedFile(
            checkpoint_root=file.checkpoint_root,
            file_digest=self.world.files.add(file),
            rollout_root=file.rollout_root,
            file_bytes=file.size_bytes,
            output_tokens=file.output_tokens,
            context_tokens=file.context_tokens,
        )

    def _audited(self, task: AuditTask, life: int) -> None:
        if self.rng.random() < self.world.plan.audit_crash:
            self.tell(AuditFailed(task.submission), life)
            return
        outcome = self.behavior.choose_outcome(self, task, self._audit_honestly(task))
        if outcome is not None:
            evidence = hash_text(f"evidence {self.number} {task.submission}")
            readers = [each.reader for each in task.readers] or [self.node]
            looks = {reader: self.behavior.make_read_proof(self, task.submission, reader) for reader in readers}
            finding = AuditFinding(outcome=outcome, reason="", metrics=(), evidence=evidence, read_proofs=looks)
            self.tell(AuditDone(task.submission, finding), life)

    def _audit_honestly(self, task: AuditTask) -> Outcome:
        """What an honest audit finds."""
        file = self.world.files.get(task.file_digest)
        assert file is not None, "intake has let a file pass that does not exist"
        is_for_task = (file.lease, file.node, file.first_slot, file.slots) == (
            task.lease,
            task.node,
            task.first_slot,
            task.slots,
        )
        return Outcome.ACCEPT if file.forgery == HONEST and is_for_task else Outcome.FRAUDULENT


class SimulatedOwner:
    """An owner's own machine: it puts stake behind its nodes once their delegations are in the log."""

    def __init__(self, world: World, number: int, key: WalletKey, nodes: list[NodeId]) -> None:
        self._world = world
        self._number = number
        self._key = key
        self._nodes = nodes

    def act(self) -> None:
        history = self._world.host.history
        missing = [node for node in self._nodes if node not in history.staked]
        ready = [node for node in missing if history.owners.get(node) == self._key.node]
        if ready:
            entry = Staked(node=ready[0], amount_nano=STAKE)
            packet = self._world.seal(self._key, entry, None, self._world.now_ms)
            self._world.post(self._number, 0, packet, ignore)
        if missing:
            self._world.after(2_000 if len(ready) > 1 else 15_000, self.act)


class SimulatedTrainer:
    """Reads the log, and publishes a checkpoint whenever enough was accepted."""

    def __init__(self, world: World, number: int, key: WalletKey, train_ms: float) -> None:
        self._world = world
        self._number = number
        self._key = key
        self._train_ms = train_ms
        self.published_ms = world.now_ms
        self._batch: tuple[Step, tuple[Digest, ...]] | None = None
        self._is_busy = False

    def act(self) -> None:
        """Once now, and every few seconds from then on."""
        self._world.after(TRAINER_POLL_MS, self.act)
        history = self._world.host.history
        if self._batch is not None and history.latest >= self._batch[0]:
            self._batch = None
            self.published_ms = self._world.now_ms
        if self._is_busy or history.latest >= self._world.plan.steps:
            return
        if self._batch is not None:
            self._publish()
            return
        names = self._choose() if history.latest >= 0 else ()
        if names is not None:
            self._batch = (Step(history.latest + 1), names)
            self._is_busy = True
            self._world.after(self._train_ms, self._publish)

    def _choose(self) -> tuple[Digest, ...] | None:
        """Submissions that are fresh enough, each slot once, or as many as one checkpoint can name; None if too few."""
        history = self._world.host.history
        terms = history.terms
        roots = {line.entry.root: step for step, line in history.checkpoints.items()}
        names: list[Digest] = []
        seen: set[tuple[int, int]] = set()
        for name, logged in history.trainable.items():
            made_with = roots[logged.receipt.checkpoint_root]
            if history.latest - made_with > terms.lag_max or logged.lease is None:
                continue
            slots = {(logged.receipt.step, slot) for slot in logged.lease.slots}
            if seen.isdisjoint(slots):
                seen |= slots
                names.append(name)
            if len(seen) >= self._world.plan.batch * terms.slots_per_step or len(names) == LINEAGE_MAX:
                return tuple(names)
        return None

    def _publish(self) -> None:
        assert self._batch is not None
        step, names = self._batch
        self._is_busy = True
        seed = self._world.plan.seed
        _, entry = make_checkpoint_entries(
            names,
            step=step,
            root=hash_text(f"weights {seed} {step}"),
            manifest=hash_text(f"manifest {seed} {step}"),
        )
        packet = self._world.seal(self._key, entry, RUN, self._world.now_ms)
        self._world.post(self._number, 1, packet, self._answered)

    def _answered(self, event: Event) -> None:
        """The answer does not matter: the log shows at the next read whether the entry is there."""
        self._is_busy = False
        is_lost = isinstance(event, SendRefused) and not event.refusal.field.startswith("Payload.")
        if is_lost and self._world.host.history.latest < (self._batch or (0, ()))[0]:
            self._batch = None  # something in it can no longer be trained on: choose again
