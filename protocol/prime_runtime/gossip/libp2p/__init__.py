"""libp2p behind a guard, in a thread of its own. Rim; the only package that imports trio and libp2p.

Importing it without the library is a LocalError. Programs that can run without it import prime_runtime.gossip.config.
Loading the library takes a second, so `P2PNode.start` does it.
"""

from importlib.util import find_spec

from prime_protocol.errors import LocalError

if find_spec("libp2p") is None or find_spec("trio") is None:
    raise LocalError(
        "gossip needs the library libp2p: pip install 'prime-swarm[p2p]' (it builds with gcc and libgmp-dev)"
    )
