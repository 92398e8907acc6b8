"""A coordinator's core with everybody around it: each sends signed entries, time moves only when told.

What the core writes is drained as the server would, so `restart` finds on disk exactly what was decided.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prime_coordinator.core import Core
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.randomness_chain import sign_round
from prime_protocol.ledger.replay import replay
from prime_protocol.ledger.state import LedgerState, RunState, SubmissionState
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import (
    Cosigned,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
)
from prime_protocol.wire.typed_data import compute_receipt_id
from support.ledger_network import BOND, CHAIN, CHAIN_SECRET, NETWORK, RUN, STAKE, World, digest

SECOND_MS = 1_000
Opinion = Callable[[str, Digest], Outcome | None]
"""What a validator says about a submission; None: nothing."""


def everybody_accepts(validator: str, name: Digest) -> Outcome:
    return Outcome.ACCEPT


class Scene:
    """One core, and the world that talks to it."""

    def __init__(self, world: World, inspect_share: int = 0) -> None:
        self.world = world
        self.is_source_down = False
        """No round of the randomness chain comes out."""
        self.silent_witnesses: frozenset[str] = frozenset()
        """Validators that cosign no head."""
        self.inspect_share = inspect_share
        self.core = self._make()

    @classmethod
    def started(cls, inspect_share: int = 0, **changes: Any) -> "Scene":
        return cls(World.started(**changes), inspect_share)

    def _make(self) -> Core:
        key = self.world.key("coordinator")
        return Core(key, self.world.ledger, now_ms=self.world.now_ms, inspect_share=self.inspect_share)

    def drain(self) -> None:
        self.world.leaves += self.core.entry_writer.drain()

    def restart(self) -> None:
        """A new core from what is on disk."""
        self.drain()
        self.world.ledger = replay(NETWORK, self.world.leaves, coordinator=self.world.id("coordinator"))
        self.core = self._make()

    # --- Reading ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LedgerState:
        return self.world.state

    @property
    def run(self) -> RunState:
        return self.world.run

    def submission(self, name: Digest) -> SubmissionState:
        return self.run.submissions[name]

    def written(self, kind: type) -> list[Any]:
        """Every entry of that type in the log."""
        self.drain()
        letters = (
            open_envelope(decode(e.LogRecord, leaf).frame, network=NETWORK).payload for leaf in self.world.leaves
        )
        return [decode(kind, letter.body) for letter in letters if letter.kind == kind.__name__]

    # --- Acting -----------------------------------------------------------------------------------------------------

    def tick(self, wait_ms: int = 0) -> None:
        self.world.wait(wait_ms)
        self.core.tick(self.world.now_ms)
        self.record_rounds()

    def record_rounds(self) -> None:
        """The rounds that are waited for come out at once, cosigned by every validator that is asked."""
        while self.state.pending_rounds and not self.is_source_down:
            number, pending = next(iter(self.state.pending_rounds.items()))
            # The chain's round of the next whole second is told early, so that no test has to wait for it.
            now_ms = max(self.world.now_ms, CHAIN.round_time_ms(number))
            asked = {node for each in pending.witnesses.values() for node in each}
            for node in sorted(asked - {self.world.id(name) for name in self.silent_witnesses}):
                made = self.world.cosign(self.world.names[node])
                self.core.witnesses.record(
                    node, Cosigned(head_size=pending.head_size, time_s=made.time_s, signature=made.signature)
                )
            self.world.now_ms = now_ms
            self.core.record_round(number, sign_round(CHAIN_SECRET, number), now_ms)
            self.core.tick(now_ms)

    def send(self, name: str, entry: Any, group: str = "192.0.2") -> EntryReply:
        world = self.world
        world.sequences[name] = max(world.sequences[name], self.state.sequences.get(world.id(name), 0))
        frame = decode(e.LogRecord, world.seal(name, entry)).frame
        letter = open_envelope(frame, network=NETWORK).payload
        return self.core.append_entry(letter, entry, frame, address_group=group, now_ms=world.now_ms)

    def order(self, entry: Any, run: Any = RUN) -> None:
        self.core.append_operator_entry(entry, run, self.world.now_ms)

    @contextmanager
    def within(self, run: RunId) -> Iterator[None]:
        """Everything inside is about this run."""
        before, self.world.run_name = self.world.run_name, run
        try:
            yield
        finally:
            self.world.run_name = before

    def beat(self, name: str, activity: NodeActivity = NodeActivity.IDLE, updates_seen: int = 0) -> HeartbeatReply:
        step = max(-1, self.run.latest)
        beat = Heartbeat(activity=activity, checkpoint_step=step, head_size=0, updates_seen=updates_seen)
        return self.core.handle_heartbeat(self.world.id(name), self.world.run_name, beat, self.world.now_ms)

    def ask(
        self, name: str, tokens_per_s: int = 100, checkpoint_step: int | None = None, rows_at_once: int = 0
    ) -> LeaseReply:
        step = max(0, self.run.latest) if checkpoint_step is None else checkpoint_step
        request = LeaseRequest(checkpoint_step=step, tokens_per_s=tokens_per_s, rows_at_once=rows_at_once)
        return self.core.request_lease(self.world.id(name), self.world.run_name, request, self.world.now_ms)

    def lease(self, name: str, **request: Any) -> e.LeaseGranted:
        reply = self.ask(name, **request)
        assert reply.lease is not None, reply.reason
        return reply.lease

    def submit(self, lease: e.LeaseGranted, tokens: int = 0) -> Digest:
        entry = self.world.answer(lease.lease, tokens)
        self.send(self.world.names[lease.node], entry)
        return compute_receipt_id(entry.receipt)

    def work(self, name: str, took_ms: int = SECOND_MS, tokens: int = 0) -> Digest:
        """A lease and its answer."""
        lease = self.lease(name)
        self.world.wait(took_ms)
        return self.submit(lease, tokens)

    def publish(self, *trained_on: Digest) -> None:
        step = Step(self.run.latest + 1)
        root, manifest = digest(f"weights {step}"), digest(f"manifest {step}")
        entry = make_checkpoint_entries(trained_on, step=step, root=root, manifest=manifest)[1]
        self.send("trainer", entry)
        self.tick(SECOND_MS)

    def join(self, name: str, *roles: Role) -> None:
        """Register, get a balance and stake it."""
        self.send(name, self.world.registration(name, *roles))
        reference = digest(f"deposit {self.state.size}")
        self.order(e.Deposited(account=self.node(name), amount_nano=STAKE + BOND, reference=reference), None)
        self.send(name, e.Staked(node=self.node(name), amount_nano=STAKE))

    def drawn(self, name: Digest, number: int = -1) -> list[str]:
        """Who is asked in that round; in the last one if none is named."""
        rounds = self.submission(name).rounds
        return [self.world.names[node] for node in rounds[number].validators] if rounds else []

    def say(self, validator: str, name: Digest, outcome: Outcome) -> None:
        self.give(self.world.opinion(validator, name, outcome))

    def give(self, *verdicts: e.VerdictGiven) -> None:
        """Verdicts of one round, all committed first."""
        for validator, entry in self.world.commitments(*verdicts):
            self.send(validator, entry)
        for verdict in verdicts:
            self.send(self.world.names[verdict.receipt.validator], verdict)

    def judge(self, name: Digest, opinion: Opinion | None = None) -> None:
        """Draw, let everybody who was drawn speak, and act on it; round after round where everybody accepts."""
        self._hold_round(name, opinion or everybody_accepts)
        while opinion is None and (self.submission(name).outcome is None or name in self.run.slashes):
            self._hold_round(name, everybody_accepts)

    def _hold_round(self, name: Digest, opinion: Opinion) -> None:
        self.tick(2 * SECOND_MS)
        found = {validator: opinion(validator, name) for validator in self.drawn(name)}
        self.give(*[self.world.opinion(each, name, outcome) for each, outcome in found.items() if outcome is not None])
        self.tick(SECOND_MS)

    def told(self, name: str) -> list[Digest]:
        """The audits that a validator's heartbeat names."""
        return [task.submission for task in self.beat(name).audits]

    def measure(self, name: str, tokens_per_s: int) -> None:
        """Make a node's speed known, without a lease."""
        self.core.leases.throughput.record(self.world.id(name), tokens=tokens_per_s, leased_ms=0, now_ms=1000)

    def node(self, name: str) -> NodeId:
        return self.world.id(name)
