"""Commands for the coordinator as a whole: create its folder, run it, back it up, restore it."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_coordinator.admin.backup import make_backup
from prime_coordinator.admin.restore import RestoredMirror, restore_backup, restore_mirror
from prime_coordinator.app import run
from prime_coordinator.cli.context import OperatorContext
from prime_coordinator.config import CoordinatorConfig, check_database_url, resolve_coordinator_config
from prime_coordinator.constants import PORT
from prime_coordinator.home import CoordinatorHome, initialise
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_time
from prime_runtime.logs import configure_logging
from prime_runtime.redaction import Secret
from prime_runtime.settings.flags import read_flags
from prime_runtime.settings.loader import DEFAULT, ResolvedConfig, describe_config, list_secrets

log = logging.getLogger(__name__)
EXIT_BROKEN = 3


def init(context: OperatorContext) -> int:
    if CoordinatorHome(context.folder).config.exists():
        raise LocalError(f"{CoordinatorHome(context.folder).config} exists: this folder already holds a coordinator")
    resolved = resolve_coordinator_config(context.folder, read_setting_flags(context), context.settings_variables())
    config = with_absolute_paths(context.with_password(with_port(resolved), confirm=True))
    with context.screen.spinner("generating keys"):
        created = asyncio.run(initialise(config, SystemClock()))
    say = context.screen.print_line
    say(f"created a coordinator of the network {config.network} in {config.folder}")
    say(f"coordinator  {created.coordinator}")
    say(f"log key      {created.log_key}")
    say(f"randomness   {created.randomness}")
    say("Publish the log key: anyone with it can verify that a log is yours.")
    say(f"Keep copies of these files in a safe place: {', '.join(map(str, created.backup))}")
    say(f"start it with: prime-coordinator start --folder {config.folder}; it listens on {describe_listen(config)}")
    return 0


def start(context: OperatorContext) -> int:
    context.load_config()  # refuses an empty folder with a helpful message
    resolved = resolve_coordinator_config(context.folder, read_setting_flags(context), context.settings_variables())
    config = context.with_password(resolved.config)
    configure_logging(config.log, stream=sys.stderr, secrets=list_secrets(config))
    for line in describe_config(resolved):
        log.log(logging.DEBUG if line.endswith("(default)") else logging.INFO, "setting %s", line)
    return asyncio.run(run(config))


def with_port(resolved: ResolvedConfig[CoordinatorConfig]) -> CoordinatorConfig:
    """Nodes store a coordinator's address, so its port is chosen once and written to the settings file."""
    config = resolved.config
    if resolved.sources["listen.port"] != DEFAULT:
        return config
    return replace(config, listen=replace(config.listen, port=PORT))


def describe_listen(config: CoordinatorConfig) -> str:
    return f"{config.listen.host} port {config.listen.port or 'that is free'}"


def read_setting_flags(context: OperatorContext) -> Mapping[str, Any]:
    return {name: value for name, value in read_flags(context.args, CoordinatorConfig).items() if name != "folder"}


def with_absolute_paths(config: CoordinatorConfig) -> CoordinatorConfig:
    """Paths in the settings file must be valid from any working directory."""
    listen = replace(
        config.listen,
        tls_certificate=to_absolute(config.listen.tls_certificate),
        tls_key=to_absolute(config.listen.tls_key),
    )
    folder = config.folder.absolute()
    return replace(config, folder=folder, password_file=to_absolute(config.password_file), listen=listen)


def to_absolute(path: Path | None) -> Path | None:
    return path.absolute() if path else None


def backup(context: OperatorContext) -> int:
    args, config = context.args, context.load_config()
    now_ms = SystemClock().now_ms()
    with context.screen.spinner("copying"):
        made = asyncio.run(
            make_backup(
                config, args.target, with_objects=args.objects, with_keys=args.keys, now_ms=now_ms, base=args.since
            )
        )
    context.screen.print_line(f"{made.entries} entries, {len(made.files)} files written to {args.target}")
    if args.keys:
        context.print_error("the backup holds the keys: anyone with it and the password can act as this coordinator")
    else:
        context.print_error(
            "the backup holds no keys: without key.json, log.key and randomness.key the log cannot go on"
        )
    return 0


def restore(context: OperatorContext) -> int:
    args = context.args
    secret = context.variables.get("PRIME_DATABASE_PASSWORD")
    if args.database is not None:
        check_database_url(args.database)
    if (args.source is None) == (args.from_mirror is None):
        raise LocalError("name either a backup, or a mirror with --from-mirror")
    if args.from_mirror is not None:
        return restore_from_mirror(context, Secret(secret) if secret else None)
    try:
        with context.screen.spinner("verifying and replaying"):
            manifest = restore_backup(
                args.source,
                context.folder,
                keys=args.keys,
                database=args.database,
                password=Secret(secret) if secret else None,
                head=args.head,
            )
    except RemoteError as error:
        context.print_error(f"the backup is not valid: {error}")
        return EXIT_BROKEN
    made = format_time(manifest.made_at_ms)
    context.screen.print_line(f"restored {manifest.entries} entries into {context.folder}; all verified")
    context.print_error(f"the backup is of {made} UTC. Later entries are lost, and anyone who saw them can prove it")
    context.print_error("start it only if the old coordinator is gone for good: two running ones would fork the log")
    return 0


def restore_from_mirror(context: OperatorContext, password: Secret | None) -> int:
    args = context.args
    if args.keys is None:
        raise LocalError("a mirror holds no keys: give --keys FOLDER with key.json, log.key and randomness.key")
    try:
        with context.screen.progress_bar("verifying entries") as on_progress:
            restored = restore_mirror(
                args.from_mirror,
                context.folder,
                keys=args.keys,
                settings=args.settings,
                database=args.database,
                password=password,
                head=args.head,
                on_progress=on_progress,
            )
    except RemoteError as error:
        context.print_error(f"the mirror is not valid: {error}")
        return EXIT_BROKEN
    context.screen.print_line(f"restored {restored.entries} entries into {context.folder}; all verified")
    for line in list_missing(restored):
        context.print_error(line)
    return 0


def list_missing(restored: RestoredMirror) -> list[str]:
    """What a mirror does not have."""
    lines = [
        f"the mirror ends at {format_time(restored.at_ms)} UTC. Later entries are lost, and anyone who saw them can"
        " prove it",
        "not in a mirror: rollout files and evidence, and uploads that no entry names yet. Copy what is left of"
        " `objects`",
    ]
    if restored.open_files:
        lines.append(
            f"{restored.open_files} submissions are not settled. Without their files validators cannot judge them, and"
            " they end as invalid, without credit or slash"
        )
    if not restored.has_settings:
        lines.append("not in a mirror: the settings. config.toml has the defaults; --settings FILE takes yours")
    lines.append("start it only if the old coordinator is gone for good: two running ones would fork the log")
    return lines
