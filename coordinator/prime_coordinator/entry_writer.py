"""The one place where entries enter the ledger: the coordinator's own, signed here, and those that others sent.

What it has taken in is not yet on disk. Whoever carries `drain()` to the disk answers nobody before that is done; if it
cannot be done, this object is ahead of the disk and must be made anew from it.
"""

from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX, SIGNATURE_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Entry, LogRecord
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, Ledger
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.signing import WalletKey


class EntryWriter:
    """Writes entries and remembers those that are not on disk yet."""

    def __init__(self, key: WalletKey, ledger: Ledger) -> None:
        self._key = key
        self.ledger = ledger
        self._fresh: list[bytes] = []

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    def write(self, entry: Entry, run: RunId | None, now_ms: int, *, key: WalletKey | None = None) -> None:
        """An entry that we found due, by the coordinator's key or another of ours. A refusal is our bug."""
        try:
            self.order(entry, run, now_ms, key=key)
        except RemoteError as error:
            raise AssertionError(f"the ledger refuses our own {entry}: {error}") from error

    def order(self, entry: Entry, run: RunId | None, now_ms: int, *, key: WalletKey | None = None) -> EntryReply:
        """An entry that somebody asked us for; RemoteError if a rule refuses it."""
        assert (run is None) == (ENTRY_RULES[type(entry)].scope is EntryScope.NETWORK)
        author = key or self._key
        at_ms = max(now_ms, self.state.at_ms)
        frame = seal_envelope(
            author,
            kind=type(entry).__name__,
            body=encode(entry),
            network=self.ledger.network,
            run=run,
            sequence=self.state.sequences.get(author.node, -1) + 1,
            issued_at_ms=at_ms,
            life_ms=ENVELOPE_LIFE_MS_MAX,
        )
        # Sealed a moment ago by ourselves: there is no signature to check.
        return self.take(decode(Payload, frame[SIGNATURE_BYTES:]), frame, now_ms)

    def take(self, letter: Payload, frame: bytes, now_ms: int) -> EntryReply:
        """An entry whose envelope was opened already; RemoteError if a rule refuses it."""
        at_ms = max(now_ms, self.state.at_ms)
        index = self.state.size
        self._fresh.append(self.ledger.append(letter, LogRecord(at_ms, frame)))
        return EntryReply(index=index, at_ms=at_ms)

    def drain(self) -> list[bytes]:
        """The leaves since the last call, oldest first: what has to go to disk."""
        fresh, self._fresh = self._fresh, []
        return fresh
