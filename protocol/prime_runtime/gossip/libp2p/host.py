"""Creates and runs a libp2p host: TCP, Noise, yamux, one identity, behind the guard. Runs in the trio thread."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.utils.address_validation import get_available_interfaces
from multiaddr import Multiaddr

from prime_protocol.constants import ADDRESSES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.patches import InboundGuard
from prime_runtime.gossip.libp2p.peer_table import parse_peer_address

UPGRADE_S = 4.0
"""Time for a handshake. Honest peers take 0.1 s; an idle socket occupies a slot for this long."""
NEGOTIATE_S = 5.0
CLOSE_S = 5.0


def make_host(key: WalletKey, config: P2PConfig, inbound: InboundGuard) -> Any:
    """A guarded host, not running yet. The library's own dialler is off: the peer table decides whom to dial."""
    pair = create_new_key_pair(key.secret())
    host = new_host(
        key_pair=pair,
        # The library's default would also accept plaintext.
        sec_opt={NOISE: NoiseTransport(pair, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX): Yamux},
        disable_identify_address_discovery=True,
        announce_addrs=[Multiaddr(address) for address in config.announce] or None,
        connection_config=ConnectionConfig(
            min_connections=0,
            low_watermark=0,
            high_watermark=config.connections_max,
            max_connections=config.connections_max,
            max_connections_per_peer=2,
            inbound_upgrade_timeout=UPGRADE_S,
            outbound_upgrade_timeout=UPGRADE_S,
            dial_timeout=config.call_ms / 1000,
            outbound_stream_protocol_negotiation_timeout=NEGOTIATE_S,
            inbound_stream_protocol_negotiation_timeout=NEGOTIATE_S,
        ),
    )
    network = host.get_network()
    # One attempt each: the peer table decides when to retry.
    network.retry_config = RetryConfig(max_retries=0)
    # Watermarks of 0 do not disable it: it dials any address that a peer sends in identify.
    network.auto_connector.maybe_connect = _dial_nobody
    inbound.guard(host)
    return host


async def _dial_nobody() -> None:
    """Replaces the library's dialler."""


@asynccontextmanager
async def run_host(host: Any, listen: str) -> AsyncIterator[None]:
    """Listen, or LocalError. At the end all connections are closed, so that peers notice at once."""
    if listen:
        check_port_free(listen)
    async with host.run([Multiaddr(listen)] if listen else []):
        try:
            if listen and not host.get_transport_addrs():
                raise LocalError(f"cannot listen on {listen}: see the setting p2p.listen")
            yield
        finally:
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
                await host.close()


def check_port_free(listen: str) -> None:
    """LocalError if the port is in use: the library would share it silently, and report no error."""
    _, family, address, _, port = listen.split("/")
    kind = socket.AF_INET6 if family == "ip6" else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, int(port)))
            if int(port):
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LocalError(f"port {port} is in use, perhaps by another node: change p2p.listen") from None
            raise LocalError(f"cannot listen on {listen}: {error.strerror}; see the setting p2p.listen") from None


async def resolve_address(text: str) -> str:
    """Resolve the DNS name of an address with the system resolver; the library would query DNS itself."""
    address = PeerAddress.parse(text)
    if address.family.startswith("ip"):
        return text
    family, kind = ("ip4", socket.AF_INET) if address.family == "dns4" else ("ip6", socket.AF_INET6)
    found = await trio.socket.getaddrinfo(address.host, address.port, kind, socket.SOCK_STREAM)
    # Parse the result: a name must not lead where an address may not.
    return str(PeerAddress.parse(f"/{family}/{found[0][4][0]}/tcp/{address.port}/p2p/{address.peer}"))


def list_announced_addresses(host: Any, key: WalletKey, config: P2PConfig) -> tuple[str, ...]:
    """Addresses to announce, with peer id: those in the settings, else those this host listens on."""
    peer = key.peer_id()
    if config.announce:
        return tuple(f"{address}/p2p/{peer}" for address in config.announce)
    found: list[str] = []
    for address in host.get_transport_addrs():
        text = str(address)
        if "/0.0.0.0/" in text or "/ip6/::/" in text:
            port = int(address.value_for_protocol("tcp"))
            family = "/ip4/" if "/ip4/" in text else "/ip6/"
            found += [str(other) for other in get_available_interfaces(port) if str(other).startswith(family)]
        else:
            found.append(text)
    told = [parsed for text in found if (parsed := parse_peer_address(f"{text}/p2p/{peer}"))]
    # Announce loopback only if there is no other address: then all nodes are on this machine.
    outside = [address for address in told if not address.host.startswith("127.") and address.host != "::1"]
    return tuple(str(address) for address in (outside or told)[:ADDRESSES_MAX])
