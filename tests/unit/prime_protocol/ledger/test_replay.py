"""What every entry has to keep, whatever it says: form, order, time, scope and author."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.constants import (
    CLOCK_SKEW_MS_MAX,
    LOG_ENTRY_BYTES_MAX,
    READ_PROOF_BYTES,
    REGISTRATION_MS,
    RULES_NOTICE_MS,
)
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import CoordinatorKeyRotated, LogKeyRotated
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import (
    FindingDismissed,
    FindingFiled,
    FindingUpheld,
    LogRecord,
    NodeStatus,
    Outcome,
    Role,
    RunStatus,
)
from prime_protocol.ledger.replay import ENTRY_RULES, ENTRY_TYPES, EntryAuthor, EntryScope, Ledger, replay
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, Slot, Step
from prime_protocol.wire.signing import Signature
from support.ledger_network import MINUTE_MS, NETWORK, RANDOMNESS, RUN, START_MS, World, digest, make_settled

NODE = NodeId(b"n" * 20)
NAME = digest("a submission")
HELLO = e.NodeRegistered(roles=(Role.WORKER,), hardware="")


def examples(world: World) -> dict[type, Any]:
    """One well-formed entry of each type, by nobody in particular."""
    lease = world.lease("ann")
    answer = world.answer(lease)
    found = [
        e.NetworkCreated(log_key="key", chain_id=0, contract=NODE, unbonding_ms=0, **RANDOMNESS),
        e.RulesChanged(rules=3, from_ms=world.now_ms + RULES_NOTICE_MS, release="0.3.0"),
        e.Deposited(account=NODE, amount_nano=1, reference=NAME),
        e.Withdrawn(amount_nano=1),
        HELLO,
        e.NodeStatusSet(node=NODE, status=NodeStatus.BANNED, reason=""),
        world.delegation("owner", "ann"),
        e.DelegationRevoked(node=NODE),
        e.Staked(node=NODE, amount_nano=1),
        e.Unbonded(node=NODE, amount_nano=1),
        e.Released(node=NODE),
        e.HeadNoted(root=NAME),
        e.SnapshotNoted(size=1, digest=NAME, format=1),
        e.LogRestored(size=1, root=NAME),
        e.RoundRecorded(round=1, signature=bytes(48), cosignatures=()),
        e.RunCreated(terms=world.terms()),
        e.RunUpdated(terms=world.terms()),
        e.RunStatusSet(status=RunStatus.PAUSED, reason=""),
        e.RunFunded(amount_nano=1),
        e.PoolReturned(amount_nano=1),
        e.SubmissionsListed(step=Step(1), first=0, submissions=(NAME,)),
        make_checkpoint_entries((), step=Step(1), root=NAME, manifest=NAME)[1],
        e.StepMeasured(step=Step(0), metrics=(e.Metric(name="held_out", value=0.5),)),
        e.LeaseGranted(
            lease=0,
            node=NODE,
            step=Step(0),
            checkpoint_step=Step(0),
            first_slot=Slot(0),
            slots=1,
            deadline_ms=0,
            speculative=False,
        ),
        e.LeaseEnded(lease=0, reason=""),
        answer,
        e.AuditDrawn(submission=NAME, round=0, randomness_round=0, validators=(NODE,)),
        e.AcceptedUnaudited(randomness_round=0, submissions=(NAME,)),
        e.VerdictCommitted(submission=NAME, commitment=NAME),
        world.opinion("val-0", NAME, Outcome.ACCEPT),
        make_settled(NAME, Outcome.ACCEPT),
        e.Credited(submission=NAME, units=1),
        e.PaidOut(step=Step(0)),
        e.ValidatorScored(validator=NODE, submission=NAME),
        e.Inspected(submission=NAME, seen=(e.InspectedVerdict(reader=NODE, read_proof=bytes(READ_PROOF_BYTES)),)),
        e.RulingGiven(submission=NAME, outcome=Outcome.ACCEPT, evidence=NAME, reason=""),
        e.SlashProposed(submission=NAME, amount_nano=1, evidence=NAME),
        e.Appealed(submission=NAME, reason=""),
        e.SlashExecuted(submission=NAME),
        e.SlashOverturned(submission=NAME),
        FindingFiled(submission=NAME, evidence=NAME, reason=""),
        FindingUpheld(submission=NAME),
        FindingDismissed(submission=NAME),
        LogKeyRotated(index=1, log_key="key", old_signature=bytes(64), new_signature=bytes(64)),
        CoordinatorKeyRotated(index=1, coordinator=NODE, signature=Signature(bytes(65))),
    ]
    return {type(entry): entry for entry in found}


@pytest.mark.parametrize("kind", ENTRY_RULES, ids=lambda kind: kind.__name__)
def test_every_entry_comes_back_from_its_encoding(kind: type) -> None:
    entry = examples(World.started())[kind]
    assert decode(kind, encode(entry)) == entry
    assert ENTRY_TYPES[kind.__name__] is kind


@pytest.mark.parametrize("author", ["ann", "val-0", "trainer", "sponsor", "stranger"])
@pytest.mark.parametrize(
    "kind",
    [kind for kind, rule in ENTRY_RULES.items() if rule.author is EntryAuthor.COORDINATOR],
    ids=lambda kind: kind.__name__,
)
def test_only_the_coordinator_writes_its_entries(kind: type, author: str) -> None:
    world = World.started()
    entry = examples(world)[kind]
    with world.refuses("Payload.sender"):
        world.write(author, entry)


OTHERS_WORD = {
    e.NetworkCreated: "NetworkCreated",
    e.Withdrawn: "amount_nano",
    e.Delegated: "delegation.node",
    e.Staked: "node",
    e.Unbonded: "node",
    e.Released: "node",
    e.RunFunded: "amount_nano",
    FindingFiled: "submission",
    e.PoolReturned: "run",
    e.SubmissionsListed: "sender",
    e.CheckpointPublished: "sender",
    e.StepMeasured: "sender",
    e.LeaseEnded: "sender",
    e.Submitted: "receipt.node",
    e.VerdictCommitted: "sender",
    e.VerdictGiven: "sender",
    e.Inspected: "sender",
    e.RulingGiven: "sender",
    e.Appealed: "submission",
}
"""Entries that the rule itself binds to an author, and what it names when a stranger writes them."""


@pytest.mark.parametrize("kind", OTHERS_WORD, ids=lambda kind: kind.__name__)
def test_a_stranger_speaks_for_nobody(kind: type) -> None:
    world = World.started()
    entry = examples(world)[kind]
    if kind is e.VerdictGiven:
        name = world.submit(0)
        entry = world.opinion(world.draw(name)[0], name, Outcome.ACCEPT)
    if kind in (e.Inspected, e.RulingGiven, e.VerdictCommitted):
        entry = replace(entry, submission=world.submit(0))
    with world.refuses(OTHERS_WORD[kind]):
        world.write("stranger", entry)


def test_what_anyone_may_write_is_bound_in_its_rule_or_concerns_only_the_author() -> None:
    free = {kind for kind, rule in ENTRY_RULES.items() if rule.author is EntryAuthor.ANYONE}
    assert free - OTHERS_WORD.keys() == {e.NodeRegistered, e.DelegationRevoked}


@pytest.mark.parametrize("kind", ENTRY_RULES, ids=lambda kind: kind.__name__)
def test_an_entry_names_a_run_exactly_where_it_is_about_one(kind: type) -> None:
    world = World.started()
    entry = examples(world)[kind]
    wrong = RUN if ENTRY_RULES[kind].scope is EntryScope.NETWORK else None
    with world.refuses("Payload.run"):
        world.write("coordinator", entry, wrong)


@pytest.mark.parametrize(
    "kind", [kind for kind, rule in ENTRY_RULES.items() if rule.scope is EntryScope.RUN], ids=lambda kind: kind.__name__
)
def test_an_entry_about_an_unknown_run_is_refused(kind: type) -> None:
    world = World.started()
    entry = examples(world)[kind]
    if kind is not e.RunCreated:
        with world.refuses("run"):
            world.write("coordinator", entry, RunId("nowhere"))


@pytest.mark.parametrize(
    "kind", [kind for kind in ENTRY_RULES if kind is not e.NetworkCreated], ids=lambda kind: kind.__name__
)
def test_nothing_comes_before_the_network(kind: type) -> None:
    entry = examples(World.started())[kind]
    empty = World()
    with empty.refuses("Payload.kind"):
        empty.write("coordinator", entry)


def test_time_does_not_run_backwards() -> None:
    world = World.started()
    world.wait(-1)
    with world.refuses("LogRecord.at_ms"):
        world.register("newcomer", Role.WORKER)
    world.wait(1)
    world.register("newcomer", Role.WORKER)


def test_a_letter_counts_only_while_it_lives() -> None:
    world = World.started()
    world.wait(REGISTRATION_MS)
    with world.refuses("Payload.issued_at_ms"):
        world.write("ann", HELLO, issued_at_ms=world.now_ms + CLOCK_SKEW_MS_MAX + 1)
    with world.refuses("Payload.expires_at_ms"):
        world.write("ann", HELLO, issued_at_ms=START_MS - MINUTE_MS)
    world.write("ann", HELLO, issued_at_ms=world.now_ms + CLOCK_SKEW_MS_MAX)


def test_one_senders_entries_stand_in_rising_order() -> None:
    world = World.started()
    world.wait(REGISTRATION_MS)
    leaf = world.seal("ann", HELLO, sequence=100)
    world.apply(leaf)
    with world.refuses("Payload.sequence"):
        world.apply(leaf)
    with world.refuses("Payload.sequence"):
        world.write("ann", HELLO, sequence=99)
    world.wait(REGISTRATION_MS)
    world.write("ann", HELLO, sequence=101)


def test_what_is_no_entry_is_refused() -> None:
    world = World.started()
    with world.refuses("Payload.kind"):
        world.write("ann", HELLO, kind="Record")
    with world.refuses("NodeRegistered.amount_nano"):
        world.write("ann", e.Withdrawn(amount_nano=1), None, kind="NodeRegistered")
    with world.refuses("Payload.network"):
        world.write("ann", HELLO, network=NetworkId("other"))


def test_an_entry_of_another_network_or_a_damaged_one_is_refused() -> None:
    world = World.started()
    leaf = world.seal("ann", HELLO)
    record = decode(LogRecord, leaf)
    forged = bytearray(record.frame)
    forged[-1] ^= 1
    with pytest.raises(RemoteError):
        world.apply(encode(LogRecord(record.at_ms, bytes(forged))))
    with pytest.raises(RemoteError, match=r"Payload\.network"):
        Ledger(NetworkId("other")).apply(leaf)


def test_append_folds_like_apply() -> None:
    world = World.started()
    mine = replay(NETWORK, world.leaves)
    leaf = world.seal("newcomer", HELLO)
    record = decode(LogRecord, leaf)
    assert mine.append(open_envelope(record.frame, network=NETWORK).payload, record) == leaf
    world.apply(leaf)
    assert mine.state == world.state


def test_append_refuses_what_does_not_fit_the_log() -> None:
    world = World.started()
    record = decode(LogRecord, world.seal("ann", HELLO))
    letter = open_envelope(record.frame, network=NETWORK).payload
    before = world.snapshot()
    with pytest.raises(RemoteError, match="LogRecord"):
        world.ledger.append(letter, LogRecord(record.at_ms, bytes(LOG_ENTRY_BYTES_MAX)))
    assert world.snapshot() == before


def test_replay_gives_the_same_state_and_root() -> None:
    world = World.started()
    world.settled("ann", Outcome.ACCEPT)
    again = replay(NETWORK, world.leaves, coordinator=world.id("coordinator"))
    assert again.state == world.state
    assert again.state.frontier.root() == MerkleTree([compute_leaf_hash(leaf) for leaf in world.leaves]).root()


def test_replay_names_the_entry_that_is_wrong() -> None:
    world = World.started()
    with pytest.raises(RemoteError) as caught:
        replay(NETWORK, [*world.leaves[:7], world.leaves[3]])
    assert caught.value.field == "entry 7: Payload.sequence"


def test_replay_refuses_a_log_that_another_key_has_started() -> None:
    world = World.started()
    with pytest.raises(RemoteError) as caught:
        replay(NETWORK, world.leaves, coordinator=world.id("ann"))
    assert caught.value.field == "entry 0: Payload.sender"


def test_every_entry_type_is_in_the_protocol_page() -> None:
    page = (Path(__file__).parents[4] / "docs" / "protocol" / "ledger.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {line.split("`")[1] for line in rows} & {kind.__name__ for kind in ENTRY_RULES}
    assert {kind.__name__ for kind in ENTRY_RULES} - named == set()
