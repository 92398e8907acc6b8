"""The virtual clock and everything that it drives: one heap of events, one seed, no other source of randomness.

A world is made from a plan, creates a network, lets its participants act until the steps are trained, and then waits
until nothing is open. It does not know whether what happened was right; see invariants.py.

"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from random import Random
from typing import Any

from prime_lab.simulator.coordinator_host import CoordinatorHost, FakeFileStore, PendingCall, SimulatedPacket
from prime_lab.simulator.plan import MINUTE_MS, SimulationPlan
from prime_node.agent.events import Event, ReplyReceived, SendTimedOut
from prime_protocol.constants import DRAW_MARGIN_MS, ENVELOPE_LIFE_MS_MAX, PROTOCOL_VERSION
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import RunStatus
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import Payload, open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.messages import HEARTBEAT, LEASE, EntryReply, Heartbeat, LeaseRequest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.keys import SequenceCounter

DELAY_MS = 15
DELAY_MS_MAX = 60_000
PARETO_EXPONENT = 1.6
"""Exponent of the Pareto tail: most messages take tens of milliseconds, one in a thousand takes a second or more."""


class LossyNetwork:
    """Decides the fate of each message. Two messages of one sender overtake each other as their delays fall."""

    def __init__(self, rng: Random, *, loss: float, duplicate: float) -> None:
        self._rng = rng
        self._loss = loss
        self._duplicate = duplicate
        self._cut_until_ms: dict[int, int] = {}
        self.sent = 0

    def cut_off(self, party: int, until_ms: int) -> None:
        """Nothing gets to or from this party until then."""
        self._cut_until_ms[party] = max(until_ms, self._cut_until_ms.get(party, 0))

    def deliver(self, party: int, now_ms: int) -> list[int]:
        """When the copies of one message between this party and the coordinator arrive; empty if it is lost."""
        self.sent += 1
        if now_ms < self._cut_until_ms.get(party, 0) or self._rng.random() < self._loss:
            return []
        arrivals = [now_ms + self._delay_ms()]
        if self._rng.random() < self._duplicate:
            arrivals.append(now_ms + self._delay_ms())
        return arrivals

    def _delay_ms(self) -> int:
        return min(DELAY_MS_MAX, int(DELAY_MS * self._rng.paretovariate(PARETO_EXPONENT)))


NETWORK, RUN = NetworkId("simnet"), RunId("run-1")
START_MS = 1_800_000_000_000
COIN_NANO = 10**9
STAKE, SLASH, BOND, BUDGET = 100 * COIN_NANO, 40 * COIN_NANO, 5 * COIN_NANO, 12 * COIN_NANO
PENALTY = 10 * COIN_NANO
SAMPLES, OUTPUT_MAX, PROMPT_MAX = 2, 1000, 100
TIMEOUT_MS = 10_000
"""After this a caller gives up on an answer."""

TICK_MS = 1_000
WRITE_MS = 3
"""A commit to disk, most of the time."""

ENVELOPE_MS = 60_000
SETTLE_MS_MAX = 40 * MINUTE_MS
"""Longest wait at the end until all is settled: some rounds of verdicts, an appeal and its rounds."""


@cache
def get_wallet(name: str) -> WalletKey:
    """A key by name, the same in every world: making one takes as long as ten messages."""
    return WalletKey.from_secret(sha256(f"simulator {name}".encode()).digest())


def hash_text(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def make_terms(plan: SimulationPlan) -> RunTerms:
    return RunTerms(
        trainer=get_wallet("trainer").node,
        model="none",
        task_set="arithmetic",
        slots_per_step=4 * plan.nodes,
        samples_per_slot=SAMPLES,
        vocabulary=64,
        prompt_tokens_max=PROMPT_MAX,
        output_tokens_max=OUTPUT_MAX,
        temperature=1.0,
        lag_max=2,
        version_min=1,
        quorum=plan.quorum,
        audit_probation=2,
        audit_floor=500,
        verdict_ms=MINUTE_MS,
        appeal_ms=3 * MINUTE_MS,
        judgement_ms=5 * MINUTE_MS,
        long_stop_ms=15 * MINUTE_MS,
        stake_min_nano=SLASH,
        slash_nano=SLASH,
        validator_slash_nano=PENALTY,
        appeal_bond_nano=BOND,
        slash_to=SlashDestination.BURN,
        step_budget_nano=BUDGET,
        audit_share=2500,
        units_per_token=10**9,
        units_per_context_token=0,
        vesting_ms=2 * MINUTE_MS,
    )


@dataclass(frozen=True, slots=True)
class AdversaryAttempt:
    """Something that an adversary sent beyond its own honest work, and what it was told."""

    node: NodeId
    submission: Digest
    """Which it is about."""
    at_ms: int
    field: str | None
    """What refused it; empty where it was taken, None where no answer came."""


class World:
    """One simulated network."""

    def __init__(self, plan: SimulationPlan, terms: RunTerms | None = None) -> None:
        """`terms`: of the run; None: those of short completions on slow machines."""
        self.plan = plan
        self.terms = terms or make_terms(plan)
        self.now_ms = START_MS
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self.events = 0
        self.files = FakeFileStore()
        self.host = CoordinatorHost(
            get_wallet("coordinator"),
            NETWORK,
            RUN,
            self.files,
            Random(f"host {plan.seed}"),
            opens_all=plan.every_signature,
            inspect_share=plan.inspect_share,
        )
        self.inspectors: tuple[NodeId, ...] = ()
        """The inspectors that the run's terms name; set before the run is created."""
        self.network = LossyNetwork(Random(f"network {plan.seed}"), loss=plan.loss, duplicate=plan.duplicate)
        self._doom_ms: int | None = None
        self._disk_rng = Random(f"disk {plan.seed}")
        self._sequences: dict[NodeId, SequenceCounter] = {}
        self.heads: dict[bytes, None] = {}
        """Every signed tree head that a participant received."""
        self.acknowledged: list[tuple[int, tuple[NodeId, bytes]]] = []
        """Every entry whose author was told that it is in the log: the place it was told, author and body."""
        self.problems: list[str] = []
        """What parties saw that must not be."""
        self.attempts: list[AdversaryAttempt] = []
        self.leak_handlers: dict[Digest, Callable[[Any], None]] = {}
        """By submission: an adversary that others can tell about it, without the coordinator."""

    # --- Time -------------------------------------------------------------------------------------------------------

    def at(self, when_ms: int, action: Callable[..., None], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._pushed, action, args))

    def after(self, wait_ms: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ms + int(wait_ms), action, *args)

    def run_until(self, end_ms: int, is_done: Callable[[], bool]) -> bool:
        """Let things happen until it is done; False if the time runs out first."""
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, action, args = heapq.heappop(self._heap)
            self.events += 1
            action(*args)
            if is_done():
                return True
        return False

    # --- Founding ---------------------------------------------------------------------------------------------------

    def create_network(self, accounts: dict[NodeId, int]) -> None:
        """The coordinator's first entries: the network, the run, its pool, and what settlement has paid in."""
        host = self.host
        host.boot(self.now_ms)
        assert host.core is not None
        scribe = host.core.entry_writer
        zeros, week_ms = NodeId(bytes(20)), 7 * 24 * 60 * MINUTE_MS
        log_key = str(host.verifier)
        founding = e.NetworkCreated(
            log_key=log_key,
            chain_id=0,
            contract=zeros,
            unbonding_ms=week_ms,
            randomness=host.chain,
            draw_margin_ms=DRAW_MARGIN_MS,
        )
        scribe.append_own(founding, None, self.now_ms)
        terms = replace(self.terms, inspectors=self.inspectors)
        scribe.append_own(e.RunCreated(terms=terms), RUN, self.now_ms)
        sponsor = get_wallet("sponsor")
        for account, amount_nano in {sponsor.node: 1000 * COIN_NANO, **accounts}.items():
            reference = hash_text(f"deposit {account}")
            entry = e.Deposited(account=account, amount_nano=amount_nano, reference=reference)
            host.core.append_operator_entry(entry, None, self.now_ms)
        packet = self.seal(sponsor, e.RunFunded(amount_nano=1000 * COIN_NANO), RUN, self.now_ms)
        assert packet.frame is not None
        host.core.append_entry(
            open_envelope(packet.frame, network=NETWORK).payload,
            packet.message,
            packet.frame,
            address_group="",
            now_ms=self.now_ms,
        )
        host.collect()
        host.begin_write()
        host.end_write(self.now_ms)
        self.at(self.now_ms, self._tick)

    def append_operator_entry(self, entry: Any, run: RunId | None) -> None:
        """What an operator asks of the coordinator; nothing while it is down."""
        if self.host.core is not None:
            self.host.core.append_operator_entry(entry, run, self.now_ms)
            self.host.collect()
            self._write()

    def set_run(self, status: RunStatus) -> None:
        self.append_operator_entry(e.RunStatusSet(status=status, reason=""), RUN)

    # --- Messages ---------------------------------------------------------------------------------------------------

    def seal(self, key: WalletKey, message: Any, run: RunId | None, clock_ms: int, group: str = "") -> SimulatedPacket:
        """A request as its sender puts it on the wire. Only what can land in the log has to be signed."""
        is_request = isinstance(message, Heartbeat | LeaseRequest)
        kind = (HEARTBEAT if isinstance(message, Heartbeat) else LEASE).kind if is_request else type(message).__name__
        sequence = self._sequences.setdefault(key.node, SequenceCounter()).next(clock_ms)
        if is_request and not self.plan.every_signature:
            return SimulatedPacket(make_payload(key.node, kind, b"", run, sequence, clock_ms), message, None, group)
        body = encode(message)
        frame = seal_envelope(
            key,
            kind=kind,
            body=body,
            network=NETWORK,
            run=run,
            sequence=sequence,
            issued_at_ms=clock_ms,
            life_ms=ENVELOPE_MS,
        )
        return SimulatedPacket(make_payload(key.node, kind, body, run, sequence, clock_ms), message, frame, group)

    def post(self, party: int, request: int, packet: SimulatedPacket, answer: Callable[[Event], None]) -> None:
        """Carry a request to the coordinator; the caller gets one answer, or a timeout, or an answer twice."""
        sent_ms = self.now_ms
        give_up = partial(self.at, sent_ms + TIMEOUT_MS, answer, SendTimedOut(request))
        arrivals = self.network.deliver(party, sent_ms)
        if not arrivals:
            give_up()
        for copy, arrival_ms in enumerate(arrivals):
            first = copy == 0
            reply = partial(self._return, party, packet, sent_ms, answer) if first else ignore
            call = PendingCall(packet, request, reply, give_up if first else ignore)
            self.at(arrival_ms, self._arrive, call)

    def _arrive(self, call: PendingCall) -> None:
        self.host.receive(call, self.now_ms)
        self._write()

    def _return(
        self, party: int, packet: SimulatedPacket, sent_ms: int, answer: Callable[[Event], None], event: Event
    ) -> None:
        assert not isinstance(event, SendTimedOut)
        arrivals = self.network.deliver(party, self.now_ms)
        in_time = [arrival_ms for arrival_ms in arrivals if arrival_ms <= sent_ms + TIMEOUT_MS]
        if not in_time:
            request: int = event.request  # type: ignore[union-attr]
            self.at(sent_ms + TIMEOUT_MS, answer, SendTimedOut(request))
            return
        if isinstance(event, ReplyReceived) and isinstance(event.reply, EntryReply):
            assert packet.payload is not None
            self.acknowledged.append((event.reply.index, (packet.payload.sender, packet.payload.body)))
        for arrival_ms in in_time:
            self.at(arrival_ms, answer, event)

    # --- The coordinator's machine ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.host.tick(self.now_ms)
        self._write()
        self.after(TICK_MS, self._tick)

    def _write(self) -> None:
        if self.host.wants_to_write:
            self.host.begin_write()
            slow = self._disk_rng.random() < 0.01
            self.after(self._disk_rng.uniform(100, 400) if slow else WRITE_MS, self._end_write, self.host.core)
            if self._doom_ms is not None:
                self.after(WRITE_MS - 1, self.crash_host, self._doom_ms)
                self._doom_ms = None

    def _end_write(self, core: Any) -> None:
        if self.host.core is core:  # else it has crashed in between
            self.host.end_write(self.now_ms)
            self._write()

    def forget_sequence(self, node: NodeId) -> None:
        """A sender that restarts numbers from its clock again."""
        self._sequences.pop(node, None)

    def crash_host_writing(self, down_ms: int) -> None:
        """Crash during the next write: the batch is on disk or not, and no caller got an answer."""
        self._doom_ms = down_ms

    def crash_host(self, down_ms: int) -> None:
        if self.host.is_up:
            self.host.crash()
            self.after(down_ms, self._boot_host)

    def _boot_host(self) -> None:
        self.host.boot(self.now_ms)


def make_payload(
    sender: NodeId, kind: str, body: bytes, run: RunId | None, sequence: int, issued_at_ms: int
) -> Payload:
    """What opening the sealed frame would give."""
    return Payload(
        version=PROTOCOL_VERSION,
        network=NETWORK,
        run=run,
        sender=sender,
        sequence=sequence,
        issued_at_ms=issued_at_ms,
        expires_at_ms=issued_at_ms + ENVELOPE_MS,
        kind=kind,
        body=body,
    )


def ignore(*_: Any) -> None:
    """For answers that no caller waits for."""


assert ENVELOPE_MS <= ENVELOPE_LIFE_MS_MAX
