"""libp2p behind a guard, in a thread of its own: gossip, peer exchange, liveness. Only here are trio and libp2p used.

Importing this package without the library is a LocalError. A program that can do without it takes its settings from
prime_runtime.p2p_config and imports this when it starts. The library itself, a second of work, is loaded by `start`.
"""

from importlib.util import find_spec

from prime_protocol.errors import LocalError

if find_spec("libp2p") is None or find_spec("trio") is None:
    raise LocalError(
        "gossip needs the library libp2p: pip install 'prime-swarm[p2p]' (it builds with gcc and libgmp-dev)"
    )

from prime_runtime.p2p.supervisor import P2PNode
from prime_runtime.p2p_config import P2PConfig, P2PStatus

__all__ = ["P2PConfig", "P2PNode", "P2PStatus"]
