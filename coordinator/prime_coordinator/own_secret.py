"""Secrets of the coordinator that need no file: what is drawn with them stays the same over a restart. Pure."""

from prime_protocol.digests import digest_fields
from prime_protocol.signing import WalletKey


def make_secret(key: WalletKey, purpose: str) -> bytes:
    """One that only this key can give again: a signature that is never shown."""
    return bytes(key.sign(digest_fields(purpose)))
