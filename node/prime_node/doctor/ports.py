"""Whether the node could listen where its settings say."""

import socket
from contextlib import closing

from prime_node.config import NodeConfig
from prime_node.doctor.facts import PortFacts


def examine_port(config: NodeConfig, *, is_running: bool) -> PortFacts:
    """`is_running`: our own node holds the port, so it is taken rightly."""
    listen = config.listen
    problem = "" if is_running or not config.announce else try_port(listen.host, listen.port)
    return PortFacts(
        announce=config.announce,
        listen=f"{listen.host} port {listen.port or 'any'}",
        problem=problem,
        is_ours=is_running,
    )


def try_port(host: str, port: int) -> str:
    """Why it cannot be bound; empty where it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with closing(socket.socket(*found[0][:3])) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
