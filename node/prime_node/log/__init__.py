"""Rim: reads the public log: compares tree heads, replays the ledger's rules, follows this node's submissions.

replay and public_api are pure. Nothing here writes to the log; entries go through agent/.
"""
