"""`prime-node logs`: the node's log file, for people or as it is."""

import time
from pathlib import Path

from prime_node.commands.context import Context
from prime_node.home import Home
from prime_node.log_lines import Follower, read_last, show_line
from prime_protocol.errors import LocalError

FOLLOW_S = 0.3


def show(context: Context) -> int:
    if context.args.lines < 0:
        raise LocalError(f"--lines is {context.args.lines}, the least is 0")
    path = find_log(context)
    if not path.exists():
        raise LocalError(f"there is no log yet: {path} is made by prime-node start")
    follower = Follower(path) if context.args.follow else None
    for line in read_last(path, context.args.lines):
        _say(context, line)
    while follower is not None:
        for line in follower.read():
            _say(context, line)
        time.sleep(FOLLOW_S)
    return 0


def find_log(context: Context) -> Path:
    config = context.load_config()
    return config.log.file or Home(config.folder).log


def _say(context: Context, line: str) -> None:
    context.screen.say(line if context.args.json else show_line(line))
