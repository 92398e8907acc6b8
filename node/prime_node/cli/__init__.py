"""The commands of prime-node: each parses, then imports, then runs, and prints through the screen it is given.

Rules of the network and of the node's work must not live here.
"""
