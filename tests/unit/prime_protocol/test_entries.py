"""Entries that their own form refuses, before any rule is asked."""

import pytest

from prime_protocol.codec import decode, encode
from prime_protocol.entries import OUTCOME_NUMBER, Metric, NodeRegistered, Outcome, Role, StepMeasured
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Step


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
