"""Planted work: which of our own workers' leases are to be answered well or badly, sealed when they are granted. Pure.

What a seal means to the books is in prime_protocol.ledger.plants. The planted worker shares the secret, so it knows
what to
make; nobody else can tell its leases from others.
"""

from collections.abc import Iterable

from prime_coordinator.audits.validators import derive_secret
from prime_coordinator.constants import PLANT_BAD_BPS
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.entries import Outcome, PlantRevealed
from prime_protocol.ledger.plants import plant_seal
from prime_protocol.ledger.randomness import encode_u64, first_u64
from prime_protocol.ledger.state import SubmissionState
from prime_protocol.wire.ids import Digest, NodeId, RunId, digest_fields
from prime_protocol.wire.signing import WalletKey


class Plants:
    """Our planted workers' keys, and the secret from which seals follow."""

    def __init__(self, secret: bytes, keys: Iterable[WalletKey] = ()) -> None:
        self._secret = secret
        self._keys: dict[NodeId, WalletKey] = {key.node: key for key in keys}

    @classmethod
    def of(cls, key: WalletKey, planted: Iterable[WalletKey] = ()) -> "Plants":
        return cls(derive_secret(key, "plant secret/1"), planted)

    def key(self, node: NodeId) -> WalletKey | None:
        return self._keys.get(node)

    def planned(self, run: RunId, lease: int) -> Outcome:
        """What the answer to a planted worker's lease is to be."""
        draw = first_u64(self._digest("plant plan/1", run, lease)) % BASIS_POINTS
        return Outcome.FRAUDULENT if draw < PLANT_BAD_BPS else Outcome.ACCEPT

    def seal(self, run: RunId, lease: int, node: NodeId) -> Digest:
        """Of any lease: one that can be opened where the node is ours, else one that nobody can."""
        if node not in self._keys:
            return self._digest("plant blank/1", run, lease)
        return plant_seal(self._salt(run, lease), self.planned(run, lease))

    def reveal(self, run: RunId, name: Digest, submission: SubmissionState) -> PlantRevealed | None:
        """What opens a planted submission's seal; None for all others."""
        if submission.node not in self._keys:
            return None
        salt, outcome = self._salt(run, submission.lease), self.planned(run, submission.lease)
        if plant_seal(salt, outcome) != submission.seal:
            return None  # granted under another secret
        return PlantRevealed(submission=name, outcome=outcome, salt=salt)

    def _salt(self, run: RunId, lease: int) -> Digest:
        return self._digest("plant salt/1", run, lease)

    def _digest(self, domain: str, run: RunId, lease: int) -> Digest:
        return digest_fields(domain, self._secret, run.encode(), encode_u64(lease))
