"""Commands for the coordinator's own life: make its folder, run it."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_coordinator.commands.context import Context
from prime_coordinator.config import CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.constants import PORT
from prime_coordinator.home import Home
from prime_coordinator.server import run
from prime_coordinator.setup import initialise
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.logs import set_up_logs
from prime_runtime.settings import DEFAULT, Resolved, describe, list_secrets, read_flags

log = logging.getLogger(__name__)


def init(context: Context) -> int:
    if Home(context.folder).config.exists():
        raise LocalError(f"{Home(context.folder).config} exists: there is a coordinator in this folder already")
    resolved = resolve_coordinator_config(context.folder, flags_of(context), context.settings_variables())
    config = with_whole_paths(context.with_password(with_port(resolved), confirm=True))
    with context.screen.working("drawing keys"):
        created = asyncio.run(initialise(config, SystemClock()))
    say = context.screen.say
    say(f"made a coordinator of the network {config.network} in {config.folder}")
    say(f"coordinator  {created.coordinator}")
    say(f"log key      {created.log_key}")
    say("Publish the log key: with it anybody can check the books.")
    say(f"Keep copies of these in a safe place: {', '.join(map(str, created.backup))}")
    say(f"start it with: prime-coordinator start --folder {config.folder}; it listens on {where(config)}")
    return 0


def start(context: Context) -> int:
    context.load_config()  # refuses an empty folder with words that help
    resolved = resolve_coordinator_config(context.folder, flags_of(context), context.settings_variables())
    config = context.with_password(resolved.config)
    set_up_logs(config.log, stream=sys.stderr, secrets=list_secrets(config))
    for line in describe(resolved):
        log.log(logging.DEBUG if line.endswith("(default)") else logging.INFO, "setting %s", line)
    return asyncio.run(run(config))


def with_port(resolved: Resolved[CoordinatorConfig]) -> CoordinatorConfig:
    """Nodes write a coordinator's address down, so its port is chosen once and stands in its settings file."""
    config = resolved.config
    if resolved.sources["listen.port"] != DEFAULT:
        return config
    return replace(config, listen=replace(config.listen, port=PORT))


def where(config: CoordinatorConfig) -> str:
    return f"{config.listen.host} port {config.listen.port or 'that is free'}"


def flags_of(context: Context) -> Mapping[str, Any]:
    return {name: value for name, value in read_flags(context.args, CoordinatorConfig).items() if name != "folder"}


def with_whole_paths(config: CoordinatorConfig) -> CoordinatorConfig:
    """Paths in the settings file must hold wherever `start` is typed."""
    listen = replace(
        config.listen, tls_certificate=whole(config.listen.tls_certificate), tls_key=whole(config.listen.tls_key)
    )
    folder = config.folder.absolute()
    return replace(config, folder=folder, password_file=whole(config.password_file), listen=listen)


def whole(path: Path | None) -> Path | None:
    return path.absolute() if path else None
