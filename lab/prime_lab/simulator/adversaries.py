"""How a node behaves: the honest behavior, and one adversary for each kind of attack.

An adversary runs the real agent too, so it retries as an honest node does. Its behavior changes what the engine
generates, what its audits report and what it sends, and every few seconds it may start an attack of its own.

"""

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from prime_lab.simulator.coordinator_host import FORGERY_KINDS, FakeFile, SimulatedPacket, forge_file
from prime_lab.simulator.world import NETWORK, RUN, STAKE, AdversaryAttempt, get_wallet, hash_text, ignore
from prime_node.agent.events import Event, ReplyReceived, SendRefused
from prime_protocol.constants import BASIS_POINTS, READ_PROOF_BYTES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_audit_rate_bps
from prime_protocol.ledger.entries import OUTCOME_NUMBER, Outcome, Role
from prime_protocol.ledger.randomness import compute_audit_seed, is_audited
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, NodeId, hash_bytes
from prime_protocol.wire.messages import AuditTask, Heartbeat, LeaseRequest, NodeActivity
from prime_protocol.wire.typed_data import (
    EMBEDDED_DOMAIN,
    SubmissionReceipt,
    VerdictReceipt,
    compute_receipt_id,
    sign_document,
)

if TYPE_CHECKING:
    from prime_lab.simulator.participants import SimulatedNode


ATTACK_INTERVAL_MS = 8_000


class NodeBehavior:
    """The honest behavior, and the base of all others."""

    name = "honest"
    role = Role.WORKER
    time_factor = 1.0
    """Generation time as a share of the honest time."""
    own_nano = 0
    """Balance of its own key where an owner stands behind it."""
    is_witness = True
    """Whether it cosigns the tree heads that it is asked to witness."""

    @property
    def is_honest(self) -> bool:
        return type(self) is NodeBehavior

    def make_file(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        return honest

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        """The outcome it reports; None: it never answers."""
        return truth

    def make_read_proof(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        """The read proof that it reports for a reader."""
        return compute_read_proof(submission, reader)

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        """Called before a submission is sent; False holds it back."""
        return True

    def on_reveal(self, party: "SimulatedNode", entry: e.VerdictGiven) -> bool:
        """Called before a verdict is sent; False holds it back."""
        return True

    def make_request(self, request: LeaseRequest) -> LeaseRequest:
        """The lease request that it sends."""
        return request

    def attack(self, party: "SimulatedNode") -> None:
        """Called every few seconds, for attacks of its own."""


# --- Workers --------------------------------------------------------------------------------------------------------


class Forger(NodeBehavior):
    """Submits only forged files."""

    name = "forger"
    time_factor = 0.2

    def make_file(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        return forge_file(honest, party.rng.choice(FORGERY_KINDS))


class Sleeper(NodeBehavior):
    """Earns trust, then forges now and then."""

    name = "sleeper"

    def make_file(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        has_trust = sum(1 for a in party.disk.answers) >= 2
        return forge_file(honest, party.rng.choice(FORGERY_KINDS)) if has_trust and party.rng.random() < 0.5 else honest


class DrawGrinder(NodeBehavior):
    """Earns trust, then forges, and sends the one of many files that the last known randomness would spare."""

    name = "draw-grinder"
    time_factor = 0.2
    tries_max = 64

    def make_file(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        core = party.world.host.core
        run = core.state.runs.get(RUN) if core else None
        streak = run.get_record(party.node).streak if run else 0
        rate_bps = compute_audit_rate_bps(streak, party.world.host.history.terms)
        if rate_bps > BASIS_POINTS // 2:
            return honest  # most files are drawn: it earns trust first
        forged = forge_file(honest, party.rng.choice(FORGERY_KINDS))
        for _ in range(self.tries_max):
            if not self._would_be_drawn(party, forged, rate_bps):
                break
            forged = replace(forged, salt=party.rng.getrandbits(32))
        return forged

    def _would_be_drawn(self, party: "SimulatedNode", file: FakeFile, rate_bps: int) -> bool:
        history = party.world.host.history
        lease = history.leases[file.lease].granted.entry
        receipt = party.describe(file).make_receipt(party.profile.network, party.profile.run, lease)
        name = compute_receipt_id(receipt)
        return is_audited(compute_audit_seed(randomness=history.newest_randomness, submission=name), rate_bps)


class Hoarder(NodeBehavior):
    """Takes leases and never answers."""

    name = "hoarder"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        return False


class Latecomer(NodeBehavior):
    """Sends every answer just after its deadline."""

    name = "latecomer"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        lease = party.world.host.history.leases.get(entry.receipt.lease)
        if lease is not None:
            for wait_ms in (1, 300, 900):
                party.world.at(lease.granted.entry.deadline_ms + wait_ms, attempt_submission, party, entry)
        return False


class Duplicator(NodeBehavior):
    """Sends every submission several times, and other bytes for the same lease."""

    name = "duplicator"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        file = party.world.files.get(entry.receipt.file_digest)
        assert file is not None
        other = make_submission(party, replace(file, salt=1))
        for _ in range(2):
            party.post(entry, RUN)
            attempt_submission(party, other)
        return True


class Copycat(NodeBehavior):
    """Submits another node's file as its own, with and without a new header."""

    name = "copycat"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        others = list(party.world.host.history.submissions.values())
        if others:
            theirs = party.world.files.get(party.rng.choice(others).receipt.file_digest)
            assert theirs is not None
            stolen = replace(theirs, lease=entry.receipt.lease, node=party.node)
            attempt_submission(party, make_submission(party, theirs, lease=entry.receipt.lease))
            attempt_submission(party, make_submission(party, stolen))
        return True


class Inflater(NodeBehavior):
    """Claims more tokens than its files have."""

    name = "inflater"

    def on_submit(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        party.post(replace(entry, output_tokens=entry.output_tokens + 100), RUN)
        return True


class LeaseThief(NodeBehavior):
    """Submits to and ends the leases of other nodes."""

    name = "thief"

    def attack(self, party: "SimulatedNode") -> None:
        history = party.world.host.history
        if not history.open_leases:
            return
        number = party.rng.choice(list(history.open_leases))
        lease: e.LeaseGranted = history.leases[number].granted.entry
        if lease.node == party.node:
            return
        root = history.checkpoints[lease.step].entry.root
        tokens = 100 * lease.slots
        file = FakeFile(
            run=RUN,
            step=lease.step,
            lease=number,
            node=lease.node,
            checkpoint_root=root,
            first_slot=lease.first_slot,
            slots=lease.slots,
            output_tokens=tokens,
            context_tokens=tokens,
            forgery="stolen lease",
        )
        party.post(make_submission(party, file, node=party.node), RUN)
        party.post(make_submission(party, file, node=lease.node), RUN)
        party.post(e.LeaseEnded(lease=number, reason="not mine"), RUN)


class StakeWithdrawer(Forger):
    """Forges, and withdraws its stake before an audit."""

    name = "runner"

    def attack(self, party: "SimulatedNode") -> None:
        party.post(e.Unbonded(node=party.node, amount_nano=STAKE // 4), None)
        party.post(e.Released(node=party.node), None)
        party.post(e.Withdrawn(amount_nano=1), None)


class ProtocolFuzzer(NodeBehavior):
    """Sends random bytes, broken frames, and entries that only the coordinator may write."""

    name = "vandal"

    def attack(self, party: "SimulatedNode") -> None:
        rng, history = party.rng, party.world.host.history
        names = list(history.submissions)
        if names:
            name = rng.choice(names)
            forbidden: list[Any] = [
                e.Credited(submission=name, units=1),
                e.AcceptedUnaudited(randomness_round=1, submissions=(name,)),
                e.Settled(settled=(e.SubmissionOutcome(submission=name, outcome=Outcome.ACCEPT),)),
                e.SlashExecuted(submission=name),
                e.SlashOverturned(submission=name),
                e.Appealed(submission=name, reason="why not"),
            ]
            send_bytes(party, party.world.seal(party.key, rng.choice(forbidden), RUN, party.clock_ms).frame)
        frame = party.world.seal(party.key, e.LeaseEnded(lease=0, reason=""), RUN, party.clock_ms).frame
        assert frame is not None
        place = rng.randrange(len(frame))
        send_bytes(party, frame[:place] + bytes([frame[place] ^ 1 << rng.randrange(8)]) + frame[place + 1 :])
        send_bytes(party, frame[:place])
        send_bytes(party, rng.randbytes(rng.randrange(1, 200)))


# --- Validators -----------------------------------------------------------------------------------------------------


class NonReadingValidator(NodeBehavior):
    """Does not read the files it judges, and invents its read proofs."""

    role = Role.VALIDATOR

    def make_read_proof(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        return party.rng.randbytes(READ_PROOF_BYTES)


class LazyValidator(NonReadingValidator):
    """Accepts every file without reading it."""

    name = "lazy"

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.ACCEPT


class VindictiveValidator(NonReadingValidator):
    """Finds every file fraudulent."""

    name = "vindictive"

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.FRAUDULENT


class ColludingValidator(NodeBehavior):
    """Accepts forgeries and finds honest files fraudulent: what helps colluding workers most."""

    name = "colluder"
    role = Role.VALIDATOR

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.FRAUDULENT if truth is Outcome.ACCEPT else Outcome.ACCEPT


class SilentValidator(NodeBehavior):
    """Never gives a verdict."""

    name = "silent"
    is_witness = False
    role = Role.VALIDATOR

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return None


class EquivocatingValidator(NodeBehavior):
    """Gives verdicts that it was not drawn for or has not committed to, and commits twice to what it was drawn for."""

    name = "meddler"
    role = Role.VALIDATOR

    def choose_outcome(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        other = make_verdict(party, task.submission, Outcome.INVALID if truth is Outcome.ACCEPT else Outcome.ACCEPT)
        party.post(other, RUN)
        party.world.after(ATTACK_INTERVAL_MS, party.post, make_commitment(other), RUN)
        party.world.after(2 * ATTACK_INTERVAL_MS, party.post, other, RUN)
        return truth

    def attack(self, party: "SimulatedNode") -> None:
        open_names = list(party.world.host.history.unsettled)
        if open_names:
            verdict = make_verdict(party, party.rng.choice(open_names), party.rng.choice(list(Outcome)))
            party.post(make_commitment(verdict), RUN)
            party.post(verdict, RUN)


def compute_read_proof(submission: Digest, reader: NodeId) -> bytes:
    """The read proof of a validator that read the file. It differs for each reader."""
    return sha256(b"looks" + submission + reader).digest()


# --- Messages of adversaries ----------------------------------------------------------------------------------------


def make_submission(
    party: "SimulatedNode", file: FakeFile, *, lease: int | None = None, node: NodeId | None = None
) -> e.Submitted:
    """A submission of any file, signed by the node, whatever its receipt claims."""
    receipt = SubmissionReceipt(
        network=NETWORK,
        run=RUN,
        step=file.step,
        lease=file.lease if lease is None else lease,
        node=node or party.node,
        checkpoint_root=file.checkpoint_root,
        file_digest=party.world.files.add(file),
        rollout_root=file.rollout_root,
    )
    return e.Submitted(
        receipt=receipt,
        signature=sign_document(party.key, receipt, EMBEDDED_DOMAIN),
        file_bytes=file.size_bytes,
        output_tokens=file.output_tokens,
        context_tokens=file.context_tokens,
    )


def attempt_submission(
    party: "SimulatedNode", entry: e.Submitted, clock_ms: int | None = None, *, about: e.Submitted | None = None
) -> None:
    """Send a submission that must be refused, and record the answer."""
    attempt_entry(party, entry, compute_receipt_id((about or entry).receipt), clock_ms)


def attempt_entry(party: "SimulatedNode", entry: Any, name: Digest, clock_ms: int | None = None) -> None:
    """Send an entry about a submission that must be refused, and record the answer."""
    world = party.world
    packet = world.seal(party.key, entry, RUN, party.clock_ms if clock_ms is None else clock_ms, party.address_group)

    def note(event: Event) -> None:
        field = (
            event.refusal.field if isinstance(event, SendRefused) else "" if isinstance(event, ReplyReceived) else None
        )
        world.attempts.append(AdversaryAttempt(party.node, name, world.now_ms, field))

    world.post(party.number, 0, packet, note)


def make_verdict(party: "SimulatedNode", submission: Digest, outcome: Outcome) -> e.VerdictGiven:
    receipt = VerdictReceipt(
        network=NETWORK,
        run=RUN,
        submission=submission,
        validator=party.node,
        outcome=OUTCOME_NUMBER[outcome],
        evidence=hash_text("invented"),
    )
    signature = sign_document(party.key, receipt, EMBEDDED_DOMAIN)
    return e.VerdictGiven(receipt=receipt, signature=signature, outcome=outcome, reason="", metrics=())


def make_commitment(verdict: e.VerdictGiven) -> e.VerdictCommitted:
    return e.VerdictCommitted(submission=verdict.receipt.submission, commitment=hash_bytes(encode(verdict)))


def send_bytes(party: "SimulatedNode", frame: bytes | None) -> None:
    """Send raw bytes to the coordinator, which has to open them itself."""
    party.world.post(party.number, 0, SimulatedPacket(None, None, frame, party.address_group), ignore)


def register_sybils(party: "SimulatedNode", keys: int) -> None:
    """Register many keys from one address group, without stake, and request leases with them."""
    history = party.world.host.history
    request = LeaseRequest(checkpoint_step=history.latest, tokens_per_s=1_000)
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=history.latest, head_size=2**62)
    for number in range(keys):
        key = get_wallet(f"sybil {number}")
        entry = e.NodeRegistered(roles=(Role.VALIDATOR, Role.WORKER) if number % 2 else (Role.WORKER,), hardware="")
        party.post(entry, None, key=key)
        for wait_ms in (30_000, 60_000):
            party.world.after(wait_ms, party.post, beat, RUN, 0, key)
            party.world.after(wait_ms + 2_000, party.post, request, RUN, 0, key)
