"""`prime-node start`: settings from flags, environment and file, then the daemon until it is stopped."""

import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path

from prime_node.commands.context import Context, with_pins
from prime_node.config import NodeConfig
from prime_node.home import Home, make_folder
from prime_node.life import run
from prime_protocol.errors import LocalError
from prime_runtime.logs import LogLevel, set_up_logs
from prime_runtime.settings import DEFAULT, describe, list_secrets

log = logging.getLogger(__name__)


def start(context: Context) -> int:
    resolved = context.resolve()
    config = with_whole_paths(with_pins(resolved.config))
    if not config.coordinator:
        raise LocalError(
            "which coordinator? Whoever runs a network publishes its URL: prime-node start --coordinator http://host:port"
        )
    if Home(config.folder).key.exists():
        config = context.with_password(config)
    make_folder(config.folder)  # before the log does, and with other rights
    logs = config.log if config.log.file else replace(config.log, file=Home(config.folder).log)
    # On a terminal the few lines for people are not drowned; the file has everything.
    is_quiet = sys.stderr.isatty() and resolved.sources["log.level"] == DEFAULT
    set_up_logs(
        logs, stream=sys.stderr, secrets=list_secrets(config), stream_level=LogLevel.WARNING if is_quiet else None
    )
    for line in describe(resolved):
        log.log(logging.DEBUG if line.endswith(f"({DEFAULT})") else logging.INFO, "setting %s", line)
    return asyncio.run(run(config, context.screen.say))


def with_whole_paths(config: NodeConfig) -> NodeConfig:
    """Paths in the settings file must hold wherever `start` is typed the next time."""
    return replace(
        config,
        password_file=whole(config.password_file),
        authority=whole(config.authority),
        delegation=whole(config.delegation),
    )


def whole(path: Path | None) -> Path | None:
    return path.absolute() if path else None
