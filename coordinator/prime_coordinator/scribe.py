"""The one place where entries enter the ledger: the coordinator's own, signed here, and those that others sent.

What it has taken in is not yet on disk. Whoever carries `drain()` to the disk answers nobody before that is done; if it
cannot be done, this object is ahead of the disk and must be made anew from it.
"""

from prime_protocol.codec import encode
from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX
from prime_protocol.entries import Entry, Record
from prime_protocol.envelope import Letter, open_envelope, seal
from prime_protocol.ids import RunId
from prime_protocol.ledger import RULES, Ledger, Scope
from prime_protocol.messages import Logged
from prime_protocol.signing import WalletKey
from prime_protocol.state import State


class Scribe:
    """Writes entries and remembers those that are not on disk yet."""

    def __init__(self, key: WalletKey, ledger: Ledger) -> None:
        self._key = key
        self.ledger = ledger
        self._fresh: list[bytes] = []

    @property
    def state(self) -> State:
        return self.ledger.state

    def write(self, entry: Entry, run: RunId | None, now_ms: int) -> None:
        """An entry of the coordinator's own. That it is refused would be a bug of ours."""
        assert (run is None) == (RULES[type(entry)].scope is Scope.NETWORK)
        at_ms = max(now_ms, self.state.at_ms)
        frame = seal(
            self._key,
            kind=type(entry).__name__,
            body=encode(entry),
            network=self.ledger.network,
            run=run,
            sequence=self.state.sequences.get(self._key.node, -1) + 1,
            issued_at_ms=at_ms,
            life_ms=ENVELOPE_LIFE_MS_MAX,
        )
        letter = open_envelope(frame, network=self.ledger.network).letter
        self._fresh.append(self.ledger.append(letter, Record(at_ms, frame)))

    def take(self, letter: Letter, frame: bytes, now_ms: int) -> Logged:
        """An entry that somebody else wrote and whose envelope was opened already; RemoteError if a rule refuses it."""
        at_ms = max(now_ms, self.state.at_ms)
        index = self.state.size
        self._fresh.append(self.ledger.append(letter, Record(at_ms, frame)))
        return Logged(index=index, at_ms=at_ms)

    def drain(self) -> list[bytes]:
        """The leaves since the last call, oldest first: what has to go to disk."""
        fresh, self._fresh = self._fresh, []
        return fresh
