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


def pass_on(context: Context) -> int:
    """In a process of its own: what it runs uses the node's code too, which this program does not import."""
    return subprocess.run([sys.executable, "-m", context.args.program, *context.args.words], check=False).returncode


def completion(context: Context) -> int:
    parser = build_parser(with_settings=True, with_terms=True)
    context.screen.write(write_script(parser, context.args.shell))
    return 0
