"""The only way into the ledger: the coordinator's own entries, signed here, and entries that others sent. Pure.

An appended entry is not on disk yet. The shell writes `drain()` to disk before it answers anyone. If that write fails,
this object is ahead of the disk and must be rebuilt from it.
"""

from collections.abc import Callable

from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Entry, LogRecord
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, Ledger
from prime_protocol.ledger.state import LedgerState
from prime_protocol.ledger.versions.upgrades import choose_version, encode_form
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.signing import WalletKey


class EntryWriter:
    """Appends entries and keeps those that are not on disk yet."""

    def __init__(self, key: WalletKey, ledger: Ledger) -> None:
        self._key = key
        self.ledger = ledger
        self._unwritten: list[bytes] = []
        self.on_own_entry: Callable[[Entry, RunId | None], None] = lambda entry, run: None
        """Called after each entry that was signed here."""

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    def append_own(self, entry: Entry, run: RunId | None, now_ms: int, *, key: WalletKey | None = None) -> None:
        """Append an entry that is due, signed by the coordinator or another key of ours. A refusal is our bug."""
        try:
            self.append_requested(entry, run, now_ms, key=key)
        except RemoteError as error:
            raise AssertionError(f"the ledger refuses our own {entry}: {error}") from error

    def append_requested(
        self, entry: Entry, run: RunId | None, now_ms: int, *, key: WalletKey | None = None
    ) -> EntryReply:
        """Sign and append an entry on request; RemoteError if a rule refuses it."""
        assert (run is None) == (ENTRY_RULES[type(entry)].scope is EntryScope.NETWORK)
        author = key or self._key
        rules = self.state.rules.get_version(max(now_ms, self.state.at_ms))
        version = choose_version(type(entry), rules)
        frame = seal_envelope(
            author,
            kind=type(entry).__name__,
            body=encode_form(entry, version),
            network=self.ledger.network,
            run=run,
            sequence=self.state.sequences.get(author.node, -1) + 1,
            issued_at_ms=max(now_ms, self.state.at_ms),
            life_ms=ENVELOPE_LIFE_MS_MAX,
            version=version,
        )
        # We have just signed it: there is no signature to verify.
        logged = self.append_received(decode(Payload, frame[SIGNATURE_BYTES:]), frame, now_ms)
        self.on_own_entry(entry, run)
        return logged

    def append_received(self, payload: Payload, frame: bytes, now_ms: int) -> EntryReply:
        """Append an entry whose envelope was verified; RemoteError if a rule refuses it."""
        at_ms = max(now_ms, self.state.at_ms)
        index = self.state.size
        self._unwritten.append(self.ledger.append(payload, LogRecord(at_ms, frame)))
        return EntryReply(index=index, at_ms=at_ms)

    def drain(self) -> list[bytes]:
        """The leaves since the last call, oldest first; the caller must write them to disk."""
        leaves, self._unwritten = self._unwritten, []
        return leaves
