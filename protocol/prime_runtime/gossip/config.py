"""The settings and the status of gossip over libp2p. Importing this module does not need the library."""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Self

from prime_protocol.constants import ADDRESSES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import PeerAddress
from prime_runtime.settings.schema import Between, ConfigError, settings_class

BOOTSTRAP_MAX = 64
LOOPBACK_MULTIADDR = "/ip4/127.0.0.1/tcp/0"


class P2PMode(StrEnum):
    """Whether a program gossips over libp2p."""

    AUTO = "auto"
    """Where the library is installed, as soon as a peer is known."""
    ON = "on"
    """From the start; a missing library is logged as a warning."""
    OFF = "off"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Release 0.1.0 wrote true and false."""
        return {"true": cls.ON, "false": cls.OFF}.get(str(value).lower())


@settings_class
class P2PConfig:
    """The section [p2p]: how this node takes part in gossip."""

    enabled: P2PMode = P2PMode.AUTO
    """Take part in gossip over libp2p. auto: where libp2p is installed, as soon as a peer is known. Without libp2p,
    gossip travels through the coordinator."""
    listen: str = "/ip4/0.0.0.0/tcp/0"
    """Where to listen: /ip4/ADDRESS/tcp/PORT or /ip6/ADDRESS/tcp/PORT; port 0 takes a free port and keeps it over
    restarts; empty: only dial."""
    announce: tuple[str, ...] = ()
    """Addresses to announce instead of the listening address, each /ip4|ip6|dns4|dns6/HOST/tcp/PORT."""
    bootstrap: tuple[str, ...] = ()
    """Further peers to dial first, each /ip4|ip6|dns4|dns6/HOST/tcp/PORT/p2p/PEER-ID. The coordinator names some, and a
    node remembers those that it knew before a restart."""
    allow_private: bool = False
    """Dial private and loopback addresses that peers announce: for networks in one building or on one machine. A node
    that listens on such an address always does so."""
    peers_target: Annotated[int, Between(1, 100)] = 12
    """Connections that this node tries to open. Gossip needs about eight."""
    connections_max: Annotated[int, Between(1, 10_000)] = 200
    """Maximum number of connections. Each costs about 65 kB and 6 tasks."""
    connections_per_address_max: Annotated[int, Between(1, 10_000)] = 8
    """Maximum number of connections from one IPv4 address or IPv6 /64, including unfinished handshakes."""
    ping_ms: Annotated[int, Between(100, 600_000)] = 15_000
    """Interval between pings of a connected peer. A peer that misses two in a row is dropped."""
    exchange_ms: Annotated[int, Between(100, 600_000)] = 30_000
    """Interval between requests to a peer for other peers."""
    call_ms: Annotated[int, Between(100, 600_000)] = 10_000
    """Time limit of a dial, request or publication."""
    inbox_max: Annotated[int, Between(1, 100_000)] = 4_096
    """Accepted messages waiting to be read. When the queue is full, the oldest is dropped and counted."""
    restart_ms: Annotated[int, Between(10, 600_000)] = 500
    """Pause before the first restart after a crash of libp2p; it doubles up to a minute."""
    window_patch: bool = True
    """Send fewer window updates: saves a quarter of the CPU of gossip or more. Turn it off only for debugging."""

    def __post_init__(self) -> None:
        if self.listen and not _is_listen_address(self.listen):
            raise ConfigError(f"p2p.listen is {self.listen!r}; write /ip4/0.0.0.0/tcp/4001, or nothing to only dial")
        for text in self.bootstrap:
            check_peer_address("p2p.bootstrap", text)
        for text in self.announce:
            check_peer_address("p2p.announce", f"{text}/p2p/{EXAMPLE_PEER}")
        if len(self.bootstrap) > BOOTSTRAP_MAX:
            raise ConfigError(f"p2p.bootstrap names {len(self.bootstrap)} peers, allowed are {BOOTSTRAP_MAX}")
        if len(self.announce) > ADDRESSES_MAX:
            raise ConfigError(f"p2p.announce names {len(self.announce)} addresses, allowed are {ADDRESSES_MAX}")
        if self.peers_target > self.connections_max:
            raise ConfigError("p2p.peers_target is above p2p.connections_max")

    @property
    def dials_private(self) -> bool:
        host = self.listen.split("/")[2] if self.listen else "0.0.0.0"
        return self.allow_private or (host not in ANY_ADDRESS and not ip_address(host).is_global)


ANY_ADDRESS = ("0.0.0.0", "::")
EXAMPLE_PEER = "16Uiu2HAm3cuhhRL2msUuLF62KRSfneFDx94RsuouyW25Ho42cFMq"
"""The peer id of secret key 1, to check the form of an address without a peer id."""


def check_peer_address(setting: str, text: str) -> None:
    try:
        PeerAddress.parse(text)
    except RemoteError as error:
        shown = text.removesuffix(f"/p2p/{EXAMPLE_PEER}")
        raise ConfigError(f"{setting}: {shown!r} {error.problem}") from None


def _is_listen_address(text: str) -> bool:
    """`/ip4|ip6/ADDRESS/tcp/PORT`; the address may be the wildcard and the port 0."""
    match text.split("/"):
        case ["", "ip4" | "ip6" as family, host, "tcp", port]:
            everywhere = host in ANY_ADDRESS
            stand_in = ("127.0.0.1" if family == "ip4" else "::1") if everywhere else host
            try:
                PeerAddress.parse(f"/{family}/{stand_in}/tcp/{'1' if port == '0' else port}/p2p/{EXAMPLE_PEER}")
            except RemoteError:
                return False
            return not everywhere or host == ("0.0.0.0" if family == "ip4" else "::")
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedPeer:
    """One open connection, for status pages."""

    peer_id: str
    node: str
    """The address of its key."""
    address: str
    """IP address of the other end; of the relay where there is one."""
    is_outbound: bool
    """This node opened the connection."""
    relay: str
    """Peer id of the relay through which the connection goes; empty: it is direct."""
    connected_ms: int
    """How long it has been open."""
    rtt_ms: int | None
    """Round trip of the last ping; None before the first."""
    bytes_in: int
    bytes_out: int
    """Bytes of this connection, with encryption, without TCP."""
    in_per_s: int
    out_per_s: int
    """The same in a second, over about the last ten."""
    named_by: str
    """Who named the peer first: a peer id, `coordinator` or `saved`; empty: the settings, or it connected to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PStatus:
    """A snapshot of the libp2p node, for status pages and metrics."""

    is_running: bool
    """False before the start, after the stop, and between a crash and the restart that follows."""
    peer_id: str
    addresses: tuple[str, ...]
    """Announced addresses with peer id; empty: outbound only."""
    connected: int
    """Peers with an open connection."""
    known: int
    """Peers with a known address."""
    banned: int
    messages_in: int
    """Accepted messages of other nodes."""
    messages_out: int
    """Published messages, own and forwarded from HTTP."""
    messages_refused: int
    """Messages that broke the rules and were not forwarded."""
    messages_ignored: int
    """Known, old or excess messages that were not forwarded."""
    inbox_dropped: int
    """Accepted messages dropped from a full queue."""
    bytes_in: int
    bytes_out: int
    """Bytes over all connections since the start, with encryption, without TCP."""
    restarts: int
    connections: tuple[ConnectedPeer, ...]
    """Longest open first."""
    last_error: str
    """The last crash of libp2p; empty if there was none."""
