"""`prime-node peers`: the connections of the running node over libp2p."""

import asyncio
from typing import Any

from prime_node.cli.context import NodeCliContext, call_node
from prime_node.status.status_model import Grid, Tone, printable
from prime_protocol.wire.ids import NodeId, friendly_name
from prime_runtime.formatting import format_bytes, format_duration

HEADERS = (
    "peer",
    "node",
    "address",
    "round trip",
    "depth",
    "in",
    "out",
    "open for",
    "opened by",
    "through",
    "found by",
)
PEER_CHARS = 8
"""Of a peer id: its beginning is the same for all."""


def show_peers(context: NodeCliContext) -> int:
    report = asyncio.run(call_node(context.folder, "GET", "/status"))
    p2p = report.get("p2p", {"text": "the node has not joined yet", "connections": []})
    if context.args.json:
        context.screen.print_json(p2p["connections"])
        return 0
    context.screen.print_line(printable(p2p["text"]))
    if p2p["connections"]:
        grid = make_peers_grid(p2p["connections"])
        context.screen.show(context.screen.table(grid.headers, grid.rows))
    return 0


def make_peers_grid(connections: list[dict[str, Any]]) -> Grid:
    """Longest open first, as in the report."""
    rows = tuple(
        (
            friendly_name(NodeId.parse(each["node"])),
            each["node"],
            printable(each["address"]),
            "-" if each["rtt_ms"] is None else f"{each['rtt_ms']} ms",
            "-" if each["depth"] is None else str(each["depth"]),
            f"{format_bytes(each['in_per_s'])}/s, {format_bytes(each['bytes_in'])}",
            f"{format_bytes(each['out_per_s'])}/s, {format_bytes(each['bytes_out'])}",
            format_duration(each["connected_ms"]),
            "this node" if each["is_outbound"] else "the peer",
            f"relay {_shorten(each['relay'])}" if each["relay"] else "direct",
            _shorten(each["named_by"]) or ("settings" if each["is_outbound"] else "itself"),
        )
        for each in connections
    )
    return Grid(HEADERS, rows, (Tone.PLAIN,) * len(rows))


def _shorten(name: str) -> str:
    """A peer id by its end; other words as they are."""
    return f"…{name[-PEER_CHARS:]}" if len(name) > 2 * PEER_CHARS else name
