"""Commands that need no coordinator: the explorer of any log, named calibrations, shell completion."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from prime_coordinator.admin.calibrations import NAMED_CALIBRATIONS
from prime_coordinator.api.explorer import open_models
from prime_coordinator.cli.arguments import build_parser
from prime_coordinator.cli.context import OperatorContext
from prime_explorer.app import StandaloneConfig, serve_standalone
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.log.tiles import CHECKPOINT_PATH
from prime_protocol.log.tree_head import VerifierKey
from prime_runtime.cli import SettingsHelp, build_completion_script
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_relative_time
from prime_runtime.logs import LogConfig, configure_logging


def explorer(context: OperatorContext) -> int:
    """Until SIGINT or SIGTERM."""
    config = read_explorer_config(context.args)
    configure_logging(LogConfig(), stream=sys.stderr, secrets=[])
    asyncio.run(_explore(config, context.screen.print_line))
    return 0


def read_explorer_config(args: Any) -> StandaloneConfig:
    """The explorer's settings from the flags; LocalError if they make no sense."""
    is_url = args.log.startswith(("http://", "https://"))
    if not is_url and not (Path(args.log) / CHECKPOINT_PATH).is_file():
        raise LocalError(
            f"{args.log} is no log: give a URL such as http://host:port/log, or a folder with `checkpoint` and `tile/`"
        )
    if args.key is not None:
        try:
            VerifierKey.parse(args.key)
        except RemoteError as error:
            raise LocalError(f"--key is not a verifier key: {error}") from None
    name = sha256(args.log.rstrip("/").encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    beside = args.log.rstrip("/").removesuffix("/log") if is_url else None
    return StandaloneConfig(
        log=args.log,
        folder=(args.keep or cache / "prime-explorer" / name).expanduser(),
        host=args.host,
        port=args.port,
        key=args.key,
        objects=args.objects or beside,
        models=open_models(tuple(args.model or ())),
    )


async def _explore(config: StandaloneConfig, say: Callable[[str], None]) -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(serve_standalone(config, ready, stop))
    await asyncio.wait([serving, ready], return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        say(f"open {ready.result()} in a browser; it checks {config.log} and keeps its index in {config.folder}")
    await serving


def completion(context: OperatorContext) -> int:
    parser = build_parser(SettingsHelp.ALL, SettingsHelp.ALL)
    context.screen.write(build_completion_script(parser, context.args.shell))
    return 0


def calibrations(context: OperatorContext) -> int:
    rows = [
        [
            each.name,
            each.measured_on,
            format_relative_time(each.measured_at_ms, SystemClock().now_ms()),
            ", ".join(f"{name} {value}" for name, value in each.architecture.items()),
        ]
        for each in NAMED_CALIBRATIONS
    ]
    screen = context.screen
    screen.show(screen.table(["name", "measured on", "when", "only for models with"], rows))
    screen.print_line("other models and machines: prime-node calibrate machine MODEL --out tolerance.toml")
    return 0
