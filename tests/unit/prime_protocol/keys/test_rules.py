"""Rotations in the ledger: who must sign them, what follows from them, and how often they may come."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import KEY_ROTATION_PAUSE_MS, KEY_ROTATIONS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.keys import rules
from prime_protocol.keys.rotation import (
    KeyKind,
    LogKeyRotated,
    encode_log_key_statement,
    make_coordinator_rotation,
    make_log_key_rotation,
)
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.replay import replay
from prime_protocol.ledger.snapshots.snapshot import decode_snapshot, encode_snapshot
from prime_protocol.log.tree_head import SignatureKind, TreeHead, VerifierKey
from prime_protocol.wire.ids import RunId
from support.ledger_network import DAY_MS, NETWORK, ON_CHAIN, RUN, TOKEN, World, digest, log_key, verifier
from support.rotated_log import ORIGIN, RotatedLog


def rotation(index: int, old: str = "first", new: str = "second") -> LogKeyRotated:
    return make_log_key_rotation(NETWORK, index=index, old=log_key(old), new=log_key(new))


def test_the_state_names_the_new_log_key_and_remembers_the_old_one() -> None:
    log = RotatedLog.begun(3)
    assert log.rotate_log_key("second") == 3
    assert log.state.log_key == str(verifier("second"))
    (kept,) = log.state.key_rotations
    assert (kept.index, kept.kind, kept.old, kept.new) == (
        3,
        KeyKind.LOG,
        str(verifier("first")),
        str(verifier("second")),
    )


@pytest.mark.parametrize("field", ["old_signature", "new_signature"])
def test_a_rotation_that_one_log_key_alone_signs_is_refused(field: str) -> None:
    log = RotatedLog.begun()
    forged: dict[str, Any] = {field: log_key("thief").sign(b"another statement")}
    with log.refuses(field):
        log.coordinate(replace(rotation(1), **forged))


def test_a_thief_of_the_log_key_cannot_write_a_rotation_without_the_coordinators_key() -> None:
    log = RotatedLog.begun()
    with log.refuses("Payload.sender"):
        log.write("thief", rotation(1))


def test_a_rotation_is_valid_at_its_own_place_only() -> None:
    log = RotatedLog.begun(2)
    with log.refuses("index"):
        log.coordinate(rotation(1))
    with log.refuses("index"):
        log.coordinate(make_coordinator_rotation(NETWORK, index=9, old=log.id("coordinator"), new=log.key("next")))


@pytest.mark.parametrize(
    "key",
    [
        VerifierKey("prime-swarm/elsewhere", SignatureKind.NOTE, verifier("second").public_key),
        VerifierKey(ORIGIN, SignatureKind.COSIGNATURE, verifier("second").public_key),
    ],
)
def test_a_key_that_cannot_sign_heads_of_this_log_is_refused(key: VerifierKey) -> None:
    log = RotatedLog.begun()
    statement = encode_log_key_statement(NETWORK, index=1, old=verifier("first"), new=key)
    signed = {
        name: log_key(by).sign(statement) for name, by in (("old_signature", "first"), ("new_signature", "second"))
    }
    with log.refuses("log_key"):
        log.coordinate(LogKeyRotated(index=1, log_key=str(key), **signed))


def test_a_key_that_was_given_up_does_not_come_back() -> None:
    log = RotatedLog.begun()
    with log.refuses("log_key"):
        log.coordinate(rotation(1, "first", "first"))
    log.rotate_log_key("second")
    log.wait(KEY_ROTATION_PAUSE_MS)
    with log.refuses("log_key"):
        log.coordinate(rotation(2, "second", "first"))


def test_after_the_rotation_only_the_new_coordinator_may_write() -> None:
    log = RotatedLog.begun()
    log.rotate_coordinator("next")
    deposit = e.Deposited(account=log.id("ann"), amount_nano=TOKEN, reference=digest("gift"))
    with log.refuses("Payload.sender"):
        log.write("coordinator", deposit)
    log.write("next", deposit)
    assert log.state.coordinator == log.id("next")
    assert replay(NETWORK, log.leaves, coordinator=log.id("coordinator")).state == log.state


def test_a_coordinator_that_the_new_key_did_not_agree_to_is_refused() -> None:
    log = RotatedLog.begun()
    made = make_coordinator_rotation(NETWORK, index=1, old=log.id("coordinator"), new=log.key("next"))
    with log.refuses("signature"):
        log.coordinate(replace(made, coordinator=log.id("victim")))


def test_the_coordinators_value_passes_to_the_new_key() -> None:
    """A thief of the old key must find its account empty."""
    world = World.started()
    world.fund("coordinator", 5 * TOKEN)
    world.deposit("coordinator", 7 * TOKEN)
    world.run_name = RunId("unfunded")
    world.create_run()
    world.run_name = RUN
    world.rotate_coordinator("next")
    assert (world.balance("coordinator"), world.balance("next")) == (0, 7 * TOKEN)
    assert (world.run.funded[world.id("coordinator")], world.run.funded[world.id("next")]) == (0, 5 * TOKEN)
    assert world.state.funds.is_conserved()


@pytest.mark.parametrize("known", ["worker", "owner", "payee", "coordinator"])
def test_the_new_coordinator_is_a_key_without_a_past(known: str) -> None:
    log = RotatedLog.begun()
    log.register("worker", Role.WORKER)
    log.delegate("owner", "worker")
    log.deposit("payee", TOKEN)
    if known == "owner":
        log.state.owners[log.id("owner")] = log.id("owner")
    made = make_coordinator_rotation(NETWORK, index=len(log.leaves), old=log.id("coordinator"), new=log.key(known))
    with log.refuses("coordinator"):
        log.coordinate(made)


def test_contracts_cannot_follow_so_the_coordinators_key_stays_on_a_chain() -> None:
    world = World.started(domain=ON_CHAIN)
    index, old = len(world.leaves), world.id("coordinator")
    with world.refuses("CoordinatorKeyRotated"):
        world.coordinate(make_coordinator_rotation(NETWORK, index=index, old=old, new=world.key("next")))


def test_each_key_is_rotated_once_a_day_at_most() -> None:
    log = RotatedLog.begun()
    log.rotate_log_key("second")
    log.rotate_coordinator("next")
    log.wait(KEY_ROTATION_PAUSE_MS - 1)
    with log.refuses("key_rotations"):
        log.rotate_log_key("third")
    with log.refuses("key_rotations"):
        log.rotate_coordinator("another")
    log.wait(1)
    log.rotate_log_key("third")
    log.rotate_coordinator("another")


def test_a_log_has_a_bounded_number_of_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RotatedLog.begun()
    monkeypatch.setattr(rules, "KEY_ROTATIONS_MAX", 3)
    for name in ("second", "third", "fourth"):
        log.rotate_log_key(name)
        log.wait(DAY_MS)
    with log.refuses("key_rotations"):
        log.rotate_coordinator("next")
    assert KEY_ROTATIONS_MAX == 256


def test_a_snapshot_keeps_the_rotations() -> None:
    log = RotatedLog.begun()
    log.rotate_log_key("second")
    log.rotate_coordinator("next")
    assert decode_snapshot(NETWORK, encode_snapshot(NETWORK, log.state)) == log.state


def test_what_the_log_keys_sign_is_no_tree_head() -> None:
    text = encode_log_key_statement(NETWORK, index=1, old=verifier("first"), new=verifier("second")).decode()
    with pytest.raises(RemoteError, match="three lines"):
        TreeHead.parse(text)
