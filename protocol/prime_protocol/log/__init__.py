"""The append-only Merkle log as C2SP describes it: hashing and proofs, tiles, signed tree heads.

Pure; it knows nothing of what an entry says.
"""
