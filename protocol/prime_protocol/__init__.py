"""What all parties of a network agree on: wire formats, the log, the ledger's rules, rollout files, proofs, weights.

Pure: no I/O, clock or randomness; nothing of the programs is imported here.
"""
