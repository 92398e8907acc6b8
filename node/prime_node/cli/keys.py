"""`prime-node keys`: the wallet key of a node or of an owner. Secrets never appear on a command line."""

import secrets
import stat
import sys
from pathlib import Path

from prime_node.cli.context import NodeCliContext, check_password
from prime_node.config import NodeConfig
from prime_node.storage.keys import create_password, get_password, load_key, write_delegation
from prime_node.storage.node_folder import NodeFolder, make_folder, read_lock
from prime_protocol.constants import DELEGATION_LIFE_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NetworkId, checksum_address, friendly_name, parse_address
from prime_protocol.wire.keystore import decrypt_key
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, Domain
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_time
from prime_runtime.keys import (
    create_key_file,
    describe_key,
    load_key_file,
    read_password_file,
    resolve_password,
    write_key_file,
)

DAY_MS = 24 * 3_600_000
SOURCE_CHARS_MAX = 100_000


def new(context: NodeCliContext) -> int:
    if context.args.out is None:
        return _create_in_folder(context)
    password = _ask_password(context, context.args.key_password_file, "password for the new key", confirm=True)
    key = create_key_file(context.args.out, password, secrets.token_bytes)
    _print_key(context, key)
    context.screen.print_line(
        f"written to {context.args.out}. Copy that file and remember the password: it is worth the stake."
    )
    return 0


def _create_in_folder(context: NodeCliContext) -> int:
    make_folder(context.folder)
    config = context.load_config()
    home = NodeFolder(config.folder)
    if home.key.exists():
        raise LocalError(f"{home.key} exists and is not overwritten; use another --folder for another node")
    _print_key(context, create_key_file(home.key, _get_folder_password(config), secrets.token_bytes))
    context.screen.print_line(f"written to {home.key}. Keep a copy elsewhere: prime-node keys backup COPY")
    return 0


def _get_folder_password(config: NodeConfig) -> str:
    """The password for a new key file in the folder."""
    home = NodeFolder(config.folder)
    if config.password is None and config.password_file is None and not home.password.exists():
        create_password(home.password)
    return get_password(config)


def show(context: NodeCliContext) -> int:
    file = context.args.file
    if file is None:
        key = load_key(context.with_password(context.load_config()))
    else:
        key = load_key_file(file, _ask_password(context, context.args.key_password_file, f"password of {file}"))
    if context.args.json:
        facts = {"node": str(key.node), "name": friendly_name(key.node), "peer_id": key.peer_id()}
        context.screen.print_json(facts)
    else:
        _print_key(context, key)
    return 0


def backup(context: NodeCliContext) -> int:
    config = context.with_password(context.load_config())
    key, target = load_key(config), context.args.target
    file = context.args.new_password_file
    password = resolve_password(None, file) if file else get_password(config)
    write_key_file(target, key, password, secrets.token_bytes)
    if load_key_file(target, password).node != key.node:
        raise LocalError(f"{target} was written, and holds another key when it is read: is the disk good?")
    context.screen.print_line(
        f"{target} holds the key of {checksum_address(key.node)}; it was opened again to make sure."
    )
    home = NodeFolder(config.folder)
    if file:
        context.screen.print_line(
            f"It opens with the password in {file}. Keep the two apart, and neither on this machine only."
        )
    elif home.password.exists() and config.password is None and config.password_file is None:
        context.screen.print_line(f"It opens with the password in {home.password}: copy that too, to another place.")
    else:
        context.screen.print_line("It opens with the password of the node's key.")
    return 0


def recover(context: NodeCliContext) -> int:
    if read_lock(context.folder):
        raise LocalError(f"a node runs in {context.folder}; stop it first: prime-node stop")
    key = _read_source(context)
    make_folder(context.folder)
    config = context.load_config(with_password_flag=False)  # the flag is about the source
    home = NodeFolder(config.folder)
    if home.key.exists():
        if not context.args.replace:
            raise LocalError(f"{home.key} exists and is not overwritten; --replace renames it first")
        aside = home.key.with_name(f"key-{SystemClock().now_ms()}.json")
        home.key.rename(aside)
        context.screen.print_line(f"the previous key is now {aside}")
    write_key_file(home.key, key, _get_folder_password(config), secrets.token_bytes)
    _print_key(context, key)
    context.screen.print_line(f"written to {home.key}: the node in {config.folder} is this one from its next start on")
    return 0


def _read_source(context: NodeCliContext) -> WalletKey:
    """Read a keystore, or a private key in hex, from a file or standard input."""
    source = context.args.source
    try:
        text = sys.stdin.read(SOURCE_CHARS_MAX) if source == "-" else _read_file(Path(source))
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {source}: {error}") from None
    if text.lstrip().startswith("{"):
        file = context.args.key_password_file
        return decrypt_key(text, _ask_password(context, file, f"password of {source}"))
    try:
        return WalletKey.from_secret(bytes.fromhex(text.strip().removeprefix("0x")))
    except ValueError:
        raise LocalError(f"{source} holds neither a keystore nor a private key of 64 hex digits") from None


def _read_file(path: Path) -> str:
    with path.open() as file:
        if stat.S_ISREG(path.stat().st_mode) and path.stat().st_size > SOURCE_CHARS_MAX:
            raise LocalError(f"{path} is too large to be a key")
        return file.read(SOURCE_CHARS_MAX)


def delegate(context: NodeCliContext) -> int:
    args = context.args
    network = args.network or context.load_config().network
    owner = load_key_file(args.key, _ask_password(context, args.key_password_file, f"password of {args.key}"))
    now_ms = SystemClock().now_ms()
    life_ms = args.days * DAY_MS
    if not 0 < life_ms <= DELEGATION_LIFE_MS_MAX:
        raise LocalError(f"--days is {args.days}, allowed is 1 to {DELEGATION_LIFE_MS_MAX // DAY_MS}")
    try:
        delegation = Delegation(
            network=NetworkId(network),
            owner=owner.node,
            node=parse_address(args.node),
            issued_at_ms=now_ms,
            expires_at_ms=now_ms + life_ms,
        )
    except RemoteError as error:
        raise LocalError(f"{error}; give the node's address, and --network") from None
    write_delegation(args.out, owner, delegation, _find_domain(context))
    until = format_time(delegation.expires_at_ms)
    context.screen.print_line(
        f"{checksum_address(delegation.node)} may work for {checksum_address(owner.node)} until {until} UTC"
    )
    context.screen.print_line(f"on its machine: prime-node start --delegation {args.out}")
    return 0


def _find_domain(context: NodeCliContext) -> Domain:
    """The signing domain of the delegation: --domain, else that of the node in the folder."""
    if context.args.domain:
        try:
            return Domain.parse(context.args.domain)
        except RemoteError as error:
            raise LocalError(f"--domain: {error.problem}") from None
    return EMBEDDED_DOMAIN if context.args.network else context.load_config().signing_domain


def _print_key(context: NodeCliContext, key: WalletKey) -> None:
    context.screen.print_line(describe_key(key))
    context.screen.print_line(f"name     {friendly_name(key.node)}")


def _ask_password(context: NodeCliContext, file: Path | None, question: str, *, confirm: bool = False) -> str:
    if file is not None:
        return read_password_file(file)
    text = context.ask_password(question, confirm)
    if text is None:
        raise LocalError("no terminal to ask for the password; use --password-file")
    return check_password(text).reveal() if confirm else text
