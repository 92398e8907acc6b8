"""The node's settings: one frozen dataclass, made once at start and passed in.

prime_runtime.settings decides where each value comes from. Files of the node's folder are in storage/. `--help` imports
this module, so it imports nothing slow: no numpy, no log entries, no network.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from prime_node.engine.config import EngineConfig
from prime_node.policy.policy import PolicyConfig
from prime_protocol.constants import AMOUNT_NANO_MAX, RUNS_SERVED_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, parse_address
from prime_runtime.gossip.config import LOOPBACK_MULTIADDR, P2PConfig
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress, ServerLimits
from prime_runtime.logs import LogConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import ResolvedConfig, check_parsed, resolve_config
from prime_runtime.settings.schema import Between, CommaList, ConfigError, settings_class
from prime_runtime.shardcast.config import VERSIONS_KEPT, UploadConfig, check_urls

if TYPE_CHECKING:
    from prime_protocol.ledger.entries import Role
    from prime_protocol.wire.typed_data import Domain

CONFIG_NAME = "config.toml"
RATE_BYTES_PER_S_MIN = 50_000
"""Of one transfer: below it a shard of 16 MiB takes six minutes, and its sender counts as dead."""


class NodeRole(StrEnum):
    """What a node does for a run."""

    WORKER = "worker"
    VALIDATOR = "validator"
    BOTH = "both"
    """Worker and validator, with one engine."""
    RELAY = "relay"

    @property
    def log_roles(self) -> "tuple[Role, ...]":
        """The roles that the node registers in the log."""
        from prime_protocol.ledger.entries import Role

        return (Role.VALIDATOR, Role.WORKER) if self is NodeRole.BOTH else (Role(self),)


@settings_class
class WeightsConfig:
    """The section [weights]: what is fetched and kept."""

    folder: Path | None = None
    """Folder of the weights. Default: a subfolder of the node's folder."""
    disk_bytes_max: Annotated[int, Between(0, 10**15)] = 0
    """Limit of the folder of weights, checkpoints included; 0: no limit."""
    keep: Annotated[int, Between(1, 1000)] = VERSIONS_KEPT
    """Versions to keep; older ones are removed."""
    build: bool = False
    """Build whole checkpoints on a relay too, in checkpoints/<root>, for a copy or for other programs."""
    transfers_max: Annotated[int, Between(1, 64)] = 6
    """Shards to fetch at the same time."""
    bytes_per_s: Annotated[int, Between(0, 10**12)] = 0
    """Download limit over all transfers; 0: no limit."""
    allow_private: bool = False
    """Fetch from private and loopback addresses too, for networks in one building or on one machine. Always on where
    the coordinator's own address is private."""

    def __post_init__(self) -> None:
        if 0 < self.bytes_per_s < RATE_BYTES_PER_S_MIN:
            raise ConfigError(f"weights.bytes_per_s is {self.bytes_per_s}, the least is {RATE_BYTES_PER_S_MIN}")

    @property
    def transfers_at_once(self) -> int:
        """Fewer with a low rate limit, so that none falls below the rate at which a parent counts as dead."""
        return min(self.transfers_max, self.bytes_per_s // RATE_BYTES_PER_S_MIN or self.transfers_max)


@settings_class
class ReachConfig:
    """The section [reach]: serving weights from behind a router, and helping others to."""

    lanes: bool = True
    """While others cannot connect to this node, serve weights on connections that it opens to public nodes. What
    [upload] allows applies."""
    nodes_max: Annotated[int, Between(0, 1000)] = 64
    """Nodes behind routers that may keep connections to this one, to be asked for weights; 0: none."""
    map_port: bool = False
    """Ask the router, by NAT-PMP or UPnP, to forward listen.port to this machine, and announce its outer address. It
    opens the router, so it is off by default. Needs a listen.host that the router can reach, such as 0.0.0.0."""


class ReplayMode(StrEnum):
    """Whether a node replays the ledger's rules."""

    AUTO = "auto"
    """On validators."""
    ON = "on"
    OFF = "off"


@settings_class
class ReplayConfig:
    """The section [replay]: checking that the coordinator keeps the ledger's rules, in the background."""

    mode: ReplayMode = ReplayMode.AUTO
    """auto: on validators only; on; off."""
    mirrors: tuple[str, ...] = ()
    """URLs of mirrors of the log to read from, such as https://mirror.example/log; the coordinator is asked last."""
    cpu_percent: Annotated[int, Between(1, 100)] = 25
    """Share of one processor core while catching up."""
    niceness: Annotated[int, Between(0, 19)] = 19
    """Priority of the process, as `nice` counts it. The default, the lowest, lets engines and transfers come first."""
    bytes_per_s: Annotated[int, Between(10_000, 10**10)] = 1_000_000
    """Download limit while catching up."""

    def __post_init__(self) -> None:
        for url in self.mirrors:
            try:
                ServerAddress(url, NodeId(bytes(NodeId.SIZE)))
            except LocalError as error:
                raise ConfigError(f"replay.mirrors: {error}") from None


@settings_class
class PageConfig:
    """The section [page]: the local page, for this machine only."""

    enabled: bool = True
    """Show the page and the metrics on 127.0.0.1."""
    port: Annotated[int, Between(0, 65_535)] = 0
    """Port on 127.0.0.1; 0: 8470, or any free port if that is in use."""


@settings_class
class NodeConfig:
    """All settings of a node."""

    folder: Path
    """Folder of the node's key, settings and files."""
    coordinator: str = ""
    """URL of the coordinator, as its operator publishes it. A first start needs nothing else."""
    coordinator_id: str = ""
    """Address of the coordinator's key. Default: pinned from its first answer."""
    run: Annotated[str, CommaList()] = ""
    """Name of the run to take part in. A validator may name several, separated by commas: one process and one engine
    take the audits of all of them. Default: the only active run."""
    also_audits: tuple[str, ...] = ()
    """Further runs whose audits this key takes as a validator, each with a process and folder of its own. Every process
    of the key lists the others' runs."""
    network: str = ""
    """Name of the network, which every signed message contains. Default: pinned from the coordinator's first answer."""
    role: NodeRole = NodeRole.WORKER
    """What the node does."""
    password: Secret | None = None
    """Password of the node's key. Default, without password_file: generated and kept in the folder."""
    password_file: Path | None = None
    """File whose first line is the password of the node's key."""
    log_key: str | None = None
    """Verifier key of the log, as its operator publishes it. Default: pinned from the coordinator's first answer."""
    trainer: str = ""
    """Address of the trainer's key of the run. Default: pinned from the coordinator's first answer. With it, and with
    coordinator_id, run and network, a node that knows a peer joins gossip while the coordinator is gone."""
    domain: str = ""
    """Chain and court that receipts are signed for, as CHAIN:COURT. Default: pinned from the coordinator's first
    answer; none without a chain."""
    rpc: str = ""
    """RPC URL of the chain that the network settles on, for commands that send transactions."""
    appeal_bond_max_nano: Annotated[int, Between(0, AMOUNT_NANO_MAX)] = 0
    """Largest bond that the node may pay from its own wallet to appeal a slash to the court on the chain. Needs `rpc`.
    0: it only logs the command for its owner."""
    delegation: Path | None = None
    """File from `prime-node keys delegate`: the node works with that owner's stake. Default: with its own."""
    stake: bool = True
    """Stake the run's minimum from this node's own balance. Ignored with a delegation."""
    authority: Path | None = None
    """PEM file of a TLS authority to trust for an https coordinator, if this machine does not trust it already."""
    hardware: str = ""
    """One line about the machine, for people."""
    announce: tuple[str, ...] = ()
    """URLs at which other nodes reach this one, best first: http://host:port. Port 0 means the listening port.
    Default: none; it serves weights by connections that it opens itself."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    client: ClientLimits = field(default_factory=ClientLimits)
    upload: UploadConfig = field(default_factory=UploadConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    reach: ReachConfig = field(default_factory=ReachConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)
    log: LogConfig = field(default_factory=LogConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    page: PageConfig = field(default_factory=PageConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        from prime_protocol.log.tree_head import VerifierKey
        from prime_protocol.wire.typed_data import Domain

        parsers: dict[str, Any] = {
            "network": NetworkId,
            "coordinator_id": parse_address,
            "trainer": parse_address,
            "log_key": VerifierKey.parse,
            "domain": Domain.parse,
        }
        check_parsed(self, {name: parse for name, parse in parsers.items() if getattr(self, name)})
        # Stored and compared in the form that messages have.
        object.__setattr__(self, "coordinator_id", self.coordinator_id.lower())
        check_urls("announce", self.announce)
        self._check_runs()
        if self.reach.map_port and self.listen.is_loopback:
            raise ConfigError(f"reach.map_port needs a listen.host that the router can reach, not {self.listen.host}")
        if self.coordinator:
            self._check_coordinator()

    def _check_runs(self) -> None:
        served = self.run.split(",") if self.run else []
        for setting, names in (("run", served), ("also_audits", self.also_audits)):
            for name in names:
                try:
                    RunId(name.strip())
                except RemoteError as error:
                    raise ConfigError(f"{setting}: {name!r} is not the name of a run: it {error.problem}") from None
        if len(self.runs) > 1 and self.role is not NodeRole.VALIDATOR:
            raise ConfigError(
                f"run names {len(self.runs)} runs, and only a validator serves several, the role is {self.role}; start"
                " one node per run, each with its own --folder"
            )
        if len(self.runs) > 1 and self.trainer:
            raise ConfigError("trainer is of one run, and run names several; the coordinator names their trainers")
        if self.also_audits and self.role not in (NodeRole.VALIDATOR, NodeRole.BOTH):
            raise ConfigError(f"also_audits is for validators, the role is {self.role}; leave it out")
        if len(self.runs_audited) > RUNS_SERVED_MAX:
            raise ConfigError(f"run and also_audits name {len(self.runs_audited)} runs, the most is {RUNS_SERVED_MAX}")

    def _check_coordinator(self) -> None:
        try:
            ServerAddress(self.coordinator, NodeId(bytes(NodeId.SIZE)))
        except LocalError as error:
            raise ConfigError(f"coordinator: {error}") from None

    @property
    def is_complete(self) -> bool:
        """Whether it has all that joining needs. The coordinator supplies what is missing: see joining.py."""
        return all((self.coordinator, self.coordinator_id, self.run, self.network))

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)

    @property
    def signing_domain(self) -> "Domain":
        """Chain and court that this node signs receipts for."""
        from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain

        return Domain.parse(self.domain) if self.domain else EMBEDDED_DOMAIN

    @property
    def allows_private_addresses(self) -> bool:
        """Whether to fetch from private addresses. Otherwise an announcement could make this node scan its own LAN."""
        host = urlsplit(self.coordinator).hostname or ""
        try:
            return self.weights.allow_private or host == "localhost" or not ip_address(host).is_global
        except ValueError:
            return False

    @property
    def gossip(self) -> P2PConfig:
        """The section [p2p]. Where the coordinator is on this machine and nothing is announced, gossip listens for this
        machine only, unless the owner says otherwise. A coordinator at a private address means a network inside one
        building."""
        host = urlsplit(self.coordinator).hostname or ""
        p2p = replace(self.p2p, allow_private=self.p2p.allow_private or self.allows_private_addresses)
        is_alone = ListenConfig(host=host).is_loopback and not self.announce and not p2p.announce
        return replace(p2p, listen=LOOPBACK_MULTIADDR) if is_alone and p2p.listen == P2PConfig().listen else p2p

    @property
    def replays_log(self) -> bool:
        is_validator = self.role in (NodeRole.VALIDATOR, NodeRole.BOTH)
        return self.replay.mode is ReplayMode.ON or (self.replay.mode is ReplayMode.AUTO and is_validator)

    @property
    def runs(self) -> tuple[RunId, ...]:
        """The runs that this process serves, in its owner's order."""
        return tuple(dict.fromkeys(RunId(name.strip()) for name in self.run.split(","))) if self.run else ()

    @property
    def run_id(self) -> RunId:
        """The first run."""
        return self.runs[0]

    @property
    def runs_audited(self) -> tuple[RunId, ...]:
        """The runs that a validator registers for."""
        return tuple(sorted({*self.runs, *map(RunId, self.also_audits)}))

    def for_run(self, run: RunId) -> "NodeConfig":
        """The settings as one of the runs sees them. The registration still names the others."""
        others = {*self.runs, *map(RunId, self.also_audits)} - {run}
        is_validator = self.role in (NodeRole.VALIDATOR, NodeRole.BOTH)
        return replace(self, run=run, also_audits=tuple(sorted(others)) if is_validator else ())

    @property
    def server(self) -> ServerAddress:
        return ServerAddress(self.coordinator, parse_address(self.coordinator_id))


def resolve_node_config(
    folder: Path, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> ResolvedConfig[NodeConfig]:
    """The settings of the node in this folder: flags over environment over its config.toml over defaults."""
    file = folder / CONFIG_NAME
    return resolve_config(NodeConfig, {**flags, "folder": str(folder)}, environ, file if file.exists() else None)
