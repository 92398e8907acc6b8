"""Planted files: submissions whose truth was fixed before they were made, to see what validators say about them.

Every lease carries a seal. Nobody can tell that of a planted lease from the others until its worker opens it.
"""

from prime_protocol.ledger.entries import Outcome
from prime_protocol.wire.ids import Digest, digest_fields


def plant_seal(salt: Digest, outcome: Outcome) -> Digest:
    """What a planted lease commits to: that an honest validator finds this outcome."""
    return digest_fields("plant/1", salt, outcome.encode())
