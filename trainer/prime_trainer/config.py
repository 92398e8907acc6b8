"""The settings of `prime-trainer publish` and `prime-trainer origin`: frozen dataclasses, made once and passed in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from prime_protocol.constants import SHARD_BYTES, SHARD_BYTES_MAX, SHARD_BYTES_MIN
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.signing import WalletKey
from prime_runtime import key_file
from prime_runtime.http_client import Server
from prime_runtime.http_limits import ClientLimits, ServerLimits
from prime_runtime.http_listener import ListenConfig
from prime_runtime.logs import LogConfig
from prime_runtime.p2p_config import P2PConfig
from prime_runtime.password import read_password
from prime_runtime.secret import Secret
from prime_runtime.settings import Between, ConfigError, check_parsed
from prime_runtime.shardcast.retention import VERSIONS_KEPT
from prime_runtime.shardcast.upload_config import UploadConfig
from prime_runtime.shardcast.urls import check_urls


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Whose weights, in which run, under whose books."""

    store: Path
    """Folder of the published weights; `publish` writes it, `origin` serves it."""
    coordinator: str
    """URL of the coordinator."""
    coordinator_id: str
    """Address of the coordinator's key, as `prime-coordinator init` printed it."""
    run: str
    """Name of the run."""
    network: str = "devnet"
    """Name of the network; it stands in every signed message."""
    key: Path = Path("key.json")
    """Keystore file of the run's trainer."""
    password: Secret | None = None
    """Password of the key."""
    password_file: Path | None = None
    """File whose first line is the password of the key."""
    authority: Path | None = None
    """PEM file of the TLS authority to trust with an https coordinator, if this machine does not know it."""
    client: ClientLimits = field(default_factory=ClientLimits)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        check_parsed(self, {"network": NetworkId, "run": RunId, "coordinator_id": NodeId.parse})

    @property
    def network_id(self) -> NetworkId:
        return NetworkId(self.network)

    @property
    def run_id(self) -> RunId:
        return RunId(self.run)

    @property
    def server(self) -> Server:
        return Server(self.coordinator, NodeId.parse(self.coordinator_id))

    def load_key(self) -> WalletKey:
        return key_file.load(self.key, read_password(self.password, self.password_file))


@dataclass(frozen=True, kw_only=True)
class PublishConfig(TrainerConfig):
    """Everything `publish` can be told beside what is published."""

    keyframe_every: Annotated[int, Between(1, 10_000)] = 10
    """Publish a keyframe too, not only a delta, with every so many steps."""
    keep: Annotated[int, Between(1, 1000)] = VERSIONS_KEPT
    """Versions kept in the store; older ones are removed."""
    shard_bytes: Annotated[int, Between(SHARD_BYTES_MIN, SHARD_BYTES_MAX)] = SHARD_BYTES
    """Size of a shard."""


@dataclass(frozen=True, kw_only=True)
class OriginUploadConfig(UploadConfig):
    """The section [upload]: what is given to those who fetch. A server's line carries more than a home's."""

    slots: Annotated[int, Between(0, 1000)] = 16
    """Uploads at once; 0 chooses by bytes_per_s."""
    address_slots: Annotated[int, Between(1, 1000)] = 4
    """Uploads at once to one address."""


@dataclass(frozen=True, kw_only=True)
class OriginConfig(TrainerConfig):
    """Everything `origin` can be told."""

    announce: tuple[str, ...] = ()
    """Where nodes reach this server, best first: http://host:port. Port 0 stands for the one that is bound. Nothing:
    the address that is listened on."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    upload: OriginUploadConfig = field(default_factory=OriginUploadConfig)
    p2p: P2PConfig = field(default_factory=P2PConfig)

    def __post_init__(self) -> None:
        TrainerConfig.__post_init__(self)
        check_urls("announce", self.announce)
        if not self.announce and self.listen.host in ("0.0.0.0", "::"):
            raise ConfigError("announce is empty: say under which URL nodes reach this machine, http://host:port")

    @property
    def urls(self) -> tuple[str, ...]:
        """To be announced; the port may still be open."""
        host = f"[{self.listen.host}]" if ":" in self.listen.host else self.listen.host
        scheme = "https" if self.listen.tls_key else "http"
        return self.announce or (f"{scheme}://{host}:0",)
