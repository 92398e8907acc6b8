"""The libp2p peers that a program knew before it stopped, on disk: what it needs to find the network again by itself.

The file is a hint and no more: a peer proves its key when it is dialled, and a file that cannot be read is the same as
none. It is bounded when it is read as well, because its owner may have edited it.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from prime_protocol.constants import ADDRESS_CHARS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.addresses import PORT_MAX, PeerAddress
from prime_runtime.files import write_atomic
from prime_runtime.rate_limits import address_range

SAVED_PEERS_MAX = 64
SAVED_OF_RANGE_MAX = 4
"""Peers of one address range in the file: yesterday's attacker does not fill it from one network."""
FILE_BYTES_MAX = 2 * SAVED_PEERS_MAX * (ADDRESS_CHARS_MAX + 8)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPeers:
    """One address of each peer, best first, and the port that this program listened on."""

    addresses: tuple[str, ...] = ()
    port: int = 0
    """0: it did not listen."""


def get_range(address: PeerAddress) -> str:
    """The address range, or the DNS name."""
    return address_range(address.host) if address.family.startswith("ip") else address.host


def is_private(address: PeerAddress) -> bool:
    """Whether only this machine, or machines in the same building, can dial it."""
    return address.family.startswith("ip") and not ip_address(address.host).is_global


def read_known_peers(path: Path | None) -> KnownPeers:
    """Nothing if there is no file, or it is damaged."""
    if path is None or not path.exists():
        return KnownPeers()
    try:
        with path.open("rb") as file:
            facts = json.loads(file.read(FILE_BYTES_MAX))
        port, addresses = facts["port"], [str(PeerAddress.parse(text)) for text in facts["addresses"]]
        if not isinstance(port, int) or not 0 <= port <= PORT_MAX:
            raise ValueError(f"the port is {port!r}")
    except (OSError, ValueError, KeyError, TypeError, RemoteError) as error:
        log.warning("the known peers in %s cannot be read (%s); starting without them", path, error)
        return KnownPeers()
    return KnownPeers(addresses=tuple(addresses[:SAVED_PEERS_MAX]), port=port)


def write_known_peers(path: Path, known: KnownPeers) -> None:
    try:
        write_atomic(path, json.dumps({"port": known.port, "addresses": known.addresses}, indent=1).encode())
    except LocalError as error:
        log.warning("the known peers are not saved: %s", error)


def choose_known_peers(now: Iterable[str], before: Iterable[str]) -> tuple[str, ...]:
    """Those connected now, then those of before: one address a peer, and only so many from one address range."""
    chosen: dict[str, str] = {}
    ranges: dict[str, int] = {}
    for text in (*now, *before):
        address = PeerAddress.parse(text)
        place = get_range(address)
        if address.peer in chosen or len(chosen) >= SAVED_PEERS_MAX:
            continue
        if ranges.get(place, 0) >= SAVED_OF_RANGE_MAX and not is_private(address):
            continue
        chosen[address.peer] = text
        ranges[place] = ranges.get(place, 0) + 1
    return tuple(chosen.values())
