"""Entries that their own form refuses, before any rule is asked."""

from dataclasses import replace

import pytest

from prime_protocol.constants import READ_PROOF_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    OUTCOME_NUMBER,
    Inspected,
    NodeRegistered,
    Outcome,
    Role,
    StepMeasured,
    VerdictGiven,
)
from prime_protocol.ledger.entry_values import InspectedVerdict, Metric
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NodeId, RunId, Step
from support.ledger_network import World, digest


@pytest.mark.parametrize("roles", [(Role.WORKER, Role.RELAY), (Role.WORKER, Role.WORKER)])
def test_roles_are_sorted_and_each_once(roles: tuple[Role, ...]) -> None:
    with pytest.raises(RemoteError) as caught:
        NodeRegistered(roles=roles, hardware="")
    assert caught.value.field == "roles"


def test_a_node_offers_something() -> None:
    with pytest.raises(RemoteError) as caught:
        decode(NodeRegistered, encode(NodeRegistered(roles=(), hardware="")))
    assert caught.value.field == "NodeRegistered.roles"


def test_every_outcome_has_its_number_for_contracts() -> None:
    assert [OUTCOME_NUMBER[outcome] for outcome in Outcome] == [0, 1, 2]


@pytest.mark.parametrize("address", ["http://192.0.2.1:8000", "https://node.example", "/ip4/192.0.2.1/tcp/4001"])
def test_a_serving_address_is_a_url_or_a_multiaddr(address: str) -> None:
    entry = NodeRegistered(roles=(Role.RELAY,), hardware="", addresses=(address,))
    assert decode(NodeRegistered, encode(entry)) == entry


def test_another_address_is_refused_by_its_place() -> None:
    with pytest.raises(RemoteError) as caught:
        NodeRegistered(roles=(Role.RELAY,), hardware="", addresses=("/ip4/192.0.2.1", "ftp://node.example"))
    assert caught.value.field == "addresses[1]"


@pytest.mark.parametrize("names", [("loss", "entropy"), ("loss", "loss")])
def test_numbers_of_a_step_are_sorted_each_once(names: tuple[str, str]) -> None:
    with pytest.raises(RemoteError, match="sorted by name"):
        StepMeasured(step=Step(0), metrics=tuple(Metric(name=name, value=0.0) for name in names))


def test_a_verdict_has_all_its_looks_or_none() -> None:
    whole = World().opinion("val-0", digest("a submission"), Outcome.ACCEPT)
    for read_proof in (b"", whole.read_proof):
        told = replace(whole, read_proof=read_proof)
        assert decode(VerdictGiven, encode(told)) == told
    for size in (1, READ_PROOF_BYTES - 2, READ_PROOF_BYTES + 2):
        with pytest.raises(RemoteError) as caught:
            replace(whole, read_proof=bytes(size))
        assert caught.value.field == "read_proof"


def test_only_a_fraudulent_file_need_not_be_read_whole() -> None:
    for outcome in Outcome:
        verdict = World().opinion("val-0", digest("a submission"), outcome)
        if outcome is Outcome.FRAUDULENT:
            assert decode(VerdictGiven, encode(replace(verdict, blocks_read=3))).blocks_read == 3
        else:
            with pytest.raises(RemoteError) as caught:
                replace(verdict, blocks_read=3)
            assert caught.value.field == "blocks_read"


def test_an_inspection_names_each_reader_once_and_in_order() -> None:
    ann, bob = (
        InspectedVerdict(reader=NodeId(bytes([number]) * 20), read_proof=bytes(READ_PROOF_BYTES)) for number in range(2)
    )
    for seen in ((), (ann,), (ann, bob)):
        told = Inspected(submission=digest("a submission"), seen=seen)
        assert decode(Inspected, encode(told)) == told
    for seen in ((bob, ann), (ann, ann)):
        with pytest.raises(RemoteError) as caught:
            Inspected(submission=digest("a submission"), seen=seen)
        assert caught.value.field == "seen"


@pytest.mark.parametrize("size", [0, READ_PROOF_BYTES - 2, READ_PROOF_BYTES + 2])
def test_what_an_inspector_has_seen_is_whole(size: int) -> None:
    with pytest.raises(RemoteError) as caught:
        decode(InspectedVerdict, encode(InspectedVerdict(reader=NodeId(bytes(20)), read_proof=bytes(size))))
    assert caught.value.field == "InspectedVerdict.read_proof"


def test_runs_are_sorted_and_a_witness_key_is_whole() -> None:
    one, two = RunId("a"), RunId("b")
    for runs in ((two, one), (one, one)):
        with pytest.raises(RemoteError, match="runs: must be sorted"):
            NodeRegistered(roles=(Role.VALIDATOR,), hardware="", runs=runs)
    with pytest.raises(RemoteError, match="witness_key: has 31 bytes"):
        NodeRegistered(roles=(Role.VALIDATOR,), hardware="", witness_key=bytes(31))
