"""The coordinator's settings: one frozen dataclass, built once at start and passed in.

prime_runtime.settings resolves where each value comes from. Paths inside the coordinator's folder are in home.py.
`--help` imports this module, so it imports nothing slow: no numpy, no database, no network.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from prime_coordinator.constants import INSPECT_SHARE
from prime_coordinator.intervals import IntervalsConfig
from prime_coordinator.settlement.config import SettlementConfig
from prime_explorer.config import PAGE_BURST, PAGE_RATE, ExplorerConfig
from prime_protocol.constants import (
    AMOUNT_NANO_MAX,
    BASIS_POINTS,
    DRAW_MARGIN_MS,
    DRAW_MARGIN_MS_MAX,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    RANDOMNESS_PERIOD_S_MAX,
    ROLLOUT_FILE_BYTES_MAX,
    RULES_NOTICE_MS,
    RULES_NOTICE_MS_MAX,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import DEFAULT_TICKER, NetworkId, NodeId, RunId, Ticker
from prime_runtime.gossip.config import LOOPBACK_MULTIADDR, P2PConfig
from prime_runtime.http.config import ListenConfig, ServerAddress, ServerLimits
from prime_runtime.logs import LogConfig
from prime_runtime.objects.store import S3Config
from prime_runtime.redaction import Secret
from prime_runtime.settings.loader import ResolvedConfig, check_parsed, resolve_config
from prime_runtime.settings.schema import Between, ConfigError, settings_class
from prime_runtime.shardcast.config import check_urls

CONFIG_NAME = "config.toml"
DAY_MS = 24 * 3_600_000


@settings_class
class LogWriterConfig:
    """The section [log_writer]: how the log is written."""

    batch_ms: Annotated[int, Between(0, 1000)] = 5
    """How long an entry waits for others, to be written in one transaction."""
    batch_entries_max: Annotated[int, Between(1, 10_000)] = 1_000
    """Most entries in one transaction."""
    head_ms: Annotated[int, Between(10, 60_000)] = 1_000
    """Least time between two signed tree heads."""
    head_entries_max: Annotated[int, Between(1, 10**6)] = 1_000
    """A tree head is signed sooner if this many entries wait for one."""
    snapshot_entries: Annotated[int, Between(100, 10**9)] = 50_000
    """Entries between two snapshots of the state. A start replays the entries after the newest one."""


@settings_class
class IntakeConfig:
    """The section [intake]: uploads, and the model-free checks of rollout files."""

    upload_bytes_max: Annotated[int, Between(1024, ROLLOUT_FILE_BYTES_MAX)] = ROLLOUT_FILE_BYTES_MAX
    """Largest file accepted."""
    upload_ms: Annotated[int, Between(100, 3_600_000)] = 600_000
    """Time limit of an upload, and lifetime of a presigned URL."""
    checkers: Annotated[int, Between(1, 64)] = 1
    """Processes that check files."""
    check_ms: Annotated[int, Between(100, 600_000)] = 20_000
    """Time limit for checking one file."""
    memory_mb_max: Annotated[int, Between(256, 2**20)] = 4_096
    """Address space of one checking process."""


@settings_class
class ReadApiConfig:
    """The section [read_api]: the JSON API and the pages, which anyone may read."""

    per_second: Annotated[float, Between(0.1, 1e6)] = PAGE_RATE
    """Requests a second from one address, sustained."""
    burst: Annotated[int, Between(1, 10**6)] = PAGE_BURST
    """Requests at once from one address after a pause: a page of the explorer makes several."""


@settings_class
class FaucetConfig:
    """The section [faucet]: free value for test networks."""

    amount_nano: Annotated[int, Between(0, AMOUNT_NANO_MAX)] = 0
    """Credited once to each node that registers; 0 turns the faucet off."""
    nodes_max: Annotated[int, Between(0, 10**6)] = 10_000
    """Most nodes that get it."""


@settings_class
class OriginConfig:
    """The section [origin]: serve the weights of one run from this machine."""

    folder: Path | None = None
    """Shard store that `prime-trainer publish` writes to. Unset: the trainer serves its weights itself."""
    run: str = ""
    """Run that the weights belong to; it must exist."""
    urls: tuple[str, ...] = ()
    """Where nodes reach this server, best first: http://host:port. Port 0 means the bound port."""
    slots: Annotated[int, Between(1, 1000)] = 16
    """Uploads at once."""
    address_slots: Annotated[int, Between(1, 1000)] = 4
    """Uploads at once to one address."""

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        try:
            RunId(self.run)
        except RemoteError as error:
            raise ConfigError(f"origin.run {error.problem}") from None
        if not self.urls:
            raise ConfigError("origin.urls is empty, so no node could fetch: give http://host:port as nodes reach it")
        check_urls("origin.urls", self.urls)
        if self.address_slots > self.slots:
            raise ConfigError("origin.address_slots is above origin.slots")


@settings_class
class CoordinatorConfig:
    """Everything an operator can set."""

    folder: Path
    """The folder with the coordinator's keys, database and files."""
    network: str = "devnet"
    """Name of the network; every signed message contains it."""
    unbonding_ms: Annotated[int, Between(0, 366 * DAY_MS)] = 7 * DAY_MS
    """How long stake stays slashable after it is unbonded; fixed when the network is created."""
    ticker: str = str(DEFAULT_TICKER)
    """Name of the network's unit of value, 1 to 12 of A-Z and 0-9; fixed when the network is created."""
    randomness: str = ""
    """Source of beacons and audit draws, fixed when the network is created: `drand:quicknet`, a TOML file that
    describes a drand chain, or `own`, which its operator can predict. Unset: own on a devnet, else drand:quicknet."""
    randomness_urls: tuple[str, ...] = ()
    """Servers with drand's HTTP API; any may lie or be away. Unset: the usual ones of the chain."""
    randomness_period_s: Annotated[int, Between(1, RANDOMNESS_PERIOD_S_MAX)] = 3
    """Time between two rounds of an own chain, in seconds."""
    draw_margin_ms: Annotated[int, Between(0, DRAW_MARGIN_MS_MAX)] = DRAW_MARGIN_MS
    """Least time between a noted tree head and the round that is drawn from: validators cosign the head meanwhile."""
    rules: Annotated[int, Between(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION)] = PROTOCOL_VERSION
    """Version of the rules that the log begins with."""
    rules_notice_ms: Annotated[int, Between(0, RULES_NOTICE_MS_MAX)] = RULES_NOTICE_MS
    """Least time between the announcement of other rules and their start; fixed when the network is created."""
    inspect_share: Annotated[int, Between(0, BASIS_POINTS)] = INSPECT_SHARE
    """Share of settled submissions that a run's inspectors read again, in basis points: 1000 is 10 %."""
    password: Secret | None = None
    """Password of the coordinator's key."""
    password_file: Path | None = None
    """File whose first line is the password of the coordinator's key."""
    database: str | None = None
    """URL of the database: sqlite:///path or postgresql://user@host:port/name. Unset: a SQLite file in the folder."""
    database_password: Secret | None = None
    """Password for the database; it must not be in the URL."""
    public_url: str = ""
    """URL by which others reach this coordinator, such as https://swarm.example.org: for invite lines and `check`."""
    objects: str | None = None
    """URL of the object store: a path or s3://bucket/prefix. Unset: a subfolder."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    log: LogConfig = field(default_factory=LogConfig)
    s3: S3Config = field(default_factory=S3Config)
    log_writer: LogWriterConfig = field(default_factory=LogWriterConfig)
    intervals: IntervalsConfig = field(default_factory=IntervalsConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)
    read_api: ReadApiConfig = field(default_factory=ReadApiConfig)
    faucet: FaucetConfig = field(default_factory=FaucetConfig)
    settlement: SettlementConfig = field(default_factory=SettlementConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)
    origin: OriginConfig = field(default_factory=OriginConfig)
    explorer: ExplorerConfig = field(default_factory=ExplorerConfig)

    def __post_init__(self) -> None:
        check_parsed(self, {"network": NetworkId, "ticker": Ticker})
        if self.public_url:
            try:
                ServerAddress(self.public_url, NodeId(bytes(NodeId.SIZE)))
            except LocalError as error:
                raise ConfigError(f"public_url: {error}") from None
        if self.database is not None:
            check_database_url(self.database)

    @property
    def is_devnet(self) -> bool:
        """A test network: its name says so, or it gives value away."""
        return self.network.startswith("dev") or self.faucet.amount_nano > 0

    @property
    def gossip(self) -> P2PConfig:
        """The section [p2p]. Where only this machine reaches the server, gossip listens for this machine only too,
        unless the operator says otherwise."""
        if self.listen.is_loopback and not self.public_url and self.p2p.listen == P2PConfig().listen:
            return replace(self.p2p, listen=LOOPBACK_MULTIADDR)
        return self.p2p

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)


def check_database_url(text: str) -> None:
    """Refuse a URL that cannot be opened here, or one with a password, which listings of the settings would show."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("database is not a URL; write sqlite:///path or postgresql://user@host:port/name") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"database begins with {url.drivername}; sqlite and postgresql are supported")
    if url.password:
        raise ConfigError("database holds a password; put it into database_password")


def resolve_coordinator_config(
    folder: Path, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> ResolvedConfig[CoordinatorConfig]:
    """The settings of the coordinator in this folder: flags, then environment, then config.toml, then defaults."""
    file = folder / CONFIG_NAME
    found = file if file.exists() else None
    return resolve_config(CoordinatorConfig, {**flags, "folder": str(folder)}, environ, found)
