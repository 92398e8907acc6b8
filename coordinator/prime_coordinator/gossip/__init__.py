"""The coordinator's part in gossip: the relay of messages (relay.py, pure), its HTTP endpoints and the libp2p bridge
(rim). Who may send what is decided by prime_protocol's gossip guard.
"""
