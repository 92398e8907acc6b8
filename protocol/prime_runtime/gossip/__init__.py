"""How gossip leaves and enters a program: a publisher, transports over HTTP and libp2p, and their settings.

Rim. Which message is valid is decided by prime_protocol.gossip.messages; only the subpackage libp2p imports trio and
libp2p.
"""
