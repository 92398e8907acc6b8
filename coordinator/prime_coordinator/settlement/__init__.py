"""How value enters and leaves the ledger: embedded in the log, or held by contracts on an EVM chain.

actions, chain_events and slash_cases are pure; the rest is rim. Only this folder knows that a chain exists.
"""
