"""Make a new coordinator: folder, keys, settings file, database, and entry 0 of the log. Never over an old one."""

from dataclasses import dataclass, replace
from pathlib import Path

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import Home, create_keys, database_url, locked, objects_url, read_password
from prime_coordinator.scribe import Scribe
from prime_coordinator.settlement.chain_files import ChainFiles
from prime_coordinator.store import open_log_store
from prime_protocol.catalogue import make_card
from prime_protocol.entries import NetworkCreated
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.ledger import Ledger
from prime_protocol.note import VerifierKey
from prime_protocol.signing import WalletKey
from prime_protocol.treehead import ORIGIN_PREFIX
from prime_protocol.typed_data import EMBEDDED, Domain
from prime_runtime import key_file, settings_render
from prime_runtime.clock import Clock
from prime_runtime.objects import open_store


@dataclass(frozen=True, slots=True)
class Created:
    """What `init` made, for the operator to note down."""

    coordinator: NodeId
    log_key: str
    """Publish this: it is what `log verify --key` takes."""
    backup: tuple[Path, ...]
    """Files that cannot be made again."""


async def initialise(config: CoordinatorConfig, clock: Clock) -> Created:
    """Everything that `run` needs."""
    home = Home(config.folder)
    read_password(config)  # refuses a bad one before anything was made
    try:
        config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot make the folder {config.folder}: {error.strerror}") from None
    with locked(config.folder):
        config = with_deployment(config)
        # Who deploys contracts has the key first: it stands in them as the operator's.
        made_before = (home.key,) if config.settlement.is_evm else ()
        for path in {home.config, home.key, home.log_key, home.database, home.mirror} - {*made_before}:
            if path.exists():
                raise LocalError(f"{path} exists: there is a coordinator in this folder already; choose another one")
        store = open_log_store(database_url(config), config.database_password)
        try:
            if await store.size():
                raise LocalError("the database holds a log already; choose another database")
            open_store(objects_url(config), config.s3)
            key, log_key = create_keys(config)
            vkey = VerifierKey.of(ORIGIN_PREFIX + config.network, log_key)
            leaf = make_entry_zero(config, key, vkey, clock.now_ms())
            await store.append(0, [leaf], [make_card(leaf)])
        finally:
            store.close()
        key_file.write_private(home.config, render_config(config))
    return Created(key.node, str(vkey), (home.key, home.log_key, home.config))


def make_entry_zero(config: CoordinatorConfig, key: WalletKey, log_key: VerifierKey, now_ms: int) -> bytes:
    scribe = Scribe(key, Ledger(config.network_id))
    domain = domain_of(config)
    entry = NetworkCreated(
        log_key=str(log_key),
        chain_id=domain.chain_id,
        contract=domain.contract,
        unbonding_ms=config.unbonding_ms,
    )
    scribe.write(entry, None, now_ms)
    (leaf,) = scribe.drain()
    return leaf


def with_deployment(config: CoordinatorConfig) -> CoordinatorConfig:
    """The settings with the contracts that `chain deploy` has made in this folder; LocalError where there are none."""
    if not config.settlement.is_evm:
        return config
    made = ChainFiles(config.folder).read_deployment()
    if "Court" not in made:
        raise LocalError(
            "the contracts come first: prime-coordinator chain deploy"
            f" --folder {config.folder} --network {config.network} --rpc {config.settlement.rpc}"
        )
    if made["network"] != config.network:
        raise LocalError(f"the contracts in {config.folder} are of the network {made['network']}; give --network")
    if config.settlement.court not in ("", made["Court"]):
        raise LocalError(f"settlement.court is another than the one in {config.folder}, {made['Court']}: leave it out")
    if config.unbonding_ms > made["unbonding_s"] * 1000 - config.settlement.slash_window_ms:
        raise LocalError(
            f"unbonding_ms is {config.unbonding_ms}: the vault keeps stake for {made['unbonding_s']} s, and a slash"
            f" needs {config.settlement.slash_window_ms} ms of them to be brought there"
        )
    found = replace(config.settlement, court=made["Court"], start_block=made["start_block"])
    return replace(config, settlement=found)


def domain_of(config: CoordinatorConfig) -> Domain:
    """Where the network's receipts count."""
    if not config.settlement.is_evm:
        return EMBEDDED
    made = ChainFiles(config.folder).read_deployment()
    return Domain(made["chain_id"], NodeId.parse(made["Court"]))


def render_config(config: CoordinatorConfig) -> str:
    """For the folder, whose own name does not belong in it: it may be moved."""
    return settings_render.render_config(config, always=("network",), never=("folder",))
