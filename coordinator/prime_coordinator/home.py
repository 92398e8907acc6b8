"""The coordinator's folder: its layout, its keys, how it is created once, and the lock that keeps a second process out.

config.toml   settings                      log.key     Ed25519 key of the tree heads
key.json      wallet key, encrypted         log.db      the log (unless the database is elsewhere)
objects/      files that nodes sent         mirror/     the log as static files, for everyone
lock          the running process             randomness.key  secret of an own randomness chain
explorer/     the index of the web pages; it can be rebuilt from the log
chain/        settlement on a chain: see settlement/files.py
restored      after a restore, until the log says so: how many entries came back
*.next        a key that is being rotated to    *.until-N     a key that entry N of the log rotated
"""

import json
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import CONFIG_NAME, CoordinatorConfig
from prime_coordinator.randomness import OWN, QUICKNET_NAME, resolve_chain
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.constants import ED25519_KEY_BYTES, RANDOMNESS_SECRET_BYTES
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import NetworkCreated
from prime_protocol.ledger.randomness_chain import RandomnessChain, make_own_chain
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey
from prime_protocol.wire.ids import NodeId, Ticker
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain
from prime_runtime.clock import Clock
from prime_runtime.files import write_private_file
from prime_runtime.keys import create_key_file, load_key_file, resolve_password
from prime_runtime.lock import LockInfo, ProcessLock, hold_process_lock, read_lock_info
from prime_runtime.objects.store import open_object_store
from prime_runtime.settings import flags as settings_flags


class CoordinatorHome:
    """The paths in one coordinator's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / CONFIG_NAME
        self.key = folder / "key.json"
        self.log_key = folder / "log.key"
        self.randomness_key = folder / "randomness.key"
        self.database = folder / "log.db"
        self.objects = folder / "objects"
        self.mirror = folder / "mirror"
        self.explorer = folder / "explorer"
        self.peers = folder / "peers.json"
        self.restored = folder / "restored"
        self.lock = folder / "lock"


def database_url(config: CoordinatorConfig) -> str:
    return config.database or f"sqlite:///{CoordinatorHome(config.folder).database.absolute()}"


def check_database(config: CoordinatorConfig) -> None:
    """Refuse to open a missing database: opening it would create an empty one and hide the loss."""
    path = CoordinatorHome(config.folder).database
    if config.database is None and not path.exists():
        raise LocalError(
            f"{path} is missing. Bring the file back, or make a new folder from a backup:"
            " prime-coordinator restore BACKUP --folder NEW-FOLDER"
        )


def objects_url(config: CoordinatorConfig) -> str:
    return config.objects or str(CoordinatorHome(config.folder).objects)


# --- Keys -----------------------------------------------------------------------------------------------------------


def read_password(config: CoordinatorConfig) -> str:
    """From the settings, or from the file that they name."""
    return resolve_password(config.password, config.password_file)


def load_key(config: CoordinatorConfig) -> WalletKey:
    """The coordinator's wallet key."""
    path = CoordinatorHome(config.folder).key
    if not path.exists():
        raise LocalError(f"{path} does not exist; create the folder with: prime-coordinator init")
    return load_key_file(path, read_password(config))


def read_key_address(path: Path) -> str:
    """The address that a keystore file names; no password is needed."""
    try:
        return "0x" + str(json.loads(path.read_text())["address"]).removeprefix("0x").lower()
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise LocalError(f"{path.name} is not a keystore file with an address") from None


def load_log_key(config: CoordinatorConfig) -> Ed25519PrivateKey:
    """The key that signs tree heads."""
    return read_log_key(CoordinatorHome(config.folder).log_key)


def read_log_key(path: Path) -> Ed25519PrivateKey:
    if path.exists() and path.stat().st_mode & 0o077:
        raise LocalError(f"other users can read {path}: run chmod 600 on it")
    try:
        raw = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        raise LocalError(f"{path} does not exist; create the folder with: prime-coordinator init") from None
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error}") from None
    except ValueError:
        raw = b""
    if len(raw) != ED25519_KEY_BYTES:
        raise LocalError(f"{path} is damaged; restore it from a backup")
    return Ed25519PrivateKey.from_private_bytes(raw)


def create_keys(config: CoordinatorConfig) -> tuple[WalletKey, Ed25519PrivateKey]:
    """Generate and write both keys, never over existing ones. `chain deploy` has already created the wallet key."""
    home = CoordinatorHome(config.folder)
    key = load_key(config) if home.key.exists() else create_key(config)
    return key, create_log_key(home.log_key)


def create_log_key(path: Path) -> Ed25519PrivateKey:
    log_key = Ed25519PrivateKey.generate()
    write_private_file(path, log_key.private_bytes_raw().hex() + "\n")
    return log_key


def create_key(config: CoordinatorConfig) -> WalletKey:
    """Generate the coordinator's wallet key."""
    return create_key_file(CoordinatorHome(config.folder).key, read_password(config), secrets.token_bytes)


# --- The lock -------------------------------------------------------------------------------------------------------


def lock_home(folder: Path) -> AbstractContextManager[ProcessLock]:
    """Take the folder's lock; LocalError names the process that holds it."""
    return hold_process_lock(
        CoordinatorHome(folder).lock, "coordinator", advice="create the folder with: prime-coordinator init"
    )


def read_lock(folder: Path) -> LockInfo:
    """The running process: `pid`, and `url` once it listens. Stale after a crash."""
    return read_lock_info(CoordinatorHome(folder).lock)


@dataclass(frozen=True, slots=True)
class InitResult:
    """What `init` created."""

    coordinator: NodeId
    log_key: str
    """To be published: `log verify --key` takes it."""
    randomness: str
    """Which chain beacons and draws come from, and who can predict it."""
    backup: tuple[Path, ...]
    """Files that cannot be recreated."""


async def initialise(config: CoordinatorConfig, clock: Clock) -> InitResult:
    """Create everything that `start` needs."""
    # Imported here: every operator command imports this module, and only this one opens the database.
    from prime_coordinator.log.store import open_log_store
    from prime_protocol.ledger.entry_index import compute_entry_keys

    home = CoordinatorHome(config.folder)
    read_password(config)  # refuses a bad password before anything is created
    try:
        config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot create the folder {config.folder}: {error.strerror}") from None
    with lock_home(config.folder):
        config = add_deployment(config)
        # `chain deploy` created the wallet key: the contracts name it as the operator.
        made_before = (home.key,) if config.settlement.is_evm else ()
        files = {home.config, home.key, home.log_key, home.randomness_key, home.database, home.mirror}
        for path in files - {*made_before}:
            if path.exists():
                raise LocalError(f"{path} exists: this folder already holds a coordinator; choose another one")
        store = open_log_store(database_url(config), config.database_password)
        try:
            if await store.size():
                raise LocalError("the database already holds a log; choose another database")
            open_object_store(objects_url(config), config.s3)
            key, log_key = create_keys(config)
            vkey = VerifierKey.of(ORIGIN_PREFIX + config.network, log_key)
            chain = create_chain(config, clock.now_ms())
            leaf = make_entry_zero(config, key, vkey, chain, clock.now_ms())
            await store.append(0, [leaf], [compute_entry_keys(leaf)])
        finally:
            store.close()
        write_private_file(home.config, render_config(config))
    own = (home.randomness_key,) if chain.is_own else ()
    return InitResult(key.node, str(vkey), chain.describe(), (home.key, home.log_key, *own, home.config))


def create_chain(config: CoordinatorConfig, now_ms: int) -> RandomnessChain:
    """The randomness chain that the settings name; an own one gets its key here."""
    name = config.randomness or (OWN if config.is_devnet else QUICKNET_NAME)
    if name != OWN:
        return resolve_chain(name)[0]
    secret = secrets.token_bytes(RANDOMNESS_SECRET_BYTES)
    write_private_file(CoordinatorHome(config.folder).randomness_key, secret.hex() + "\n")
    genesis_s = now_ms // 1000
    return make_own_chain(secret, config.network_id, genesis_s=genesis_s, period_s=config.randomness_period_s)


def make_entry_zero(
    config: CoordinatorConfig, key: WalletKey, log_key: VerifierKey, chain: RandomnessChain, now_ms: int
) -> bytes:
    from prime_coordinator.entry_writer import EntryWriter
    from prime_protocol.ledger.replay import Ledger

    writer = EntryWriter(key, Ledger(config.network_id))
    domain = get_domain(config)
    entry = NetworkCreated(
        log_key=str(log_key),
        chain_id=domain.chain_id,
        contract=domain.contract,
        unbonding_ms=config.unbonding_ms,
        randomness=chain,
        draw_margin_ms=config.draw_margin_ms,
        ticker=Ticker(config.ticker),
        rules=config.rules,
        rules_notice_ms=config.rules_notice_ms,
    )
    writer.append_own(entry, None, now_ms)
    (leaf,) = writer.drain()
    return leaf


def add_deployment(config: CoordinatorConfig) -> CoordinatorConfig:
    """The settings with the contracts that `chain deploy` made in this folder; LocalError if there are none."""
    if not config.settlement.is_evm:
        return config
    made = ChainFiles(config.folder).read_deployment()
    if "Court" not in made:
        raise LocalError(
            "deploy the contracts first: prime-coordinator chain deploy"
            f" --folder {config.folder} --network {config.network} --rpc {config.settlement.rpc}"
        )
    if made["network"] != config.network:
        raise LocalError(f"the contracts in {config.folder} belong to the network {made['network']}; give --network")
    if config.settlement.court not in ("", made["Court"]):
        raise LocalError(f"settlement.court differs from the one in {config.folder}, {made['Court']}: leave it out")
    if config.unbonding_ms > made["unbonding_s"] * 1000 - config.settlement.slash_window_ms:
        raise LocalError(
            f"unbonding_ms is {config.unbonding_ms}: the vault keeps stake for {made['unbonding_s']} s, and a slash"
            f" needs {config.settlement.slash_window_ms} ms of that to reach it"
        )
    found = replace(config.settlement, court=made["Court"], start_block=made["start_block"])
    return replace(config, settlement=found)


def get_domain(config: CoordinatorConfig) -> Domain:
    """The EIP-712 domain of the network's receipts."""
    if not config.settlement.is_evm:
        return EMBEDDED_DOMAIN
    made = ChainFiles(config.folder).read_deployment()
    return Domain(made["chain_id"], NodeId.parse(made["Court"]))


def render_config(config: CoordinatorConfig) -> str:
    """The settings file. It does not name its own folder, which may be moved."""
    return settings_flags.render_config(config, always=("network",), never=("folder",))
