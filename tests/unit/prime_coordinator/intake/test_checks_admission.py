"""Who may join: everybody, but not everybody at once."""

import pytest

from prime_coordinator.constants import ADDRESS_GROUP_MS, NODES_PER_ADDRESS_GROUP_MAX
from prime_coordinator.intake import checks as admission
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from support.core_network import Scene
from support.ledger_network import digest

HELLO = e.NodeRegistered(roles=(Role.WORKER,), hardware="")


@pytest.fixture
def scene() -> Scene:
    return Scene.started()


def refused(scene: Scene, field: str, name: str, entry: object, group: str = "192.0.2") -> None:
    size = scene.state.size
    with pytest.raises(RemoteError) as caught:
        scene.send(name, entry, group)
    assert caught.value.field == field
    assert scene.state.size == size


def test_newcomers_from_one_network_are_capped_and_time_makes_room(scene: Scene) -> None:
    for number in range(NODES_PER_ADDRESS_GROUP_MAX):
        scene.send(f"n{number}", HELLO)
    refused(scene, "Payload.sender", "late", HELLO)
    scene.send("late", HELLO, "198.51.100")
    scene.send("n0", e.NodeRegistered(roles=(Role.RELAY,), hardware=""))  # who is known may return
    scene.world.wait(ADDRESS_GROUP_MS)
    scene.send("later", HELLO)


def test_a_delegation_is_no_way_around_the_cap(scene: Scene) -> None:
    for number in range(NODES_PER_ADDRESS_GROUP_MAX):
        scene.send(f"n{number}", HELLO)
    refused(scene, "Payload.sender", "late", scene.world.delegation("owner", "late"))


def test_what_the_ledger_refuses_is_not_counted(scene: Scene) -> None:
    for _ in range(NODES_PER_ADDRESS_GROUP_MAX + 1):
        refused(scene, "delegation.node", "thief", scene.world.delegation("owner", "victim"))
    scene.send("honest", HELLO)


def test_nodes_of_one_owner_are_capped_and_a_revocation_makes_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "NODES_PER_OWNER_MAX", 2)
    for name in ("one", "two"):
        scene.send(name, scene.world.delegation("owner", name))
    refused(scene, "delegation.owner", "three", scene.world.delegation("owner", "three"))
    scene.send("two", scene.world.delegation("owner", "two"))  # again, for the same node
    scene.send("owner", e.DelegationRevoked(node=scene.node("one")))
    scene.send("three", scene.world.delegation("owner", "three"))


def test_a_revocation_that_changes_nothing_is_not_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NODES_PER_OWNER_MAX", 1)
    scene.send("one", scene.world.delegation("owner", "one"))
    for _ in range(3):
        scene.send("ann", e.DelegationRevoked(node=scene.node("one")))
    refused(scene, "delegation.owner", "two", scene.world.delegation("owner", "two"))


def test_an_owner_that_is_left_by_all_is_as_new(scene: Scene) -> None:
    scene.send("one", scene.world.delegation("owner", "one"))
    scene.send("owner", e.DelegationRevoked(node=scene.node("one")))
    refused(scene, "Payload.sender", "owner", e.DelegationRevoked(node=scene.node("two")))


def test_the_count_survives_a_restart(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NODES_PER_OWNER_MAX", 1)
    scene.send("one", scene.world.delegation("owner", "one"))
    scene.restart()
    refused(scene, "delegation.owner", "two", scene.world.delegation("owner", "two"))


def test_a_stranger_cannot_fill_the_log_with_revocations(scene: Scene) -> None:
    refused(scene, "Payload.sender", "stranger", e.DelegationRevoked(node=scene.node("ann")))
    reference = digest("a gift")
    scene.order(e.Deposited(account=scene.node("stranger"), amount_nano=1, reference=reference), None)
    scene.send("stranger", e.DelegationRevoked(node=scene.node("ann")))
