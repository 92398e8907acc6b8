"""A small network whose log is real: keys by name, a clock that only moves when told, every entry signed and applied.

`write` takes the way of a stranger: the entry is sealed, encoded as a record, and given to `Ledger.apply`. The other
methods write the entry that their name says, with everything that follows from the books filled in.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import PROTOCOL_VERSION, RULES_NOTICE_MS
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import make_coordinator_rotation, make_log_key_rotation
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw, compute_settled_outcome, tally_outcome
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, FindingUpheld, Outcome, Role
from prime_protocol.ledger.findings import get_bounty_account
from prime_protocol.ledger.randomness_chain import make_own_chain, sign_round
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, Ledger
from prime_protocol.ledger.rewards import compute_submission_units, find_uncredited
from prime_protocol.ledger.slashes import compute_penalty_nano
from prime_protocol.ledger.state import LedgerState, RunState, SubmissionState
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.ledger.versions.upgrades import choose_version, encode_form
from prime_protocol.log.tree_head import (
    ORIGIN_PREFIX,
    TreeHead,
    VerifierKey,
    derive_witness_key,
    encode_cosigned_message,
)
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Slot, Step, hash_bytes
from prime_protocol.wire.messages import AccountStatus
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import (
    EMBEDDED_DOMAIN,
    Delegation,
    Domain,
    SubmissionReceipt,
    VerdictReceipt,
    compute_receipt_id,
    sign_document,
)

NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
START_MS = 1_800_000_000_000
TOKEN = 10**9
STAKE, SLASH, BOND, BUDGET = 100 * TOKEN, 60 * TOKEN, 5 * TOKEN, 12 * TOKEN
PENALTY = 10 * TOKEN
ON_CHAIN = Domain(31337, NodeId(b"court at 0x" + bytes(9)))
"""Of a network that settles on a chain; the contract is its court."""
CHAIN_SECRET = sha256(b"the network's own randomness").digest()
CHAIN = make_own_chain(CHAIN_SECRET, NETWORK, genesis_s=START_MS // 1000 - 3600, period_s=1)
RANDOMNESS: dict[str, Any] = {"randomness": CHAIN, "draw_margin_ms": 0}
"""What a network's first entry says of its randomness."""
VALIDATORS = tuple(f"val-{number}" for number in range(9))

TERMS = RunTerms(
    trainer=NodeId(bytes(20)),  # World puts its own trainer here, and its inspector
    model="tiny",
    task_set="arithmetic",
    slots_per_step=8,
    samples_per_slot=2,
    vocabulary=64,
    prompt_tokens_max=16,
    output_tokens_max=32,
    temperature=1.0,
    lag_max=1,
    version_min=1,
    quorum=3,
    audit_probation=1000,
    audit_floor=500,
    verdict_ms=10 * MINUTE_MS,
    read_us_per_token=0,
    appeal_ms=2 * HOUR_MS,
    judgement_ms=HOUR_MS,
    long_stop_ms=5 * HOUR_MS,
    stake_min_nano=STAKE,
    slash_nano=SLASH,
    appeal_bond_nano=BOND,
    slash_to=SlashDestination.BURN,
    step_budget_nano=BUDGET,
    audit_share=2500,
    units_per_token=10**9,
    units_per_context_token=0,
    vesting_ms=0,
)
ACCOUNT = AccountStatus(
    eligibility="ready",
    is_eligible=True,
    remedy="",
    stake_nano=100,
    stake_min_nano=100,
    balance_nano=0,
    earned_nano=0,
    fraudulent=0,
)


STARTED: dict[str, "World"] = {}
"""Worlds that `World.started` has made before; it hands out forks of them."""


def log_key(name: str) -> Ed25519PrivateKey:
    """A key that signs heads."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"log key {name}".encode()).digest())


def verifier(name: str) -> VerifierKey:
    return VerifierKey.of(ORIGIN_PREFIX + NETWORK, log_key(name))


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def make_commitment(verdict: e.VerdictGiven) -> e.VerdictCommitted:
    return e.VerdictCommitted(submission=verdict.receipt.submission, commitment=hash_bytes(encode(verdict)))


def make_settled(name: Digest, outcome: Outcome, uncredited: tuple[Digest, ...] = ()) -> e.Settled:
    """Of one submission."""
    return e.Settled(settled=(e.SubmissionOutcome(submission=name, outcome=outcome),), uncredited=uncredited)


def make_registration(
    key: WalletKey, *roles: Role, hardware: str = "a laptop", runs: tuple[RunId, ...] = (RUN,)
) -> e.NodeRegistered:
    """What a node says of itself; a validator serves the run and can cosign heads."""
    witness_key = derive_witness_key(key).public_key().public_bytes_raw()
    served: dict[str, Any] = {"runs": runs, "witness_key": witness_key} if Role.VALIDATOR in roles else {}
    return e.NodeRegistered(roles=tuple(sorted(roles)), hardware=hardware, **served)


class World:
    """A ledger, its leaves, and everybody who writes them."""

    def __init__(self) -> None:
        self.ledger = Ledger(NETWORK)
        self.leaves: list[bytes] = []
        self.now_ms = START_MS
        self.keys: dict[str, WalletKey] = {}
        self.names: dict[NodeId, str] = {}
        self.sequences: Counter[str] = Counter()
        self.run_name = RUN
        """The run that everything here is about, unless it is said otherwise."""
        self.runs_served: tuple[RunId, ...] = (RUN,)
        """Whose audits a validator takes that registers now."""
        self.coordinator_name, self.log_key_name = "coordinator", "first"

    def fork(self) -> "World":
        """Another world with the same past."""
        twin = World()
        twin.ledger.state = deepcopy(self.state)
        twin.leaves, twin.now_ms = list(self.leaves), self.now_ms
        twin.keys, twin.names, twin.sequences = self.keys, self.names, Counter(self.sequences)
        twin.coordinator_name, twin.log_key_name = self.coordinator_name, self.log_key_name
        return twin

    @classmethod
    def started(
        cls,
        *,
        workers: Sequence[str] = ("ann", "bob"),
        validators: int = 9,
        domain: Domain = EMBEDDED_DOMAIN,
        rules: int = PROTOCOL_VERSION,
        **terms: Any,
    ) -> "World":
        """A funded run with staked workers and validators and its first checkpoint, ready to lease."""
        plan = repr((workers, validators, domain, rules, sorted(terms.items())))
        if plan not in STARTED:
            STARTED[plan] = cls._start(workers, validators, terms, domain, rules)
        return STARTED[plan].fork()

    @classmethod
    def _start(
        cls,
        workers: Sequence[str],
        validators: int,
        terms: dict[str, Any],
        domain: Domain = EMBEDDED_DOMAIN,
        rules: int = PROTOCOL_VERSION,
    ) -> "World":
        world = cls()
        world.create_network(domain=domain, rules=rules)
        for name in workers:
            world.join(name, Role.WORKER)
        for name in VALIDATORS[:validators]:
            world.join(name, Role.VALIDATOR)
        world.create_run(**terms)
        world.fund("sponsor", 1000 * TOKEN)
        world.publish()
        return world

    # --- Reading ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    @property
    def run(self) -> RunState:
        return self.state.runs[self.run_name]

    def key(self, name: str) -> WalletKey:
        if name not in self.keys:
            self.keys[name] = WalletKey.from_secret(sha256(f"world/{name}".encode()).digest())
            self.names[self.keys[name].node] = name
        return self.keys[name]

    def id(self, name: str) -> NodeId:
        return self.key(name).node

    def balance(self, name: str) -> int:
        return self.state.funds.balances[self.id(name)]

    def stake_of(self, owner: str, node: str | None = None) -> int:
        return self.state.funds.stakes[(self.id(owner), self.id(node or owner))]

    def submission(self, name: Digest) -> SubmissionState:
        return self.run.submissions[name]

    def snapshot(self) -> bytes:
        """All of the state. For one world at two times; compare the states of two worlds with ==."""
        return pickle.dumps(self.state)

    @contextmanager
    def refuses(self, field: str) -> Iterator[None]:
        """What is written inside is refused, the refusal names `field`, and nothing has changed."""
        before, size = self.snapshot(), len(self.leaves)
        try:
            yield
        except RemoteError as error:
            assert error.field == field, f"refused {error.field}, expected {field}: {error}"
        else:
            raise AssertionError(f"was not refused; expected a refusal of {field}")
        assert len(self.leaves) == size, "something before it was written"
        assert self.snapshot() == before, f"refused {field}, but the state has changed"

    # --- Writing ----------------------------------------------------------------------------------------------------

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms

    def seal(self, author: str, entry: Any, run: str | None = "as the rule says", **letter: Any) -> bytes:
        """A leaf by this author. `run` and further fields of the letter replace the honest ones."""
        self.sequences[author] += 1
        if run == "as the rule says":
            run = self.run_name if ENTRY_RULES[type(entry)].scope is EntryScope.RUN else None
        rules = self.state.rules.get_version(self.now_ms) if self.state.size else PROTOCOL_VERSION
        version = choose_version(type(entry), rules)
        honest: dict[str, Any] = {
            "version": version,
            "kind": type(entry).__name__,
            "body": encode_form(entry, letter.get("version", version)),
            "network": NETWORK,
            "run": run,
            "sequence": self.sequences[author],
            "issued_at_ms": self.now_ms,
            "life_ms": MINUTE_MS,
        }
        return encode(e.LogRecord(self.now_ms, seal_envelope(self.key(author), **honest | letter)))

    def write(self, author: str, entry: Any, run: str | None = "as the rule says", **letter: Any) -> None:
        self.apply(self.seal(author, entry, run, **letter))

    def apply(self, leaf: bytes) -> None:
        self.ledger.apply(leaf)
        self.leaves.append(leaf)

    def coordinate(self, entry: Any) -> None:
        self.write(self.coordinator_name, entry)

    def rotate_log_key(self, name: str) -> int:
        """The number of the entry."""
        index, old, new = self.state.size, log_key(self.log_key_name), log_key(name)
        self.coordinate(make_log_key_rotation(NETWORK, index=index, old=old, new=new))
        self.log_key_name = name
        return index

    def rotate_coordinator(self, name: str) -> int:
        """The number of the entry."""
        index, old = self.state.size, self.id(self.coordinator_name)
        self.coordinate(make_coordinator_rotation(NETWORK, index=index, old=old, new=self.key(name)))
        self.coordinator_name = name
        return index

    # --- The network ------------------------------------------------------------------------------------------------

    def create_network(
        self, unbonding_ms: int = 7 * DAY_MS, domain: Domain = EMBEDDED_DOMAIN, rules: int = PROTOCOL_VERSION
    ) -> None:
        facts = {
            "chain_id": domain.chain_id,
            "contract": domain.contract,
            "rules": rules,
            "log_key": str(verifier(self.log_key_name)),
        }
        self.coordinate(e.NetworkCreated(**facts, unbonding_ms=unbonding_ms, **RANDOMNESS))

    def announce_rules(self, rules: int, wait_ms: int = RULES_NOTICE_MS) -> None:
        self.coordinate(e.RulesChanged(rules=rules, from_ms=self.now_ms + wait_ms, release=f"0.{rules}.0"))

    def deposit(self, name: str, amount_nano: int, run: RunId | None = None) -> None:
        self.take_in(self.id(name), amount_nano, run)

    def take_in(self, account: NodeId, amount_nano: int, run: RunId | None) -> None:
        reference = digest(f"deposit {self.state.size}")
        self.coordinate(e.Deposited(account=account, amount_nano=amount_nano, reference=reference, run=run))

    def fund(self, name: str, amount_nano: int) -> None:
        """The run, with value that comes in for it: over the chain where the pool is there."""
        if self.state.domain != EMBEDDED_DOMAIN:
            self.deposit(name, amount_nano, self.run_name)
            return
        self.deposit(name, amount_nano)
        self.write(name, e.RunFunded(amount_nano=amount_nano))

    def forfeit(self, amount_nano: int) -> None:
        """The court brings slashed stake into the run's pool on the chain."""
        self.take_in(self.state.domain.contract, amount_nano, self.run_name)

    def register(self, name: str, *roles: Role) -> None:
        self.write(name, self.registration(name, *roles))

    def registration(self, name: str, *roles: Role) -> e.NodeRegistered:
        return make_registration(self.key(name), *roles, runs=self.runs_served)

    def join(self, name: str, *roles: Role, owner: str | None = None, stake_nano: int = STAKE) -> None:
        """Register and stake, with a balance left for a bond; for an owner where one is named."""
        self.register(name, *roles)
        if owner is not None:
            self.delegate(owner, name)
        self.deposit(owner or name, stake_nano + BOND)
        self.stake(owner or name, name, stake_nano)

    def stake(self, owner: str, node: str, amount_nano: int = STAKE) -> None:
        self.write(owner, e.Staked(node=self.id(node), amount_nano=amount_nano))

    def delegation(self, owner: str, node: str, life_ms: int = 30 * DAY_MS) -> e.Delegated:
        """The owner's word, signed now."""
        word = Delegation(
            network=NETWORK,
            owner=self.id(owner),
            node=self.id(node),
            issued_at_ms=self.now_ms,
            expires_at_ms=self.now_ms + life_ms,
        )
        return e.Delegated(delegation=word, signature=self.sign(owner, word))

    def delegate(self, owner: str, node: str, life_ms: int = 30 * DAY_MS) -> None:
        self.write(node, self.delegation(owner, node, life_ms))

    def sign(self, name: str, document: Any) -> Signature:
        return sign_document(self.key(name), document, self.state.domain)

    # --- The run ----------------------------------------------------------------------------------------------------

    def terms(self, **changes: Any) -> RunTerms:
        people = {"trainer": self.id("trainer"), "inspectors": (self.id("inspector"),)}
        return replace(TERMS, **people | changes)

    def create_run(self, **changes: Any) -> None:
        self.coordinate(e.RunCreated(terms=self.terms(**changes)))

    def set_run(self, status: e.RunStatus) -> None:
        self.coordinate(e.RunStatusSet(status=status, reason=""))

    def publish(self, *trained_on: Digest) -> None:
        """The next checkpoint, and a head for its beacon."""
        step = Step(self.run.latest + 1)
        root, manifest = digest(f"weights {step}"), digest(f"manifest {step}")
        parts, checkpoint = make_checkpoint_entries(trained_on, step=step, root=root, manifest=manifest)
        for entry in (*parts, checkpoint):
            self.write("trainer", entry)
        self.note_head()

    def measure(self, step: int, **metrics: float) -> None:
        """The trainer's numbers of a step."""
        numbers = tuple(e.Metric(name=name, value=metrics[name]) for name in sorted(metrics))
        self.write("trainer", e.StepMeasured(step=Step(step), metrics=numbers))

    def note_head(self) -> None:
        """A head and the round that it waits for, with every validator's cosignature."""
        self.coordinate(e.HeadNoted(root=self.state.frontier.root()))
        while self.state.pending_rounds:
            self.record_round()

    def record_round(self, *silent: str) -> None:
        """The oldest round that is waited for, cosigned by all that were asked but these."""
        number = next(iter(self.state.pending_rounds))
        self.now_ms = max(self.now_ms, CHAIN.round_time_ms(number))
        self.coordinate(self.make_round(*silent))

    def make_round(self, *silent: str) -> e.RoundRecorded:
        number, pending = next(iter(self.state.pending_rounds.items()))
        asked = sorted({node for each in pending.witnesses.values() for node in each})
        cosignatures = tuple(self.cosign(self.names[node]) for node in asked if self.names[node] not in silent)
        return e.RoundRecorded(round=number, signature=sign_round(CHAIN_SECRET, number), cosignatures=cosignatures)

    def cosign(self, name: str, time_s: int | None = None) -> e.HeadCosignature:
        """A validator's cosignature of the oldest head that waits for a round, made a second before the round."""
        number, pending = next(iter(self.state.pending_rounds.items()))
        made_s = CHAIN.round_time_ms(number) // 1000 - 1 if time_s is None else time_s
        return self.cosign_size(name, pending.head_size, made_s)

    def cosign_size(self, name: str, size: int, time_s: int) -> e.HeadCosignature:
        """A validator's cosignature of a noted head."""
        head = TreeHead(ORIGIN_PREFIX + NETWORK, size, self.state.noted_heads[size])
        signature = derive_witness_key(self.key(name)).sign(encode_cosigned_message(head.text, time_s))
        return e.HeadCosignature(witness=self.id(name), head_size=size, time_s=time_s, signature=signature)

    def lease(self, node: str, first_slot: int = 0, slots: int = 1, **changes: Any) -> int:
        """Slots of the latest step for an hour; the number of the lease."""
        honest = e.LeaseGranted(
            lease=self.run.lease_next,
            node=self.id(node),
            step=Step(self.run.latest),
            checkpoint_step=changes.get("step", Step(self.run.latest)),
            first_slot=Slot(first_slot),
            slots=slots,
            deadline_ms=self.now_ms + HOUR_MS,
            speculative=False,
        )
        self.coordinate(replace(honest, **changes))
        return self.run.lease_next - 1

    def answer(self, lease: int, tokens: int = 0, /, **receipt: Any) -> e.Submitted:
        """What the lease's node would submit; fields of the receipt may be replaced before it is signed."""
        held = self.run.leases[lease]
        honest: dict[str, Any] = {
            "network": NETWORK,
            "run": self.run_name,
            "step": held.step,
            "lease": lease,
            "node": held.node,
            "checkpoint_root": self.run.checkpoints[held.checkpoint_step].root,
            "file_digest": digest(f"file {lease}"),
            "rollout_root": digest(f"rows {lease}"),
        }
        word = SubmissionReceipt(**honest | receipt)
        tokens = tokens or 10 * held.slots * self.run.steps[held.step].terms.samples_per_slot
        signature = self.sign(self.names[held.node], word)
        return e.Submitted(
            receipt=word, signature=signature, file_bytes=1000, output_tokens=tokens, context_tokens=tokens
        )

    def submit(self, lease: int, tokens: int = 0) -> Digest:
        """The honest answer to a lease; the name of the submission."""
        entry = self.answer(lease, tokens)
        self.write(self.names[entry.receipt.node], entry)
        return compute_receipt_id(entry.receipt)

    def credit(self, name: Digest) -> None:
        """A credit that was not possible when it was settled."""
        submission = self.submission(name)
        self.coordinate(
            e.Credited(submission=name, units=compute_submission_units(self.run.get_terms(submission), submission))
        )

    def pay_out(self, step: int) -> None:
        self.coordinate(e.PaidOut(step=Step(step)))

    # --- Judgement --------------------------------------------------------------------------------------------------

    def draw(self, name: Digest) -> list[str]:
        """A head and the next round; who was drawn. Where nobody was, the submission is accepted."""
        self.note_head()
        submission = self.submission(name)
        assert submission.randomness is not None
        drawn = compute_draw(self.state, self.run, name, self.now_ms)
        assert drawn is not None, "too few validators"
        number = submission.randomness[0]
        if not drawn:
            uncredited = find_uncredited(self.run, [name])
            self.coordinate(e.AcceptedUnaudited(randomness_round=number, submissions=(name,), uncredited=uncredited))
            return []
        entry = e.AuditDrawn(submission=name, round=len(submission.rounds), randomness_round=number, validators=drawn)
        self.coordinate(entry)
        return [self.names[node] for node in drawn]

    def looks(self, validator: str, name: Digest) -> bytes:
        """What a validator sees in the file, if it reads it: far from what any other sees there or elsewhere."""
        return digest(f"looks of {validator} at {name}")

    def opinion(
        self,
        validator: str,
        name: Digest,
        outcome: Outcome,
        /,
        *,
        looks: bytes | None = None,
        bets: tuple[int, ...] = (),
        **receipt: Any,
    ) -> e.VerdictGiven:
        """Its verdict, with the looks of who has read the file unless others are given."""
        honest: dict[str, Any] = {
            "network": NETWORK,
            "run": self.run_name,
            "submission": name,
            "validator": self.id(validator),
            "outcome": e.OUTCOME_NUMBER[outcome],
            "evidence": digest(f"evidence of {validator}"),
        }
        word = VerdictReceipt(**honest | receipt)
        metrics = (e.Metric(name="margin", value=0.25),)
        signature = self.sign(validator, word)
        return e.VerdictGiven(
            receipt=word,
            signature=signature,
            outcome=outcome,
            reason="",
            metrics=metrics,
            read_proof=self.looks(validator, name) if looks is None else looks,
            bets=bets,
        )

    def judge(self, name: Digest, *outcomes: Outcome) -> list[str]:
        """Draw a round, and the first of the drawn give these verdicts, in order; who was drawn."""
        drawn = self.draw(name)
        self.give(*[self.opinion(each, name, outcome) for each, outcome in zip(drawn, outcomes, strict=False)])
        return drawn

    def give(self, *verdicts: e.VerdictGiven) -> None:
        """Verdicts of one round, all committed first."""
        self.commit(*verdicts)
        for verdict in verdicts:
            self.write(self.names[verdict.receipt.validator], verdict)

    def commit(self, *verdicts: e.VerdictGiven) -> None:
        for validator, entry in self.commitments(*verdicts):
            self.write(validator, entry)

    def commitments(self, *verdicts: e.VerdictGiven) -> list[tuple[str, e.VerdictCommitted]]:
        """Of everybody in the round of these verdicts that has not committed; the others find what the first does."""
        if not verdicts:
            return []
        name = verdicts[0].receipt.submission
        last = self.submission(name).rounds[-1]
        given = {verdict.receipt.validator: verdict for verdict in verdicts}
        waiting = [node for node in last.validators if last.is_committed_first and node not in last.commitments]
        found = {node: given.get(node) or self.opinion(self.names[node], name, verdicts[0].outcome) for node in waiting}
        return [(self.names[node], make_commitment(verdict)) for node, verdict in found.items()]

    def agree(self, name: Digest, outcome: Outcome, *, is_drawn: bool = False, bets: tuple[int, ...] = ()) -> None:
        """Round after round finds the same, until that decides; the first may be drawn already."""
        while tally_outcome(self.state, self.run, name, self.now_ms) is not outcome:
            last = self.submission(name).rounds[-1].validators if is_drawn else ()
            drawn = [self.names[node] for node in last] or self.draw(name)
            self.give(*[self.opinion(validator, name, outcome, bets=bets) for validator in drawn])
            is_drawn = False

    def readers(self, name: Digest) -> list[str]:
        """Who has judged it."""
        return [self.names[node] for each in self.submission(name).rounds for node in each.verdicts]

    def inspection(self, name: Digest, found: Mapping[str, bytes]) -> e.Inspected:
        """What an inspector says that these readers must have seen."""
        seen = sorted((self.id(reader), looks) for reader, looks in found.items())
        return e.Inspected(
            submission=name, seen=tuple(e.InspectedVerdict(reader=node, read_proof=looks) for node, looks in seen)
        )

    def inspect(self, name: Digest, *unread: str, by: str = "inspector") -> None:
        """Everybody's looks at it are found again, but those of `unread` are others than they said."""
        found = {reader: self.looks(reader, name) for reader in self.readers(name)}
        found |= {reader: digest(f"what {reader} did not see") for reader in unread}
        self.write(by, self.inspection(name, found))

    def not_drawn(self, node: str) -> Digest:
        """A submission that no draw falls on, accepted; the ones before it are judged, so the chance rises."""
        for slot in range(self.run.terms.slots_per_step):
            name = self.submit(self.lease(node, slot))
            if not self.draw(name):
                return name
            self.agree(name, Outcome.ACCEPT, is_drawn=True)
            self.settle(name)
        raise AssertionError("every submission was drawn; give the run more slots")

    def settle(self, name: Digest) -> Outcome:
        outcome = compute_settled_outcome(self.state, self.run, name, self.now_ms)
        assert outcome is not None, "nothing to settle yet"
        uncredited = find_uncredited(self.run, [name] if outcome is Outcome.ACCEPT else [])
        self.coordinate(make_settled(name, outcome, uncredited))
        return outcome

    def settled(
        self, node: str, outcome: Outcome, first_slot: int = 0, slots: int = 1, bets: tuple[int, ...] = ()
    ) -> Digest:
        """A whole submission, judged by validators who agree."""
        name = self.submit(self.lease(node, first_slot, slots))
        self.agree(name, outcome, bets=bets)
        assert self.settle(name) is outcome
        return name

    def rule(self, name: Digest, outcome: Outcome, by: str = "inspector") -> None:
        """An inspector decides what validators could not."""
        evidence = digest(f"evidence of {by}")
        self.write(by, e.RulingGiven(submission=name, outcome=outcome, evidence=evidence, reason=""))

    def score(self, validator: str, name: Digest) -> int:
        """Score a validator whose verdict did not stand; the stake that it loses."""
        penalty_nano = compute_penalty_nano(self.state, self.run, self.submission(name), self.id(validator))
        entry = e.ValidatorScored(validator=self.id(validator), submission=name, penalty_nano=penalty_nano)
        self.coordinate(entry)
        return penalty_nano

    # --- Punishment -------------------------------------------------------------------------------------------------

    def propose(self, name: Digest) -> None:
        submission = self.submission(name)
        position, terms = (submission.owner, submission.node), self.run.get_terms(submission)
        amount_nano = min(terms.slash_nano, self.state.funds.slashable_nano(position))
        evidence = next(iter(submission.evidence))
        self.coordinate(e.SlashProposed(submission=name, amount_nano=amount_nano, evidence=evidence))

    def appeal(self, author: str, name: Digest) -> None:
        self.write(author, e.Appealed(submission=name, reason="look again"))

    def execute(self, name: Digest) -> None:
        self.coordinate(e.SlashExecuted(submission=name, bounty_to=get_bounty_account(self.run, name)))

    def overturn(self, name: Digest) -> None:
        self.coordinate(e.SlashOverturned(submission=name))

    def file_finding(self, author: str, name: Digest) -> None:
        self.write(author, FindingFiled(submission=name, evidence=digest("bundle"), reason="not the run's model"))

    def uphold(self, name: Digest) -> None:
        self.coordinate(FindingUpheld(submission=name))

    def dismiss(self, name: Digest) -> None:
        self.coordinate(FindingDismissed(submission=name))

    def convicted(self, node: str, first_slot: int = 0) -> Digest:
        """A submission found fraudulent by all, and the slash proposed."""
        name = self.settled(node, Outcome.FRAUDULENT, first_slot)
        self.propose(name)
        return name
