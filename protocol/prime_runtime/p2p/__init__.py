"""libp2p behind a guard: gossip, peer exchange and liveness, in a thread of its own. Only here are trio and libp2p used.

Importing this package is cheap; the library is loaded when a P2PNode starts.
"""

from prime_runtime.p2p.config import P2PConfig
from prime_runtime.p2p.status import P2PStatus
from prime_runtime.p2p.supervisor import P2PNode

__all__ = ["P2PConfig", "P2PNode", "P2PStatus"]
