"""A coordinator that cheats when a file in its folder says so: `python cheating_coordinator_main.py FOLDER`.

Its own code must accept what it forges, or it would stop. So a forged leaf goes past its rules: into the tree and to
the disk, signed with its key, as an operator with a changed program would do it.
"""

import sys
from pathlib import Path

from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.ledger.entries import Deposited, LogRecord
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest
from support.processes.coordinator_main import main

MINT, HURRY = "mint", "hurry"
"""Names of the files: credit a deposit a second time; write an entry with a time that has not come."""
AHEAD_MS = 3_600_000


class CheatingWriter:
    """What replaces EntryWriter.drain."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drain = EntryWriter.drain

    def drain(self, writer: EntryWriter) -> list[bytes]:
        leaves = self._drain(writer)
        for name, ahead_ms in ((MINT, 0), (HURRY, AHEAD_MS)):
            if (self._folder / name).exists():
                (self._folder / name).unlink()
                leaves.append(forge_deposit(writer, ahead_ms))
        return leaves


def forge_deposit(writer: EntryWriter, ahead_ms: int) -> bytes:
    state = writer.state
    at_ms = state.at_ms + ahead_ms
    assert state.coordinator is not None
    # The first deposit of these tests has this reference; one with another is allowed, and only its time is wrong.
    reference = Digest(bytes(32)) if ahead_ms == 0 else Digest(bytes(31) + b"\x01")
    frame = seal_envelope(
        writer._key,
        kind="Deposited",
        body=encode(Deposited(account=state.coordinator, amount_nano=10**9, reference=reference)),
        network=writer.ledger.network,
        run=None,
        sequence=state.sequences[state.coordinator] + 1,
        issued_at_ms=at_ms,
        life_ms=60_000,
    )
    leaf = encode(LogRecord(at_ms, frame))
    state.sequences[state.coordinator] += 1
    state.at_ms = at_ms
    state.frontier = state.frontier.append(compute_leaf_hash(leaf))
    return leaf


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    cheat = CheatingWriter(folder)
    EntryWriter.drain = lambda writer: cheat.drain(writer)  # type: ignore[method-assign]
    sys.exit(main(folder))
