"""Who may join: everybody, but not everybody at once."""

import pytest

from prime_coordinator.constants import ADDRESS_GROUP_MS, FAILURES_FREE, NODES_PER_ADDRESS_GROUP_MAX
from prime_coordinator.intake import checks as admission
from prime_protocol.constants import ENTRY_VALUE_NANO, REGISTRATION_MS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from support.core_network import Scene
from support.ledger_network import MINUTE_MS, digest

HELLO = e.NodeRegistered(roles=(Role.WORKER,), hardware="")


@pytest.fixture
def scene() -> Scene:
    return Scene.started()


def refused(scene: Scene, field: str, name: str, entry: object, group: str = "192.0.2") -> int:
    """When the entry would pass."""
    size = scene.state.size
    with pytest.raises(RemoteError) as caught:
        scene.send(name, entry, group)
    assert caught.value.field == field
    assert scene.state.size == size
    return caught.value.retry_after_ms


def test_newcomers_from_one_network_are_capped_and_time_makes_room(scene: Scene) -> None:
    for number in range(NODES_PER_ADDRESS_GROUP_MAX):
        scene.send(f"n{number}", HELLO)
    refused(scene, "Payload.sender", "late", HELLO)
    scene.send("late", HELLO, "198.51.100")
    scene.world.wait(ADDRESS_GROUP_MS - 1)
    scene.send("n0", e.NodeRegistered(roles=(Role.RELAY,), hardware=""))  # who is known may return
    refused(scene, "Payload.sender", "later", HELLO)
    scene.world.wait(1)
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
    scene.world.wait(REGISTRATION_MS)
    scene.send("two", scene.world.delegation("owner", "two"))  # again, for the same node
    scene.send("owner", e.DelegationRevoked(node=scene.node("one")))
    scene.send("three", scene.world.delegation("owner", "three"))


def test_a_revocation_that_changes_nothing_is_not_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NODES_PER_OWNER_MAX", 1)
    scene.send("one", scene.world.delegation("owner", "one"))
    for _ in range(3):
        scene.send("ann", e.DelegationRevoked(node=scene.node("one")))
    refused(scene, "delegation.owner", "two", scene.world.delegation("owner", "two"))


def test_the_count_survives_a_restart(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NODES_PER_OWNER_MAX", 1)
    scene.send("one", scene.world.delegation("owner", "one"))
    scene.restart()
    refused(scene, "delegation.owner", "two", scene.world.delegation("owner", "two"))


LARGE = e.NodeRegistered(roles=(Role.WORKER,), hardware="x" * 256, addresses=("/" + "x" * 199,) * 8)


def test_one_network_uses_only_its_part_of_the_free_entries(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FREE_BURST_MS", 10 * MINUTE_MS)
    for number in range(4):
        scene.send(f"n{number}", LARGE)
    wait_ms = refused(scene, "Payload.sender", "late", HELLO)
    scene.send("elsewhere", HELLO, "198.51.100")
    for name, amount_nano in (("poor", ENTRY_VALUE_NANO - 1), ("rich", ENTRY_VALUE_NANO)):
        reference = digest(f"for {name}")
        scene.order(e.Deposited(account=scene.node(name), amount_nano=amount_nano, reference=reference), None)
    refused(scene, "Payload.sender", "poor", HELLO)
    scene.send("rich", HELLO)
    scene.send("one", scene.world.delegation("rich", "one"))
    scene.world.wait(wait_ms)
    scene.send("late", HELLO)


def test_a_revoked_delegation_is_no_repeat(scene: Scene) -> None:
    delegation = scene.world.delegation("owner", "one")
    first = scene.send("one", delegation)
    assert scene.send("one", delegation) == first
    scene.world.wait(REGISTRATION_MS)
    scene.send("owner", e.DelegationRevoked(node=scene.node("one")))
    refused(scene, "delegation.issued_at_ms", "one", delegation)


def test_leases_that_a_key_without_value_returns_count_as_failures() -> None:
    scene = Scene.started(stake_min_nano=0, slash_nano=0)
    scene.send("free", HELLO)
    scene.beat("free")
    for _ in range(FAILURES_FREE + 1):
        scene.send("free", e.LeaseEnded(lease=scene.lease("free").lease, reason=""))
    assert scene.ask("free").lease is None
    scene.beat("ann")
    for _ in range(FAILURES_FREE + 1):
        scene.send("ann", e.LeaseEnded(lease=scene.lease("ann").lease, reason=""))
    assert scene.ask("ann").lease is not None
