"""The command line of prime-coordinator: commands, their arguments, and the function that runs each.

Nothing heavy is imported here. The flags of settings and terms are added only where they are needed, since making them
means importing what they configure.
"""

import argparse
from pathlib import Path
from typing import Any

from prime_coordinator.constants import PORT
from prime_explorer.config import ROWS_PER_PAGE
from prime_runtime.cli import SettingsHelp, add_completion, add_version

EXIT_CODES = """exit codes:
  0  done
  1  refused; the message says why and what to do
  2  wrong command line
  3  a log or a backup is not valid; or `check` found something missing
  4  the coordinator is not running, or cannot be reached
  130  interrupted"""
FOLDER = Path("~/prime-coordinator")
FOLDER_VARIABLE = "PRIME_FOLDER"
EXPLORER_PORT = 8450
Group = Any
"""argparse gives no public name to what add_subparsers returns."""


LAB_PROGRAMS = {
    "attacks": ("prime_lab.attacks", "run every attack we know against the real checks and print what each came to"),
    "devnet": ("prime_lab.devnet", "run a whole network on this machine and train a tiny model with it"),
    "simulate": ("prime_lab.simulator", "run the whole network in a seeded simulator"),
}
"""Commands of the lab: the module that runs each, and its help."""
COMMON_SETTINGS = {
    "network": ("folder", "network", "unbonding_ms", "faucet.amount_nano"),
    "keys": ("password_file",),
    "storage": ("database", "objects", "s3.endpoint", "s3.region"),
    "server": (
        "public_url",
        "listen.host",
        "listen.port",
        "listen.tls_certificate",
        "listen.tls_key",
        "limits.trusted_proxies",
    ),
    "settlement": ("settlement.kind", "settlement.rpc"),
    "weights and explorer": ("origin.folder", "origin.run", "origin.urls", "explorer.models"),
}
"""Flags that `init --help` and `start --help` show, by group; `--help-all` shows the others too."""
COMMON_TERMS = {
    "model and tasks": ("trainer", "model", "task_set", "vocabulary", "units_per_token"),
    "step": ("slots_per_step", "samples_per_slot", "prompt_tokens_max", "output_tokens_max", "temperature", "lag_max"),
    "audits": (
        "calibration",
        "quorum",
        "inspectors",
        "audit_probation",
        "audit_floor",
        "train_on",
        "verdict_ms",
        "appeal_ms",
    ),
    "money": ("stake_min_nano", "slash_nano", "step_budget_nano", "vesting_ms"),
}


def build_parser(
    settings: SettingsHelp = SettingsHelp.NONE, terms: SettingsHelp = SettingsHelp.NONE, command: str = ""
) -> argparse.ArgumentParser:
    """`settings` are those of the coordinator, `terms` those of a run. With `command`, only that one gets settings."""
    parser = argparse.ArgumentParser(
        prog="prime-coordinator",
        description="Schedule the work of training runs, and keep their log and accounts.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    # Flags that both a command and its action take are absent unless given: an action's default would win otherwise.
    parser.set_defaults(folder=None, url=None, authority=None, json=False, limit=ROWS_PER_PAGE, all=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_quickstart(commands)
    _add_life(commands, settings, command)
    _add_runs(commands, terms)
    _add_nodes(commands)
    _add_listings(commands)
    _add_log(commands)
    _add_rules(commands)
    _add_copies(commands)
    _add_keys(commands)
    _add_chain(commands)
    _add_others(commands)
    return parser


def _command(commands: Group, name: str, task: str, text: str, *, calls: bool = False) -> argparse.ArgumentParser:
    """`task` is module:function in prime_coordinator.cli; `calls` if it talks to a running coordinator."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(task=task)
    _add_folder(parser)
    if calls:
        _add(parser, "--url", help="URL of the coordinator, if not the one in its folder: http://host:port")
        _add(parser, "--authority", type=Path, help="PEM file of the TLS authority to trust with an https URL")
    return parser


def _add_folder(parser: argparse.ArgumentParser) -> None:
    text = f"the coordinator's folder (${FOLDER_VARIABLE}). Default: {FOLDER}."
    _add(parser, "--folder", type=Path, help=text)


def _add(parser: argparse.ArgumentParser, flag: str, **how: Any) -> None:
    parser.add_argument(flag, default=argparse.SUPPRESS, **how)


def _listing(commands: Group, name: str, route: str, text: str, *filters: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, "listing:show_listing", text, calls=True)
    parser.set_defaults(route=route)
    _add(parser, "--json", action="store_true", help="print JSON instead of a table")
    _add(parser, "--limit", type=int, metavar="N", help=f"most rows (default {ROWS_PER_PAGE})")
    _add(parser, "--all", action="store_true", help="all rows, ignoring --limit")
    for name_ in filters:
        parser.add_argument(f"--{name_}", metavar=name_.upper(), help=f"only those of this {name_}")
    parser.set_defaults(filters=filters)
    return parser


def _detail(commands: Group, name: str, route: str, param: str, text: str) -> None:
    parser = _command(commands, name, "listing:show_detail", text, calls=True)
    _add(parser, "--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("name", metavar=param.upper())
    parser.set_defaults(route=route, param=param)


def _add_quickstart(commands: Group) -> None:
    text = "make and run a whole test network on this machine, and print each command that does it"
    quickstart: argparse.ArgumentParser = commands.add_parser("quickstart", help=text, description=text)
    quickstart.set_defaults(task="quickstart:quickstart")
    add = quickstart.add_argument
    add("--folder", type=Path, help="folder of the whole network. Default: ~/prime-quickstart.")
    add("--network", metavar="NAME", help="name of the network. Default: devnet.")
    add("--host", help="name or address by which other machines reach this one. Default: this machine only.")
    add("--port", type=int, default=PORT, help=f"of the coordinator; the next one serves weights (default {PORT})")
    add("--run", default="demo", metavar="NAME", help="name of the run (default demo)")
    add("--model", help="tiny, or the folder of a model. Default: tiny.")
    add("--task-set", help="what to train on, as in docs/protocol/tasks.md. Default: sort-digits.")
    add("--yes", action="store_true", help="take the defaults; do not ask")
    add("--exit", action="store_true", help="stop everything once others could join")


def _add_life(commands: Group, settings: SettingsHelp, command: str) -> None:
    for name, text in (
        ("init", "make a folder with settings, keys and an empty log"),
        ("start", "run the coordinator until it is interrupted"),
    ):
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        parser.set_defaults(task=f"lifecycle:{name}")
        if settings is not SettingsHelp.NONE and command in ("", name):
            from prime_coordinator.config import CoordinatorConfig
            from prime_runtime.settings.flags import add_flags

            add_flags(parser, CoordinatorConfig, COMMON_SETTINGS, show_all=settings is SettingsHelp.ALL)
        else:
            _add_folder(parser)
    status = _command(commands, "status", "listing:show_status", "the coordinator at a glance", calls=True)
    status.add_argument("--json", action="store_true", help="print JSON instead of tables")
    status.add_argument("--watch", action="store_true", help="refresh every two seconds until interrupted")
    text = "what is missing before this network and its runs can work for others"
    check = _command(commands, "check", "check:check", text, calls=True)
    _add(check, "--json", action="store_true", help="print JSON instead of a table")


def _add_runs(commands: Group, terms: SettingsHelp) -> None:
    run: argparse.ArgumentParser = commands.add_parser("run", help="create, change and close training runs")
    actions = run.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = _command(actions, "create", "admin:create_run", "begin a run", calls=True)
    create.add_argument(
        "--model-config",
        type=Path,
        help="the model's folder, or its config.json: vocabulary, cost per token, and which files describe it",
    )
    create.add_argument(
        "--force", action="store_true", help="create it with too few validators too; a devnet needs no such flag"
    )
    update = _command(actions, "update", "admin:update_run", "change the terms of a run's next steps", calls=True)
    for parser in (create, update):
        parser.add_argument("run", metavar="NAME")
        parser.add_argument("--terms", type=Path, help="TOML file with terms; flags override it")
        if terms is not SettingsHelp.NONE:
            from prime_coordinator.admin.run_terms import TermsConfig
            from prime_runtime.settings.flags import add_flags

            add_flags(parser, TermsConfig, COMMON_TERMS, show_all=terms is SettingsHelp.ALL)
    for name, text in (
        ("pause", "grant no more leases"),
        ("resume", "grant leases again"),
        ("close", "end a run for good"),
    ):
        action = _command(actions, name, "admin:set_run_status", text, calls=True)
        action.add_argument("run", metavar="NAME")
        action.add_argument("--reason", default="", help="text for the log, which is public")
        if name == "close":
            action.add_argument("--yes", action="store_true", help="confirm: a closed run cannot be reopened")
    fund = _command(
        actions, "fund", "admin:fund_run", "move value from the coordinator's account into the pool", calls=True
    )
    fund.add_argument("run", metavar="NAME")
    fund.add_argument("amount", metavar="AMOUNT", help="such as 100 or 0.5")
    _listing(actions, "list", "runs", "all runs")
    _command(actions, "calibrations", "tools:calibrations", "bounds of audits that can be named with --calibration")
    _detail(actions, "show", "run", "run", "a run, its terms and its steps")


def _add_nodes(commands: Group) -> None:
    nodes = _listing(
        commands, "nodes", "nodes", "nodes; or show, drain, ban, unban one", "status", "phase", "role", "owner"
    )
    actions = nodes.add_subparsers(dest="action", metavar="ACTION")
    _detail(actions, "show", "node", "node", "all that is known of a node")
    for name, text in (
        ("drain", "let a node finish its leases, and give it no more work"),
        ("ban", "tell a node to stop, and give it no more work"),
        ("unban", "let a drained or banned node work again"),
    ):
        action = _command(actions, name, "admin:set_node_status", text, calls=True)
        action.add_argument("node", metavar="NODE")
        action.add_argument("--reason", default="", help="text for the log, which is public")
    deposit = _command(commands, "deposit", "admin:deposit", "book value that came in from outside", calls=True)
    deposit.add_argument("account", metavar="ACCOUNT", help="address to credit, or the word coordinator")
    deposit.add_argument("amount", metavar="AMOUNT", help="such as 100 or 0.5")
    deposit.add_argument("--reference", required=True, help="name of the payment; the same reference counts once")


def _add_listings(commands: Group) -> None:
    _listing(commands, "leases", "leases", "leases that are open", "run", "node")
    submissions = _listing(commands, "submissions", "submissions", "submissions, newest first", "run", "node")
    actions = submissions.add_subparsers(dest="action", metavar="ACTION")
    _detail(actions, "show", "submission", "submission", "a submission and its judgement")
    _listing(actions, "refused", "refused", "rollout files that intake refused")
    _listing(commands, "verdicts", "verdicts", "verdicts, newest first", "run", "submission", "node")
    slash: argparse.ArgumentParser = commands.add_parser("slash", help="slashes, from proposal to end")
    actions = slash.add_subparsers(dest="action", required=True, metavar="ACTION")
    _listing(actions, "list", "slashes", "slashes, newest first", "run")
    _detail(actions, "show", "slash", "submission", "the slash of a submission")
    _listing(commands, "appeals", "appeals", "appeals against slashes, newest first", "run")
    _listing(commands, "checkpoints", "checkpoints", "published checkpoints, newest first", "run")


def _add_log(commands: Group) -> None:
    log: argparse.ArgumentParser = commands.add_parser("log", help="read, export and verify the append-only log")
    actions = log.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="replay a mirror of a log offline and verify everything in it")
    verify.set_defaults(task="log:verify")
    verify.add_argument("mirror", type=Path, help="folder with `checkpoint` and `tile/`, as a coordinator serves them")
    verify.add_argument("--key", help="the log's verifier key, as the operator published it")
    verify.add_argument("--head", type=Path, help="a tree head that you kept: refuse an older or forked copy")
    verify.add_argument(
        "--from-snapshot",
        action="store_true",
        help="trust the newest state whose digest the log notes, and verify the entries after it only",
    )
    verify.add_argument("--processes", type=int, metavar="N", help="that verify signatures. Default: one per core.")
    verify.add_argument("--json", action="store_true", help="print the result as JSON")
    export = _command(actions, "export", "log:export", "write the log to a folder that anyone can verify and serve")
    export.add_argument("target", type=Path, help="folder to write; it must not exist or be empty")
    tail = _command(actions, "tail", "log:tail", "the newest entries", calls=True)
    tail.add_argument("--json", action="store_true", help="print one JSON object for each line")
    tail.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default 20)")
    tail.add_argument("--follow", action="store_true", help="keep printing new entries until interrupted")
    for name, text in (("kind", "kind"), ("author", "author"), ("run", "run"), ("subject", "node or submission")):
        tail.add_argument(f"--{name}", metavar=name.upper(), help=f"only those of this {text}")


def _add_keys(commands: Group) -> None:
    keys: argparse.ArgumentParser = commands.add_parser("keys", help="rotate the keys of a stopped coordinator")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "replace a key by a new one with an entry of the log; the coordinator must be stopped"
    rotate = _command(actions, "rotate", "keys:rotate", text)
    which = rotate.add_mutually_exclusive_group(required=True)
    which.add_argument("--log", action="store_true", help="the key that signs tree heads")
    which.add_argument("--coordinator", action="store_true", help="the coordinator's own key, in key.json")


def _add_rules(commands: Group) -> None:
    rules: argparse.ArgumentParser = commands.add_parser("rules", help="the rules of the log: announce the next, show")
    actions = rules.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "announce the next version of the rules; nothing takes it back"
    announce = _command(actions, "announce", "rules:announce", text, calls=True)
    announce.add_argument(
        "--release", required=True, help="first release of prime-swarm that knows them, such as 0.2.0"
    )
    announce.add_argument(
        "--in-hours", type=float, metavar="N", help="when they start. Default: as soon as the network's notice allows."
    )
    show = _command(actions, "show", "rules:show", "the rules in force and those announced", calls=True)
    _add(show, "--json", action="store_true", help="print JSON")


def _add_copies(commands: Group) -> None:
    disk = _command(commands, "disk", "disk:show_disk", "what uses the disk, and what will be free when")
    disk.add_argument("--backups", type=Path, metavar="FOLDER", help="also count this folder, which holds backups")
    disk.add_argument("--json", action="store_true", help="print JSON instead of a table")
    backup = _command(commands, "backup", "lifecycle:backup", "copy a coordinator, running or not, to a new folder")
    backup.add_argument("target", type=Path, help="folder to write; it must not exist")
    backup.add_argument("--since", type=Path, metavar="BACKUP", help="an older backup: link what it has, copy the rest")
    backup.add_argument("--objects", action="store_true", help="also the files that nodes sent (folder stores only)")
    backup.add_argument("--keys", action="store_true", help="also the keys: keep such a backup as safe as the folder")
    restore = _command(
        commands, "restore", "lifecycle:restore", "make a coordinator's folder from a backup, and check it"
    )
    restore.add_argument("source", type=Path, nargs="?", help="folder that backup wrote")
    restore.add_argument(
        "--from-mirror", metavar="URL|FOLDER", help="instead of a backup, any mirror of the log; needs --keys"
    )
    restore.add_argument("--settings", type=Path, help="with --from-mirror: the config.toml to use")
    restore.add_argument("--keys", type=Path, help="folder with key.json and log.key, if the backup has none")
    restore.add_argument(
        "--database", help="URL of an empty database to restore into; a SQLite file in the folder if not given"
    )
    restore.add_argument("--head", type=Path, help="newest published tree head: refuse an older backup")


def _add_chain(commands: Group) -> None:
    chain: argparse.ArgumentParser = commands.add_parser("chain", help="settle on a chain: contracts, state, anchors")
    actions = chain.add_subparsers(dest="action", required=True, metavar="ACTION")
    deploy = _command(actions, "deploy", "chain:deploy", "make a network's contracts; then make the network with init")
    add = deploy.add_argument
    add("--rpc", required=True, metavar="URL", help="JSON-RPC node of the chain")
    add("--network", required=True, metavar="NAME", help="name of the network that will settle there")
    add("--token", metavar="ADDRESS", help="ERC-20 token for stake and rewards; at least 9 decimals")
    add("--test-token", metavar="AMOUNT", help="deploy a test token with this supply, instead of --token")
    add("--test-token-to", metavar="ADDRESS", help="who gets the test tokens. Default: the coordinator.")
    add("--unbonding-s", type=int, default=14 * 86_400, metavar="SECONDS", help="how long stake stays slashable (14 d)")
    add("--fee-gwei-max", type=int, default=200, metavar="GWEI", help="highest gas price (default 200)")
    add("--password-file", type=Path, help="file whose first line is the password of the coordinator's key")
    text = "the network's contracts and runs on the chain"
    status = _command(actions, "status", "chain:status", text, calls=True)
    status.add_argument("--run", action="append", metavar="NAME", help="only this run. Default: all.")
    fund = _command(actions, "fund", "chain:fund", "move a wallet's tokens on the chain into a run's pool", calls=True)
    fund.add_argument("run", metavar="NAME")
    fund.add_argument("amount", metavar="AMOUNT", help="such as 100 or 0.5")
    fund.add_argument("--key", type=Path, required=True, help="keystore file of the wallet; not the coordinator's")
    fund.add_argument("--key-password-file", type=Path, required=True, help="file whose first line is its password")
    text = "take back the unpaid part of what a wallet funded, from a run that is over or abandoned"
    reclaim = _command(actions, "reclaim", "chain:reclaim", text)
    add = reclaim.add_argument
    add("run", metavar="NAME")
    add("--rpc", required=True, metavar="URL", help="JSON-RPC node of the chain")
    add(
        "--court",
        required=True,
        metavar="ADDRESS",
        help="the network's court, as `chain status` names it",
    )
    add("--key", type=Path, required=True, help="keystore file of the wallet that funded")
    add("--key-password-file", type=Path, required=True, help="file whose first line is its password")
    add("--fee-gwei-max", type=int, default=200, metavar="GWEI", help="highest gas price (default 200)")
    _command(actions, "anchor", "chain:anchor", "bring the log's head to the chain now, before its epoch", calls=True)


def _add_explorer(commands: Group) -> None:
    text = "web pages over a copy of any log, verified entry by entry; a running coordinator serves its own"
    explorer: argparse.ArgumentParser = commands.add_parser("explorer", help=text, description=text)
    explorer.set_defaults(task="tools:explorer")
    explorer.add_argument(
        "--log",
        required=True,
        metavar="URL|FOLDER",
        help="http://host:port/log, or a folder with a copy of the log",
    )
    explorer.add_argument("--key", help="the log's verifier key, as the operator published it")
    explorer.add_argument(
        "--objects",
        metavar="URL",
        help="where the files named in the log are. Default: beside the log, if that is a URL.",
    )
    explorer.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="folder of the index and the copy. Default: in the user's cache.",
    )
    explorer.add_argument("--model", type=Path, action="append", help="model folder whose tokenizer decodes texts")
    explorer.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    explorer.add_argument("--port", type=int, default=EXPLORER_PORT, help=f"port (default {EXPLORER_PORT}; 0: any)")


def _add_others(commands: Group) -> None:
    _add_explorer(commands)
    for name, (_, text) in LAB_PROGRAMS.items():
        commands.add_parser(name, help=f"{text}; everything after it is passed on")
    add_completion(commands).set_defaults(task="tools:completion")
