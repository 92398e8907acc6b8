"""The entries of the log and the state they fold into: accounts, work, audits, rewards, randomness.

Pure. Storage, scheduling and policy of a coordinator do not live here.
"""
