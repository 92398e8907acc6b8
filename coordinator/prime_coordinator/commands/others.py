"""Commands that only point elsewhere: the explorer to come, the simulator, shell completion."""

import subprocess
import sys

from prime_coordinator.arguments import build_parser
from prime_coordinator.commands.context import Context
from prime_protocol.errors import LocalError
from prime_runtime.completion import write_script


def explorer(context: Context) -> int:
    raise LocalError(
        "the explorer is not built yet; read the JSON API of a running coordinator at /api/v1/openapi.json"
    )


def simulate(context: Context) -> int:
    """In a process of its own: the simulator also runs the node's code, which this program does not import."""
    command = [sys.executable, "-m", "prime_simulator", *context.args.words]
    return subprocess.run(command, check=False).returncode


def completion(context: Context) -> int:
    parser = build_parser(with_settings=True, with_terms=True)
    context.screen.write(write_script(parser, context.args.shell))
    return 0
