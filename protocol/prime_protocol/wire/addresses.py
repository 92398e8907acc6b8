"""Where a node can be reached, as text: the one accepted form of a server's URL and of a libp2p address.

Addresses come from strangers, and other nodes connect to them. So each address has one spelling, with nothing hidden in
it. Link-local addresses are refused (clouds serve their secrets there), and so are multicast and unspecified ones.
Private and loopback addresses pass, because a network may run in one building.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Self

from prime_protocol.constants import ADDRESS_CHARS_MAX, HOST_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import NodeId

LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*")
SERVER_URL = re.compile(r"(https?)://(\[[0-9a-f:.]{2,45}\]|[a-z0-9.-]{1,253}):([1-9][0-9]{0,4})")
PEER_ADDRESS = re.compile(
    r"/(ip4|ip6|dns4|dns6)/([a-z0-9.:-]{1,253})/tcp/([1-9][0-9]{0,4})/p2p/([1-9A-HJ-NP-Za-km-z]{50,56})"
)
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """`http://host:port`, nothing after it. An IPv6 host stands in brackets."""

    scheme: str
    host: str
    """Without brackets."""
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        match = SERVER_URL.fullmatch(text) if len(text) <= ADDRESS_CHARS_MAX else None
        if match is None:
            raise RemoteError("", "must be http://host:port or https://host:port, in lower case and nothing after it")
        scheme, host, port = match[1], match[2].strip("[]"), _parse_port(match[3])
        if match[2] != host:
            _check_ip(host, IPv6Address)
        elif host.rpartition(".")[2].isdigit():
            _check_ip(host, IPv4Address)
        else:
            _check_name(host)
        return cls(scheme=scheme, host=host, port=port)

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """`/ip4/…/tcp/…/p2p/…`: where a libp2p host listens, and whose key it must prove to have."""

    family: str
    """ip4, ip6, dns4 or dns6."""
    host: str
    port: int
    peer: str
    """The peer id, which holds the public key."""
    node: NodeId
    """The address of that key."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        match = PEER_ADDRESS.fullmatch(text) if len(text) <= ADDRESS_CHARS_MAX else None
        if match is None:
            raise RemoteError("", "must be /ip4/…/tcp/…/p2p/… with ip4, ip6, dns4 or dns6, and nothing after it")
        family, host, port, peer = match[1], match[2], _parse_port(match[3]), match[4]
        if family == "ip4":
            _check_ip(host, IPv4Address)
        elif family == "ip6":
            _check_ip(host, IPv6Address)
        else:
            _check_name(host)
        from prime_protocol.wire.signing import compute_peer_address  # here, because every `--help` imports this module

        return cls(family=family, host=host, port=port, peer=peer, node=compute_peer_address(peer))

    def __str__(self) -> str:
        return f"/{self.family}/{self.host}/tcp/{self.port}/p2p/{self.peer}"


def _parse_port(text: str) -> int:
    if int(text) > PORT_MAX:
        raise RemoteError("", f"has port {text}, allowed is 1 to {PORT_MAX}")
    return int(text)


def _check_ip(host: str, kind: type[IPv4Address] | type[IPv6Address]) -> None:
    try:
        parsed = ip_address(host)
    except ValueError:
        raise RemoteError("", f"has the host {host}, which is no IP address") from None
    if not isinstance(parsed, kind) or str(parsed) != host:
        raise RemoteError("", f"has the host {host}, which is not in the shortest form of {kind.__name__}")
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped:
        raise RemoteError("", f"has the host {host}: write the IPv4 address itself")
    if parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified:
        raise RemoteError("", f"has the host {host}, at which no other node can be")


def _check_name(host: str) -> None:
    if len(host) > HOST_CHARS_MAX or not DNS_NAME.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise RemoteError("", f"has the host {host[:64]}, which is no DNS name in lower case")
