"""Planted work: half of it bad, known to us alone, the same after a restart."""

from hashlib import sha256
from itertools import product

from prime_coordinator.audits.plants import Plants
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.plants import plant_seal
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.signing import WalletKey
from support.ledger_network import RUN, World

KEY, OURS = (WalletKey.from_secret(sha256(name).digest()) for name in (b"coordinator", b"planted"))


def test_the_secret_follows_from_the_key_and_nothing_else() -> None:
    again, other = Plants.of(KEY, [OURS]), Plants.of(OURS, [OURS])
    plants = Plants.of(KEY, [OURS])
    assert plants.seal(RUN, 1, OURS.node) == again.seal(RUN, 1, OURS.node)
    assert plants.seal(RUN, 1, OURS.node) != other.seal(RUN, 1, OURS.node)


def test_about_half_of_the_plans_are_bad() -> None:
    plans = [Plants.of(KEY).planned(RUN, lease) for lease in range(2000)]
    assert set(plans) == {Outcome.ACCEPT, Outcome.FRAUDULENT}
    assert 900 < plans.count(Outcome.FRAUDULENT) < 1100


def test_no_two_leases_have_the_same_seal() -> None:
    plants = Plants.of(KEY, [OURS])
    places = product((RUN, RunId("b")), range(50), (KEY.node, OURS.node))
    seals = {plants.seal(*place) for place in places}
    assert len(seals) == 200


def test_only_our_workers_seals_open_and_only_to_the_plan() -> None:
    world = World.started()
    plants = Plants.of(KEY, [world.key("ann")])
    names = {}
    for slot, name in enumerate(("ann", "bob")):
        lease = world.run.lease_next
        names[name] = world.submit(world.lease(name, slot, seal=plants.seal(RUN, lease, world.id(name))))
    entry = plants.reveal(RUN, names["ann"], world.submission(names["ann"]))
    assert entry is not None
    assert plant_seal(entry.salt, entry.outcome) == world.submission(names["ann"]).seal
    assert plants.reveal(RUN, names["bob"], world.submission(names["bob"])) is None
    assert plants.key(world.id("bob")) is None
