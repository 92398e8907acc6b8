"""The circumstances of one entry: who wrote it, for which run, and when the log took it in."""

from dataclasses import dataclass

from prime_protocol.ids import Digest, NetworkId, NodeId, RunId


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands in the log, and a digest of its body: a word that is sent again is known by it."""

    index: int
    at_ms: int
    body: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Taken from the entry's opened envelope and its record."""

    network: NetworkId
    run: RunId | None
    author: NodeId
    at_ms: int
    index: int
    """Number of the entry in the log."""
    version: int
    body: Digest
    """SHA-256 of the letter's body."""
    is_signed: bool = False
    """The signatures inside the entry were checked before, by this very party."""

    def place(self) -> Place:
        return Place(self.index, self.at_ms, self.body)

    def run_name(self) -> RunId:
        """The run this entry is about. ledger.py has refused entries that lack one and need it."""
        assert self.run is not None
        return self.run
