"""`prime-node completion`: a script for the owner's shell."""

from prime_node.arguments import build_parser
from prime_node.commands.context import Context
from prime_runtime.completion import write_script


def completion(context: Context) -> int:
    context.screen.write(write_script(build_parser(with_settings=True), context.args.shell))
    return 0
