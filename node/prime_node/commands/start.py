"""`prime-node start`: settings from flags, environment and file, then the daemon until it is stopped."""

import asyncio
import logging
import sys
from dataclasses import replace

from prime_node.commands.context import Context
from prime_node.config import NodeConfig, resolve_node_config
from prime_node.life import check_role, run
from prime_runtime.logs import set_up_logs
from prime_runtime.settings import describe, list_secrets, read_flags

log = logging.getLogger(__name__)


def start(context: Context) -> int:
    flags = {name: value for name, value in read_flags(context.args, NodeConfig).items() if name != "folder"}
    resolved = resolve_node_config(context.folder, flags, context.settings_variables())
    config = with_whole_paths(resolved.config)
    check_role(config)
    set_up_logs(config.log, stream=sys.stderr, secrets=list_secrets(config))
    for line in describe(resolved):
        log.log(logging.DEBUG if line.endswith("(default)") else logging.INFO, "setting %s", line)
    return asyncio.run(run(config, context.say))


def with_whole_paths(config: NodeConfig) -> NodeConfig:
    """Paths in the settings file must hold wherever `start` is typed the next time."""
    password_file = config.password_file.absolute() if config.password_file else None
    authority = config.authority.absolute() if config.authority else None
    return replace(config, password_file=password_file, authority=authority)
