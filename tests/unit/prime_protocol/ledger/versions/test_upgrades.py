"""Every old form is read as the newest, and an entry has the form of the rules in force."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import LINEAGE_MAX, PROTOCOL_VERSION, RULES_NOTICE_MS
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import RelayPoll
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import decode_entry, open_leaf
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.ledger.versions.upgrades import (
    FIRST_VERSIONS,
    OLD_FORMS,
    CheckpointPublished1,
    choose_version,
    decode_form,
    encode_form,
    find_form,
)
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Step
from prime_protocol.wire.messages import LeaseRequest
from support.ledger_network import NETWORK, World, digest

NAMES = tuple(digest(f"submission {number}") for number in range(3))
NEW = make_checkpoint_entries(NAMES, step=Step(1), root=digest("r"), manifest=digest("m"))[1]
OLD = CheckpointPublished1(step=Step(1), root=digest("r"), manifest=digest("m"), trained_on=NEW.trained_on)


def test_an_old_checkpoint_is_upgraded_with_nothing_lost() -> None:
    assert decode_form(e.CheckpointPublished, 1, encode(OLD)) == NEW
    unsorted = replace(OLD, trained_on=NEW.trained_on[::-1])
    assert decode_form(e.CheckpointPublished, 1, encode(unsorted)) == replace(NEW, trained_on=NEW.trained_on[::-1])


@pytest.mark.parametrize(
    "newest",
    [
        LeaseRequest(checkpoint_step=1, tokens_per_s=2, rows_at_once=0),
        RelayPoll(seen=1, wait_ms=2, wants_peers=False, record=b""),
    ],
)
def test_a_request_of_the_release_before_is_read_and_answered_as_one(newest: Any) -> None:
    old = encode_form(newest, 2)
    assert old != encode_form(newest, PROTOCOL_VERSION)
    assert decode_form(type(newest), 2, old) == newest


def test_an_entry_is_written_in_the_form_of_its_version() -> None:
    assert encode_form(NEW, 1) == encode(OLD)
    assert encode_form(NEW, 2) == encode(NEW)
    assert decode_form(e.CheckpointPublished, 2, encode(NEW)) == NEW
    assert decode_form(e.CheckpointPublished, 99, encode(NEW)) == NEW, "a newer program wrote the form that we know"


@pytest.mark.parametrize(("version", "body"), [(1, NEW), (2, OLD)])
def test_each_version_has_one_form(version: int, body: object) -> None:
    with pytest.raises(RemoteError):
        decode_form(e.CheckpointPublished, version, encode(body))


def test_what_an_old_form_cannot_say_is_refused() -> None:
    many = [digest(str(number)) for number in range(LINEAGE_MAX + 1)]
    parts, rest = make_checkpoint_entries(many, step=Step(1), root=digest("r"), manifest=digest("m"))
    with pytest.raises(RemoteError, match="trained_on_count"):
        encode_form(rest, 1)
    with pytest.raises(RemoteError, match="SubmissionsListed exists from 2 on"):
        encode_form(parts[0], 1)
    with pytest.raises(RemoteError, match="SubmissionsListed exists from 2 on"):
        decode_form(e.SubmissionsListed, 1, encode(parts[0]))


def test_an_author_writes_the_newest_version_that_has_the_demanded_form() -> None:
    assert choose_version(e.CheckpointPublished, 1) == 1
    assert choose_version(e.CheckpointPublished, 2) == PROTOCOL_VERSION
    assert choose_version(e.HeadNoted, 1) == PROTOCOL_VERSION, "its form is the same in every version"


def test_forms_are_numbered_without_a_gap() -> None:
    for kind in (*OLD_FORMS, *FIRST_VERSIONS):
        forms = [find_form(kind, version) for version in range(1, PROTOCOL_VERSION + 1)]
        assert forms == sorted(forms)
        assert forms[-1] == len(OLD_FORMS.get(kind, ()))


def test_the_rules_in_force_decide_the_form_and_the_lowest_version() -> None:
    world = World.started(rules=1)
    _, entry = make_checkpoint_entries((), step=Step(1), root=digest("r"), manifest=digest("m"))
    with world.refuses("Payload.version"):
        world.write("trainer", entry, version=2)
    world.announce_rules(2)
    world.wait(RULES_NOTICE_MS)
    with world.refuses("Payload.version"):
        world.write("trainer", entry, version=1)
    with world.refuses("Payload.version"):
        world.write("coordinator", e.HeadNoted(root=world.state.frontier.root()), version=1)
    world.write("trainer", entry)


def test_a_log_goes_on_under_other_rules_as_one() -> None:
    world = World.started(rules=1)
    before = world.settled("ann", Outcome.ACCEPT)
    world.publish(before)
    old = world.leaves[-3]
    world.announce_rules(2)
    world.wait(RULES_NOTICE_MS)
    after = world.settled("ann", Outcome.ACCEPT, 1)
    world.publish(after)
    assert [world.submission(name).trained_into for name in (before, after)] == [1, 2]
    entry = decode_entry(open_leaf(old, NETWORK)[1])
    assert isinstance(entry, e.CheckpointPublished)
    assert (entry.trained_on, entry.trained_on_count) == ((before,), 1)
