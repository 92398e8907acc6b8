"""A process with some gossiping nodes, for bench/gossip.py: `python gossip_load_main.py FIRST COUNT BOOTSTRAP`.

It prints the addresses of its first node. Then it answers each number on a line of its standard input with its counts,
after it has published the message of that number; 0 publishes none.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

from prime_protocol.gossip.messages import CheckpointAnnounced, HeadSeen, ServingRecord
from prime_protocol.wire.ids import Digest
from prime_runtime.gossip.config import P2PConfig
from support.gossip_network import RUN, announced, head_seen, serving, wallet
from support.processes.p2p_nodes import address_of, make_node, started

KEPT = ("peers_target", "ping_ms", "exchange_ms", "call_ms")
"""Settings that are not those of tests."""


def make_message(number: int) -> CheckpointAnnounced | ServingRecord | HeadSeen:
    """Three records, a head and an announcement, as large as those of a run of some hours."""
    match number % 5:
        case 0:
            return announced(number)
        case 1:
            return head_seen(number + 1)
        case _:
            manifests = tuple(Digest((8 * number + each).to_bytes(32, "big")) for each in range(8))
            parents = tuple(wallet(10_000 + each).node for each in range(4))
            return serving(manifests=manifests, parents=parents, sent_bytes=10**12)


async def main(first: int, count: int, bootstrap: str) -> None:
    usual = P2PConfig()
    config = {name: getattr(usual, name) for name in KEPT}
    one = make_node(first, *bootstrap.split(), **config)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(started(one))
        others = [make_node(first + each, address_of(one), **config) for each in range(1, count)]
        await stack.enter_async_context(started(*others))
        nodes = [one, *others]
        print(json.dumps(nodes[0].status().addresses), flush=True)
        async for line in lines:
            if number := int(line):
                # Only the first key may announce.
                await nodes[number % count if number % 5 else 0].publish(RUN, make_message(number))
            states = [node.status() for node in nodes]
            answer = {
                "cpu_s": time.process_time(),
                "bytes": sum(state.bytes_in + state.bytes_out for state in states),
                "messages": sum(state.messages_in for state in states),
                "connected": [state.connected for state in states],
                "restarts": sum(state.restarts for state in states),
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
