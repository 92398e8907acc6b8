"""Rim: transactions on the chain that the network settles on.

Imports web3 lazily, since most nodes never need it. Must not be imported at module level by the daemon's other parts.
"""
