"""The ledger state as bytes: the versioned form of a snapshot, its codecs, submissions that stay packed. Pure."""
