"""The settings of the libp2p half, and what it says about itself: what a program needs that may run without it."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated

from prime_protocol.constants import ADDRESSES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import PeerAddress
from prime_runtime.settings.schema import Between, ConfigError, settings_class

BOOTSTRAP_MAX = 64


@settings_class
class P2PConfig:
    """The section [p2p]: how this node takes part in gossip."""

    enabled: bool = False
    """Take part in gossip over libp2p; needs the extra p2p. Without it records travel through the coordinator."""
    listen: str = "/ip4/0.0.0.0/tcp/0"
    """Where to listen: /ip4/ADDRESS/tcp/PORT or /ip6/ADDRESS/tcp/PORT; port 0 takes a free one; empty: only dial."""
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of the one listened on, each /ip4|ip6|dns4|dns6/HOST/tcp/PORT."""
    bootstrap: tuple[str, ...] = ()
    """Peers to dial first, each /ip4|ip6|dns4|dns6/HOST/tcp/PORT/p2p/PEER-ID."""
    allow_private: bool = False
    """Dial private and loopback addresses that other peers tell of: for networks in one building or on one machine. Who
    listens on such an address itself does so anyway."""
    peers_target: Annotated[int, Between(1, 100)] = 12
    """Connections that this node itself tries to have. Gossip needs about eight."""
    connections_max: Annotated[int, Between(1, 10_000)] = 200
    """Most connections at once. Each costs about 65 kB and 6 tasks."""
    connections_per_address_max: Annotated[int, Between(1, 10_000)] = 8
    """Most connections at once from one IPv4 address or IPv6 /64; those still shaking hands count."""
    kademlia: bool = False
    """Also take part in a Kademlia table, for finding peers. Costs CPU; the peer exchange does not need it."""
    ping_ms: Annotated[int, Between(100, 600_000)] = 15_000
    """Between two pings of a connected peer. One that misses two in a row is dropped."""
    exchange_ms: Annotated[int, Between(100, 600_000)] = 30_000
    """Between two rounds of asking peers for other peers, once enough are known."""
    call_ms: Annotated[int, Between(100, 600_000)] = 10_000
    """Longest time that one dial, request or publication may take."""
    inbox_max: Annotated[int, Between(1, 100_000)] = 4_096
    """Accepted messages that wait to be read. When it is full the oldest is dropped and counted."""
    restart_ms: Annotated[int, Between(10, 600_000)] = 500
    """Pause before the first restart of a libp2p half that died; it doubles up to a minute."""
    window_patch: bool = True
    """Send fewer window updates: saves a quarter of the CPU of gossip or more. Off only to look for a fault in it."""

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
"""The peer id of secret 1, to check the form of an address that comes without one."""


def check_peer_address(setting: str, text: str) -> None:
    try:
        PeerAddress.parse(text)
    except RemoteError as error:
        shown = text.removesuffix(f"/p2p/{EXAMPLE_PEER}")
        raise ConfigError(f"{setting}: {shown!r} {error.problem}") from None


def _is_listen_address(text: str) -> bool:
    """`/ip4|ip6/ADDRESS/tcp/PORT` where the address may be that of every interface and the port 0."""
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
class P2PStatus:
    """A moment of the libp2p half, for `status` pages and metrics."""

    is_running: bool
    """False before the start, after the stop, and between a crash and the restart that follows."""
    peer_id: str
    addresses: tuple[str, ...]
    """What others are told to dial, peer id included; empty: outbound only."""
    connected: int
    """Peers with an open connection."""
    known: int
    """Peers that this node could dial."""
    banned: int
    messages_in: int
    """Accepted messages of others."""
    messages_out: int
    """Own and bridged messages that were published."""
    messages_refused: int
    """Messages that broke the rules, and were not passed on."""
    messages_ignored: int
    """Messages that were known, old or too many, and were not passed on."""
    inbox_dropped: int
    """Accepted messages that nobody read in time."""
    restarts: int
    last_error: str
    """Why the libp2p half last died; empty if it never did."""
