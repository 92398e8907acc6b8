"""Habits: what a node does with its engine and its voice. The honest one, and one liar for each kind of lie.

A liar runs the real agent too, so it is as stubborn as an honest node; its habit bends what the engine makes, what its
audits say and what it sends, and now and then it does mischief of its own.
"""

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from prime_lab.simulator.coordinator_host import FORGERY_KINDS, FakeFile, SimulatedPacket, forge_file
from prime_lab.simulator.world import NETWORK, RUN, STAKE, AdversaryAttempt, get_wallet, hash_text, ignore
from prime_node.agent.events import Event, ReplyReceived, SendRefused
from prime_protocol.constants import READ_PROOF_BYTES
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import OUTCOME_NUMBER, Outcome, Role
from prime_protocol.wire.ids import Digest, NodeId
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
    """The honest one."""

    name = "honest"
    role = Role.WORKER
    haste = 1.0
    """Part of the honest time that its files take."""

    @property
    def is_honest(self) -> bool:
        return type(self) is NodeBehavior

    def make(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        return honest

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        """None: it never answers."""
        return truth

    def look(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        """What it says that a reader sees in a file."""
        return compute_read_proof(submission, reader)

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        """Whether the entry goes out as it is."""
        return True

    def mischief(self, party: "SimulatedNode") -> None:
        """Something of its own, every few seconds."""


# --- Workers --------------------------------------------------------------------------------------------------------


class Forger(NodeBehavior):
    """Never computes what it is paid for."""

    name = "forger"
    haste = 0.2

    def make(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        return forge_file(honest, party.dice.choice(FORGERY_KINDS))


class Sleeper(NodeBehavior):
    """Earns trust, then forges now and then."""

    name = "sleeper"

    def make(self, party: "SimulatedNode", honest: FakeFile) -> FakeFile:
        has_trust = sum(1 for a in party.disk.answers) >= 2
        return (
            forge_file(honest, party.dice.choice(FORGERY_KINDS)) if has_trust and party.dice.random() < 0.5 else honest
        )


class Hoarder(NodeBehavior):
    """Takes leases and never answers."""

    name = "hoarder"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        return False


class Latecomer(NodeBehavior):
    """Sends every answer just after its deadline."""

    name = "latecomer"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        lease = party.world.host.chronicle.leases.get(entry.receipt.lease)
        if lease is not None:
            for wait_ms in (1, 300, 900):
                party.world.at(lease.granted.entry.deadline_ms + wait_ms, attempt_submission, party, entry)
        return False


class Duplicator(NodeBehavior):
    """Sends every answer again and again, and other bytes beside it."""

    name = "duplicator"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        file = party.world.files.get(entry.receipt.file_digest)
        assert file is not None
        other = make_submission(party, replace(file, salt=1))
        for _ in range(2):
            party.post(entry, RUN)
            attempt_submission(party, other)
        return True


class Copycat(NodeBehavior):
    """Submits the file of somebody else as its own, with and without a new header."""

    name = "copycat"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        others = list(party.world.host.chronicle.submissions.values())
        if others:
            theirs = party.world.files.get(party.dice.choice(others).receipt.file_digest)
            assert theirs is not None
            stolen = replace(theirs, lease=entry.receipt.lease, node=party.node)
            attempt_submission(party, make_submission(party, theirs, lease=entry.receipt.lease))
            attempt_submission(party, make_submission(party, stolen))
        return True


class Inflater(NodeBehavior):
    """Claims more tokens than its files have."""

    name = "inflater"

    def submits(self, party: "SimulatedNode", entry: e.Submitted) -> bool:
        party.post(replace(entry, output_tokens=entry.output_tokens + 100), RUN)
        return True


class LeaseThief(NodeBehavior):
    """Answers, ends and submits what was leased to others."""

    name = "thief"

    def mischief(self, party: "SimulatedNode") -> None:
        chronicle = party.world.host.chronicle
        if not chronicle.open_leases:
            return
        number = party.dice.choice(list(chronicle.open_leases))
        lease: e.LeaseGranted = chronicle.leases[number].granted.entry
        if lease.node == party.node:
            return
        root = chronicle.checkpoints[lease.step].entry.root
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
    """Forges, and asks its stake back before anybody has looked."""

    name = "runner"

    def mischief(self, party: "SimulatedNode") -> None:
        party.post(e.Unbonded(node=party.node, amount_nano=STAKE // 4), None)
        party.post(e.Released(node=party.node), None)
        party.post(e.Withdrawn(amount_nano=1), None)


class ProtocolFuzzer(NodeBehavior):
    """Sends what nobody should send: noise, broken frames, and the coordinator's own entries."""

    name = "vandal"

    def mischief(self, party: "SimulatedNode") -> None:
        dice, chronicle = party.dice, party.world.host.chronicle
        names = list(chronicle.submissions)
        if names:
            name = dice.choice(names)
            forbidden: list[Any] = [
                e.Credited(submission=name, units=1),
                e.Settled(submission=name, outcome=Outcome.ACCEPT),
                e.SlashExecuted(submission=name),
                e.SlashOverturned(submission=name),
                e.Appealed(submission=name, reason="why not"),
            ]
            send_bytes(party, party.world.seal(party.key, dice.choice(forbidden), RUN, party.clock_ms).frame)
        frame = party.world.seal(party.key, e.LeaseEnded(lease=0, reason=""), RUN, party.clock_ms).frame
        assert frame is not None
        place = dice.randrange(len(frame))
        send_bytes(party, frame[:place] + bytes([frame[place] ^ 1 << dice.randrange(8)]) + frame[place + 1 :])
        send_bytes(party, frame[:place])
        send_bytes(party, dice.randbytes(dice.randrange(1, 200)))


# --- Validators -----------------------------------------------------------------------------------------------------


class NonReadingValidator(NodeBehavior):
    """Does not read what it judges, and makes its looks up."""

    role = Role.VALIDATOR

    def look(self, party: "SimulatedNode", submission: Digest, reader: NodeId) -> bytes:
        return party.dice.randbytes(READ_PROOF_BYTES)


class LazyValidator(NonReadingValidator):
    """Accepts everything without a look."""

    name = "lazy"

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.ACCEPT


class VindictiveValidator(NonReadingValidator):
    """Calls everybody a cheat."""

    name = "vindictive"

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.FRAUDULENT


class ColludingValidator(NodeBehavior):
    """Lets forgeries pass and denounces the honest: what would help a ring of cheats most."""

    name = "colluder"
    role = Role.VALIDATOR

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return Outcome.FRAUDULENT if truth is Outcome.ACCEPT else Outcome.ACCEPT


class SilentValidator(NodeBehavior):
    """Is drawn and never speaks."""

    name = "silent"
    role = Role.VALIDATOR

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        return None


class EquivocatingValidator(NodeBehavior):
    """Judges what it was not drawn for, and says two things about what it was."""

    name = "meddler"
    role = Role.VALIDATOR

    def judge(self, party: "SimulatedNode", task: AuditTask, truth: Outcome) -> Outcome | None:
        other = Outcome.INVALID if truth is Outcome.ACCEPT else Outcome.ACCEPT
        party.post(make_verdict(party, task.submission, other), RUN)
        return truth

    def mischief(self, party: "SimulatedNode") -> None:
        open_names = list(party.world.host.chronicle.unsettled)
        if open_names:
            name = party.dice.choice(open_names)
            party.post(make_verdict(party, name, party.dice.choice(list(Outcome))), RUN)


def compute_read_proof(submission: Digest, reader: NodeId) -> bytes:
    """What who has read a file sees in it. No two readers see the same."""
    return sha256(b"looks" + submission + reader).digest()


# --- What liars write -----------------------------------------------------------------------------------------------


def make_submission(
    party: "SimulatedNode", file: FakeFile, *, lease: int | None = None, node: NodeId | None = None
) -> e.Submitted:
    """A submission of any file, signed by the party, whatever its receipt says."""
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
    """Send a submission that must not be taken, and note what comes of it."""
    world, name = party.world, compute_receipt_id((about or entry).receipt)
    packet = world.seal(party.key, entry, RUN, party.clock_ms if clock_ms is None else clock_ms, party.address_group)

    def note(event: Event) -> None:
        field = (
            event.refusal.field if isinstance(event, SendRefused) else "" if isinstance(event, ReplyReceived) else None
        )
        world.tries.append(AdversaryAttempt(party.node, name, world.now_ms, field))

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


def send_bytes(party: "SimulatedNode", frame: bytes | None) -> None:
    """Bytes at the coordinator, which has to open them itself."""
    party.world.post(party.number, 0, SimulatedPacket(None, None, frame, party.address_group), ignore)


def register_sybils(party: "SimulatedNode", keys: int) -> None:
    """Register many keys from one network, without stake, and ask for work with them."""
    chronicle = party.world.host.chronicle
    request = LeaseRequest(checkpoint_step=chronicle.latest, tokens_per_s=1_000)
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=chronicle.latest, head_size=2**62)
    for number in range(keys):
        key = get_wallet(f"sybil {number}")
        entry = e.NodeRegistered(roles=(Role.VALIDATOR, Role.WORKER) if number % 2 else (Role.WORKER,), hardware="")
        party.post(entry, None, key=key)
        for wait_ms in (30_000, 60_000):
            party.world.after(wait_ms, party.post, beat, RUN, 0, key)
            party.world.after(wait_ms + 2_000, party.post, request, RUN, 0, key)
