"""Following a log's keys: which key signs which head, and what convinces a reader that a key was rotated."""

import pytest

from prime_protocol.constants import KEY_FILE_BYTES_MAX, KEY_ROTATION_PAUSE_MS, KEY_ROTATIONS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.keys.rotation import make_coordinator_rotation, make_log_key_rotation
from prime_protocol.ledger.entries import NodeRegistered, Role
from prime_protocol.log.tree_head import SignedNote, sign_note
from support.ledger_network import NETWORK, log_key, verifier
from support.rotated_log import ORIGIN, RotatedLog


@pytest.fixture
def log() -> RotatedLog:
    """Entry 4 rotates the log key, entry 7 the coordinator's, entry 8 the log key again."""
    made = RotatedLog.begun(4)
    made.rotate_log_key("second")
    made.grow(2)
    made.rotate_coordinator("next")
    made.wait(KEY_ROTATION_PAUSE_MS)
    made.rotate_log_key("third")
    made.grow(1)
    return made


def test_a_head_is_signed_by_the_key_of_its_size(log: RotatedLog) -> None:
    chain = log.chain
    for size, name in (
        (0, "first"),
        (1, "first"),
        (4, "first"),
        (5, "second"),
        (8, "second"),
        (9, "third"),
        (10, "third"),
    ):
        assert chain.open_head(log.head(size, name)).size == size
        assert chain.get_log_key(size) == verifier(name)


@pytest.mark.parametrize(("size", "name", "entry"), [(5, "first", 4), (10, "first", 4), (9, "second", 8)])
def test_a_head_by_a_rotated_key_is_refused_with_the_entry_that_rotated_it(
    log: RotatedLog, size: int, name: str, entry: int
) -> None:
    note = log.head(size, name)
    assert log.chain.find_rotated_signer(note) == entry
    with pytest.raises(RemoteError, match=f"is by the key that was rotated at entry {entry}"):
        log.chain.open_head(note)


def test_a_key_does_not_sign_heads_before_its_own_rotation(log: RotatedLog) -> None:
    note = log.head(4, "second")
    assert log.chain.find_rotated_signer(note) is None
    with pytest.raises(RemoteError, match="has none by a trusted key"):
        log.chain.open_head(note)
    with pytest.raises(RemoteError, match="has none by a trusted key"):
        log.chain.open_head(log.head(10, "stranger"))


def test_a_head_that_both_keys_signed_counts(log: RotatedLog) -> None:
    note = SignedNote.parse(log.head(10, "third"))
    both = SignedNote(note.text, (sign_note(note.text, ORIGIN, log_key("first")), *note.signatures))
    assert log.chain.open_head(both.encode()).size == 10


def test_entries_have_the_coordinator_of_their_number(log: RotatedLog) -> None:
    chain = log.chain
    assert chain.founder == chain.get_coordinator(0) == chain.get_coordinator(7) == log.id("coordinator")
    assert chain.coordinator == chain.get_coordinator(8) == log.id("next")
    assert chain.has_coordinator(log.id("coordinator"))
    assert not chain.has_coordinator(log.id("stranger"))
    assert chain.has_log_key(verifier("second"))
    assert not chain.has_log_key(verifier("stranger"))
    assert (chain.log_key, chain.newest_index, chain.get_indexes()) == (verifier("third"), 8, [0, 4, 7, 8])


def test_the_state_and_the_leaves_give_the_same_chain(log: RotatedLog) -> None:
    assert KeyChain.of_state(NETWORK, log.state) == log.chain
    fresh = RotatedLog.begun()
    assert KeyChain.of_state(NETWORK, fresh.state) == fresh.chain


def test_a_chain_grows_at_its_end_only(log: RotatedLog) -> None:
    begun = KeyChain.begin(log.leaves[0], NETWORK)
    assert begun.is_continued_by(log.chain)
    assert log.chain.is_continued_by(log.chain)
    assert not log.chain.is_continued_by(begun)
    other = RotatedLog.begun()
    other.rotate_log_key("thief")
    assert not log.chain.is_continued_by(other.chain)


def test_a_leaf_that_rotates_nothing_is_refused(log: RotatedLog) -> None:
    world = RotatedLog.begun()
    world.deposit("ann", 1)
    with pytest.raises(RemoteError, match="rotates no key"):
        KeyChain.begin(world.leaves[0], NETWORK).extend(world.leaves[1])
    with pytest.raises(RemoteError, match="must be NetworkCreated"):
        KeyChain.begin(log.leaves[4], NETWORK)


def test_rotations_come_in_order(log: RotatedLog) -> None:
    chain = log.chain
    late = log.seal("next", make_log_key_rotation(NETWORK, index=8, old=log_key("third"), new=log_key("fourth")))
    with pytest.raises(RemoteError, match="the rotation before it is entry 8"):
        chain.extend(late)
    again = make_coordinator_rotation(NETWORK, index=5, old=log.id("next"), new=log.key("another"))
    with pytest.raises(RemoteError, match="the rotation before it is entry 8"):
        chain.extend(log.seal("next", again))


def test_a_thief_of_the_old_keys_cannot_continue_a_newer_chain(log: RotatedLog) -> None:
    """It holds the first log key and the first coordinator key; both were rotated."""
    by_old_author = log.seal(
        "coordinator", make_log_key_rotation(NETWORK, index=12, old=log_key("first"), new=log_key("thief"))
    )
    with pytest.raises(RemoteError, match="the coordinator is"):
        log.chain.extend(by_old_author)
    by_old_key = log.seal("next", make_log_key_rotation(NETWORK, index=12, old=log_key("first"), new=log_key("thief")))
    with pytest.raises(RemoteError, match="old_signature"):
        log.chain.extend(by_old_key)


def test_the_key_file_is_bounded_and_strict(log: RotatedLog) -> None:
    raw = log.key_file.encode()
    assert KeyFile.parse(raw) == log.key_file
    for wrong in (raw + b"\0", raw[:-1], b"", KeyFile(log.key_file.leaves[:1] * (KEY_ROTATIONS_MAX + 2)).encode()):
        with pytest.raises(RemoteError):
            KeyFile.parse(wrong)
    largest = max(map(len, log.key_file.leaves))
    assert largest * (KEY_ROTATIONS_MAX + 1) <= KEY_FILE_BYTES_MAX


def test_the_chain_of_a_whole_log_is_found_entry_by_entry(log: RotatedLog) -> None:
    """As those who read every entry do it."""
    chain = KeyChain.begin(log.leaves[0], NETWORK)
    for index, leaf in enumerate(log.leaves[1:], 1):
        chain = chain.extend_if_rotation(index, leaf)
    assert chain == log.chain
    with pytest.raises(RemoteError, match="is 4, this is entry 5"):
        KeyChain.begin(log.leaves[0], NETWORK).extend_if_rotation(5, log.leaves[4])


def test_an_entry_that_only_mentions_a_rotation_is_none() -> None:
    log = RotatedLog.begun()
    log.write("ann", NodeRegistered(roles=(Role.WORKER,), hardware="LogKeyRotated"))
    assert log.chain.extend_if_rotation(1, log.leaves[1]) == log.chain


def test_a_chain_has_a_bounded_number_of_rotations(log: RotatedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_protocol.keys.chain.KEY_ROTATIONS_MAX", 2)
    with pytest.raises(RemoteError, match="are more than 2"):
        KeyChain.of_leaves(log.key_file.leaves, NETWORK)


def test_whether_a_rotated_key_signed_can_be_asked_of_any_bytes(log: RotatedLog) -> None:
    assert log.chain.is_by_rotated_key(log.head(10, "first"))
    assert not log.chain.is_by_rotated_key(log.head(10, "third"))
    assert not log.chain.is_by_rotated_key(b"no note")
