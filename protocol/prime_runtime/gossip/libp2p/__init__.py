"""libp2p behind a guard, in a thread of its own: gossip, peer exchange, liveness. Only here are trio and libp2p used.

Importing this package without the library is a LocalError. A program that can do without it takes its settings from
prime_runtime.gossip.config and imports this when it starts. The library itself, a second of work, is loaded by `start`.
"""

from importlib.util import find_spec

from prime_protocol.errors import LocalError
from prime_runtime.gossip.config import P2PConfig, P2PStatus
from prime_runtime.gossip.libp2p.node import P2PNode

if find_spec("libp2p") is None or find_spec("trio") is None:
    raise LocalError(
        "gossip needs the library libp2p: pip install 'prime-swarm[p2p]' (it builds with gcc and libgmp-dev)"
    )


__all__ = ["P2PConfig", "P2PNode", "P2PStatus"]
