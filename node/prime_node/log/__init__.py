"""Rim: reads the public log: compares tree heads, follows this node's submissions.

public_api is pure parsing. Nothing here writes to the log; entries go through agent/.
"""
