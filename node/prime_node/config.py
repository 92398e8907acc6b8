"""The node's settings: one frozen dataclass, made once at start and passed in.

Where each value comes from is prime_runtime.settings.loader' work. What is not set here lies in the node's folder:
home.py.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from prime_node.engine.config import EngineConfig
from prime_node.policy.policy import PolicyConfig
from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Role
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress, ServerLimits
from prime_runtime.logs import LogConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import ResolvedConfig, check_parsed, resolve_config
from prime_runtime.settings.schema import Between, ConfigError, settings_class
from prime_runtime.shardcast.store import VERSIONS_KEPT
from prime_runtime.shardcast.upload_slots import UploadConfig, check_urls

CONFIG_NAME = "config.toml"
RATE_BYTES_PER_S_MIN = 50_000
"""Of one transfer: below it a shard of 16 MiB takes six minutes, and parents are taken for dead."""


class NodeRole(StrEnum):
    """What a node does for a run."""

    WORKER = "worker"
    VALIDATOR = "validator"
    BOTH = "both"
    """Worker and validator, with one engine."""
    RELAY = "relay"

    @property
    def log_roles(self) -> tuple[Role, ...]:
        """As the log has it."""
        return (Role.VALIDATOR, Role.WORKER) if self is NodeRole.BOTH else (Role(self),)


@settings_class
class WeightsConfig:
    """The section [weights]: what is fetched and kept."""

    folder: Path | None = None
    """Where weights are kept. Nothing: a subfolder."""
    disk_bytes_max: Annotated[int, Between(0, 10**15)] = 0
    """Most bytes in the folder of weights, checkpoints included; 0 is no cap."""
    keep: Annotated[int, Between(1, 1000)] = VERSIONS_KEPT
    """Versions kept; older ones are removed."""
    build: bool = False
    """Build whole checkpoints on a relay too, under checkpoints/<root>: for a copy, or for another program to read."""
    transfers_max: Annotated[int, Between(1, 64)] = 6
    """Shards fetched at once."""
    bytes_per_s: Annotated[int, Between(0, 10**12)] = 0
    """Download rate over all transfers; 0 is as fast as the line."""
    allow_private: bool = False
    """Fetch from private and loopback addresses too: for networks in one building or on one machine. Done anyway where
    the coordinator's own address is such a one."""

    def __post_init__(self) -> None:
        if 0 < self.bytes_per_s < RATE_BYTES_PER_S_MIN:
            raise ConfigError(f"weights.bytes_per_s is {self.bytes_per_s}, the least is {RATE_BYTES_PER_S_MIN}")

    @property
    def transfers_at_once(self) -> int:
        """Fewer on a narrow line, so that none of them looks dead."""
        return min(self.transfers_max, self.bytes_per_s // RATE_BYTES_PER_S_MIN or self.transfers_max)


@settings_class
class PageConfig:
    """The section [page]: the local page, for this machine only."""

    enabled: bool = True
    """Show the page and the metrics on 127.0.0.1."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port on 127.0.0.1; 0 takes 8470, or any that is free where that is taken."""


@settings_class
class NodeConfig:
    """Everything the owner of a node can set."""

    folder: Path
    """Where the node keeps its key, its settings and its files."""
    coordinator: str = ""
    """URL of the coordinator, as its operator publishes it. A first start needs nothing else."""
    coordinator_id: str = ""
    """Address of the coordinator's key. Empty: as its first answer says, and no other from then on."""
    run: str = ""
    """Name of the run to take part in. Empty: the only one that is active."""
    network: str = ""
    """Name of the network; it stands in every signed message. Empty: as the coordinator says."""
    role: NodeRole = NodeRole.WORKER
    """What the node does."""
    password: Secret | None = None
    """Password of the node's key. Where there is none, and no password_file, one is drawn and kept in the folder."""
    password_file: Path | None = None
    """File whose first line is the password of the node's key."""
    log_key: str | None = None
    """Verifier key of the log, as its operator publishes it. Nothing: as the coordinator's first answer says."""
    domain: str = ""
    """Where receipts count, as CHAIN:COURT. Empty: as the coordinator's first answer says; without a chain, none."""
    rpc: str = ""
    """URL of a node of the chain that the network settles on, for the commands that move value there."""
    appeal_bond_max_nano: Annotated[int, Between(0, AMOUNT_NANO_MAX)] = 0
    """Largest bond that the node puts up by itself, from its own wallet, to appeal a slash of its own before the court
    on the chain. It needs `rpc`. 0: none; the log says how its owner can."""
    delegation: Path | None = None
    """File that `prime-node keys delegate` wrote for this node: it works for that owner. Nothing: for itself."""
    stake: bool = True
    """Stake from this node's own balance what the run asks for; not done where an owner has delegated."""
    authority: Path | None = None
    """PEM file of the TLS authority to trust with an https coordinator, if this machine does not know it."""
    hardware: str = ""
    """One line about the machine, for people."""
    announce: tuple[str, ...] = ()
    """Where other nodes reach this one, best first: http://host:port. Port 0 stands for the one that is bound. Nothing:
    outbound only, it serves nobody."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    client: ClientLimits = field(default_factory=ClientLimits)
    upload: UploadConfig = field(default_factory=UploadConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)
    log: LogConfig = field(default_factory=LogConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    page: PageConfig = field(default_factory=PageConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        parsers: dict[str, Any] = {
            "network": NetworkId,
            "run": RunId,
            "coordinator_id": NodeId.parse,
            "log_key": VerifierKey.parse,
            "domain": Domain.parse,
        }
        check_parsed(self, {name: parse for name, parse in parsers.items() if getattr(self, name)})
        check_urls("announce", self.announce)
        if self.coordinator:
            self._check_coordinator()

    def _check_coordinator(self) -> None:
        try:
            ServerAddress(self.coordinator, NodeId(bytes(NodeId.SIZE)))
        except LocalError as error:
            raise ConfigError(f"coordinator: {error}") from None

    @property
    def is_complete(self) -> bool:
        """Whether it says all that joining needs; what it leaves out, the coordinator is asked: see joining.py."""
        return all((self.coordinator, self.coordinator_id, self.run, self.network))

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)

    @property
    def signing_domain(self) -> Domain:
        """What this node's receipts are signed for."""
        return Domain.parse(self.domain) if self.domain else EMBEDDED_DOMAIN

    @property
    def allows_private_addresses(self) -> bool:
        """Whether a stranger's record may send this node to a private address: only where its network is private."""
        host = urlsplit(self.coordinator).hostname or ""
        try:
            return self.weights.allow_private or host == "localhost" or not ip_address(host).is_global
        except ValueError:
            return False

    @property
    def run_id(self) -> RunId:
        return RunId(self.run)

    @property
    def server(self) -> ServerAddress:
        return ServerAddress(self.coordinator, NodeId.parse(self.coordinator_id))


def resolve_node_config(
    folder: Path, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> ResolvedConfig[NodeConfig]:
    """The settings of the node in this folder: flags over environment over its config.toml over defaults."""
    file = folder / CONFIG_NAME
    return resolve_config(NodeConfig, {**flags, "folder": str(folder)}, environ, file if file.exists() else None)
