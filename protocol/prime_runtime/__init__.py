"""What the programs share: HTTP, settings, object stores, sandbox, gossip, weights on disk, the chain client.

Rim: this package does I/O. Rules of the protocol belong in prime_protocol, and nothing here imports a program.
"""
