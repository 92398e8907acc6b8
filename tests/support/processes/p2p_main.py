"""A node as a process of its own: `python p2p_main.py NUMBER BOOTSTRAP`. It prints when it is connected, and stays."""

import asyncio
import sys

from support.processes.p2p_nodes import eventually, make_node, started


async def main(number: int, bootstrap: str) -> None:
    node = make_node(number, bootstrap, peers_target=1)
    async with started(node):
        await eventually(lambda: node.status().connected > 0)
        print("connected", flush=True)
        await node.receive()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
