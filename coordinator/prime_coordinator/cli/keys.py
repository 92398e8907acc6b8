"""Commands about the log's keys."""

import asyncio

from prime_coordinator.admin.rotation import rotate_key
from prime_coordinator.cli.context import OperatorContext
from prime_protocol.keys.rotation import KeyKind
from prime_runtime.clock import SystemClock


def rotate(context: OperatorContext) -> int:
    kind = KeyKind.LOG if context.args.log else KeyKind.COORDINATOR
    config = context.with_password(context.load_config())
    with context.screen.spinner("rotating"):
        made = asyncio.run(rotate_key(config, kind, SystemClock()))
    say = context.screen.print_line
    say(f"entry {made.index} rotates the {kind} key")
    say(f"old  {made.old}")
    say(f"new  {made.new}")
    say(f"The old key is kept in {made.kept}. Delete it once every backup has the new one.")
    say("Publish the new key, make a backup with --keys, and start the coordinator. Nodes follow by themselves.")
    return 0
