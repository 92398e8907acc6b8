"""Heads, their cosignatures and the rounds of the randomness chain that draws wait for. Pure.

The ledger decides which round counts and what cosignatures it needs. Here heads are noted, validators are asked to
cosign the newest one, and a round is recorded as soon as its signature is there.
"""

from prime_coordinator.entry_writer import EntryWriter
from prime_protocol.constants import COSIGNATURES_MAX
from prime_protocol.ledger.entries import HeadNoted, RoundRecorded
from prime_protocol.ledger.entry_values import HeadCosignature
from prime_protocol.ledger.randomness import compute_witnesses_needed
from prime_protocol.ledger.rounds import find_cosignature_problem, is_asked, list_unwitnessed_runs
from prime_protocol.ledger.state import LedgerState, PendingRound
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import Cosigned


class WitnessCollector:
    """Cosignatures of the heads that wait for rounds, from heartbeats."""

    def __init__(self, entry_writer: EntryWriter, head_ms: int) -> None:
        self._entry_writer = entry_writer
        self._head_interval_ms = head_ms
        self._noted_ms = 0
        self._collected: dict[NodeId, dict[int, HeadCosignature]] = {}
        """By witness, then by the size of the head."""
        self._signed: tuple[int, bytes] = (0, b"")
        """Size and signed note of the newest head."""
        self._note = self._signed
        """The newest of them that was noted."""
        self.last_witnesses = 0
        """Cosignatures in the last recorded round."""

    @property
    def state(self) -> LedgerState:
        return self._entry_writer.state

    def note_head(self, now_ms: int) -> bool:
        """Note a head, but not too often."""
        if now_ms - self._noted_ms < self._head_interval_ms:
            return False
        self._noted_ms = now_ms
        self._entry_writer.append_own(HeadNoted(root=self.state.frontier.root()), None, now_ms)
        # The log may have signed a head of just this size before it was noted.
        self.set_signed_head(self._signed[1], self._signed[0])
        return True

    def set_signed_head(self, note: bytes, size: int) -> None:
        """A head is signed and in the mirror. Validators are asked to cosign it if it was noted."""
        self._signed = (size, note)
        if size in self.state.noted_heads:
            self._note = self._signed

    def get_note(self, node: NodeId) -> bytes:
        """The signed head that this node is asked to cosign; empty where there is none or the node has done it."""
        size, note = self._note
        if size not in self.state.noted_heads or size in self._collected.get(node, ()):
            return b""
        return note if any(is_asked(pending, node) for pending in self.state.pending_rounds.values()) else b""

    def record(self, node: NodeId, cosigned: Cosigned) -> None:
        """Keep a cosignature of a noted head. Any other is dropped, and the node is asked again."""
        made = HeadCosignature(
            witness=node, head_size=cosigned.head_size, time_s=cosigned.time_s, signature=cosigned.signature
        )
        if any(not self._find_problem(number, made) for number in self.state.pending_rounds):
            self._collected.setdefault(node, {})[made.head_size] = made

    def _find_problem(self, number: int, made: HeadCosignature) -> str:
        return find_cosignature_problem(self.state, self._entry_writer.ledger.network, number, made)

    def get_wanted_round(self, now_ms: int) -> int | None:
        """The round to fetch now: the oldest that is waited for, if it is published by this time."""
        number = next(iter(self.state.pending_rounds), None)
        is_out = number is not None and self.state.randomness.round_time_ms(number) <= now_ms
        return number if is_out else None

    def record_round(self, number: int, signature: bytes, now_ms: int) -> list[NodeId]:
        """Append a round whose signature was verified; returns the witnesses that were asked in vain."""
        pending = self.state.pending_rounds[number]
        found = {
            node: made
            for node in {node for asked in pending.witnesses.values() for node in asked}
            if (made := self._find_cosignature(number, node)) is not None
        }
        chosen = choose_cosignatures(pending, found)
        unwitnessed = list_unwitnessed_runs(pending, {each.witness for each in chosen})
        silent = {node for run in unwitnessed for node in pending.witnesses[run] if node not in found}
        entry = RoundRecorded(round=number, signature=signature, cosignatures=chosen)
        self._entry_writer.append_own(entry, None, now_ms)
        self.last_witnesses = len(chosen)
        self._forget_old()
        return sorted(silent)

    def _find_cosignature(self, number: int, node: NodeId) -> HeadCosignature | None:
        """The newest of this witness that counts for a round. Each look verifies a signature."""
        newest_first = reversed(self._collected.get(node, {}).values())
        return next((made for made in newest_first if not self._find_problem(number, made)), None)

    def _forget_old(self) -> None:
        kept = {
            node: {size: made for size, made in sizes.items() if size in self.state.noted_heads}
            for node, sizes in self._collected.items()
        }
        self._collected = {node: sizes for node, sizes in kept.items() if sizes}


def choose_cosignatures(pending: PendingRound, found: dict[NodeId, HeadCosignature]) -> tuple[HeadCosignature, ...]:
    """For each run as many as it needs, and none for a run that has too few."""
    chosen: set[NodeId] = set()
    for asked in pending.witnesses.values():
        present = [node for node in asked if node in found]
        needed = compute_witnesses_needed(len(asked))
        if len(present) >= needed and len(chosen) + needed <= COSIGNATURES_MAX:
            chosen.update(present[:needed])
    return tuple(found[node] for node in sorted(chosen))
