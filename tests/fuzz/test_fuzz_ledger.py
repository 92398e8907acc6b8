"""Hostile leaves into the ledger: damaged ones, and damaged entries that are sealed by their honest author."""

from itertools import count

import pytest
from tools.freeze_log import LOGS, read_leaves

from fuzz.harness import assert_survives
from oracle.make_ledger_vectors import tell
from prime_protocol.constants import PROTOCOL_VERSION, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.versions.upgrades import OLD_FORMS, decode_form, encode_form
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import RunId
from support.ledger_network import MINUTE_MS, NETWORK, World

pytestmark = pytest.mark.fuzz

SNAPSHOT_EVERY = 50
"""A snapshot of the state takes as long as ten refusals, so only some of them are compared."""


def refusing(world: World, leaf: bytes, number: int) -> None:
    """Apply a leaf; if it is refused, nothing has changed."""
    before = world.snapshot() if number % SNAPSHOT_EVERY == 0 else None
    try:
        world.ledger.apply(leaf)
    except RemoteError:
        assert before is None or world.snapshot() == before
        raise


def test_damaged_leaves_survive() -> None:
    leaves, numbers = tell().leaves, count()
    world = World.started()

    def parse(leaf: bytes) -> None:
        if leaf in leaves:
            return  # the corpus stands in the log already
        refusing(world, leaf, next(numbers))

    assert_survives(parse, leaves)


def test_damaged_entries_of_honest_authors_survive() -> None:
    """Past the signature: the body is damaged before it is sealed, so the rules themselves meet it."""
    told = tell()
    world = told.fork()
    letters = [decode(Payload, decode(LogRecord, leaf).frame[SIGNATURE_BYTES:]) for leaf in told.leaves]
    corpus = [f"{told.names[each.sender]}/{each.kind}/{each.run or ''}/".encode() + each.body for each in letters]
    numbers = count()

    def parse(raw: bytes) -> None:
        parts = raw.split(b"/", 3)
        if len(parts) < 4 or parts[0].decode("latin-1") not in told.keys:
            raise RemoteError("author", "is nobody here")
        author, kind, run = (part.decode("latin-1") for part in parts[:3])
        number = next(numbers)
        frame = seal_envelope(
            told.key(author),
            kind=kind,
            body=parts[3],
            network=NETWORK,
            run=RunId(run) if run else None,
            sequence=10**6 + number,
            issued_at_ms=world.now_ms,
            life_ms=MINUTE_MS,
        )
        if number >= len(corpus):
            refusing(world, encode(LogRecord(world.now_ms, frame)), number)

    assert_survives(parse, corpus)
    assert world.state.funds.is_conserved()


def test_damaged_bodies_of_old_forms_survive_and_have_one_encoding() -> None:
    """Entries as release 0.1.0 wrote them, through every step to the newest form and back."""
    leaves = read_leaves(LOGS / "0.1.0" / "embedded.entries.zst")
    letters = [decode(Payload, decode(LogRecord, leaf).frame[SIGNATURE_BYTES:]) for leaf in leaves]
    kinds = {kind.__name__: kind for kind in OLD_FORMS}
    corpus = {each.kind.encode() + b"/%d/" % each.version + each.body for each in letters if each.kind in kinds}
    assert len({example.split(b"/")[0] for example in corpus}) > 1

    def parse(raw: bytes) -> None:
        parts = raw.split(b"/", 2)
        if len(parts) < 3 or parts[0].decode("latin-1") not in kinds or not parts[1].isdigit():
            raise RemoteError("kind", "has no old form")
        version = min(int(parts[1]), PROTOCOL_VERSION)
        entry = decode_form(kinds[parts[0].decode()], version, parts[2])
        assert encode_form(entry, version) == parts[2]

    assert_survives(parse, sorted(corpus))
