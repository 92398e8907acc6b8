"""Commands that copy a coordinator and bring one back."""

import asyncio

from prime_coordinator.backup import make_backup
from prime_coordinator.commands.columns import moment
from prime_coordinator.commands.context import Context
from prime_coordinator.config import check_database_url
from prime_coordinator.restore import restore_backup
from prime_protocol.errors import RemoteError
from prime_runtime.clock import SystemClock
from prime_runtime.secret import Secret

EXIT_BROKEN = 3


def backup(context: Context) -> int:
    args, config = context.args, context.load_config()
    now_ms = SystemClock().now_ms()
    with context.screen.working("copying"):
        made = asyncio.run(
            make_backup(config, args.target, with_objects=args.objects, with_keys=args.keys, now_ms=now_ms)
        )
    context.screen.say(f"{made.entries} entries, {len(made.files)} files written to {args.target}")
    if args.keys:
        context.complain("the backup holds the keys: whoever has it, and the password, is this coordinator")
    else:
        context.complain("the backup holds no keys; without key.json and log.key the log cannot go on")
    return 0


def restore(context: Context) -> int:
    args = context.args
    secret = context.variables.get("PRIME_DATABASE_PASSWORD")
    if args.database is not None:
        check_database_url(args.database)
    try:
        with context.screen.working("checking and replaying"):
            manifest = asyncio.run(
                restore_backup(
                    args.source,
                    context.folder,
                    keys=args.keys,
                    database=args.database,
                    password=Secret(secret) if secret else None,
                    head=args.head,
                )
            )
    except RemoteError as error:
        context.complain(f"the backup does not hold: {error}")
        return EXIT_BROKEN
    made = moment(manifest.made_at_ms, 0)
    context.screen.say(f"restored {manifest.entries} entries into {context.folder}; every one was checked")
    context.complain(f"it is as of {made} UTC. Entries after that are lost, and anybody who saw them can prove it")
    context.complain("start it only if the old coordinator is gone for good: two that run tell two histories")
    return 0
