"""The messages nodes publish unasked, the HTTP relay of the same frames, and the guard that validates them.

Pure; transports live in prime_runtime.gossip.
"""
