"""The command line of prime-node: commands, their arguments, and the function that carries out each.

Nothing heavy is imported here. The flags of settings are added only where they are needed, since making them means
importing what they configure.
"""

import argparse
from pathlib import Path
from typing import Any

from prime_runtime.cli import SettingsHelp, add_version

EXIT_CODES = """exit codes:
  0    done, or stopped as asked
  1    refused, and the text says why and what to do
  2    wrong command line
  3    a check found something: doctor, plan, selftest, audit, challenge --dry-run; status, accusations, start: the
       coordinator broke a rule
  4    the node is not running, or does not answer
  130  interrupted"""
FOLDER = Path("~/prime-node")
FOLDER_VARIABLE = "PRIME_FOLDER"
WITH_SETTINGS = ("init", "start", "doctor", "config", "calibrate", "selftest")
"""Commands that take the flag of every setting."""
Group = Any
"""argparse gives no public name to what add_subparsers returns."""


COMMON_SETTINGS = {
    "joining a run": ("folder", "coordinator", "run", "role"),
    "identity and stake": ("password_file", "delegation", "stake", "rpc"),
    "engine": ("engine.engine", "engine.python", "engine.device", "engine.threads"),
    "disk and network": ("weights.folder", "weights.disk_bytes_max", "weights.bytes_per_s", "announce", "listen.port"),
    "when to work": ("policy.hours", "policy.idle_only", "policy.stop_at"),
}
"""Flags that `start --help` shows, by group; `--help-all` shows the others too."""


def build_parser(settings: SettingsHelp = SettingsHelp.NONE, command: str = "") -> argparse.ArgumentParser:
    """With `command`, the settings of other commands may be left out: making flags takes time."""

    def choose(*names: str) -> SettingsHelp:
        return settings if command in ("", *names) else SettingsHelp.NONE

    parser = argparse.ArgumentParser(
        prog="prime-node",
        description="Lend a machine to a training run.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    # Flags that both a command and its action take are absent unless given: an action's default would win otherwise.
    parser.set_defaults(folder=None, json=False, key=None, key_password_file=None, rpc_url=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_lifecycle(commands, choose("init", "start"))
    _add_inspection(commands, choose("doctor"))
    _add_audit(commands)
    _add_keys(commands)
    _add_stake(commands)
    _add_calibrate(commands, choose("calibrate"))
    _add_plan(commands)
    _add_selftest(commands, choose("selftest"))
    _add_maintenance(commands, choose("config"))
    return parser


def _command(commands: Group, name: str, task: str, text: str, *, has_json: bool = False) -> argparse.ArgumentParser:
    """`task` is module:function under prime_node.cli."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(task=task)
    _add(parser, "--folder", type=Path, help=f"the node's folder (${FOLDER_VARIABLE}). Default: {FOLDER}.")
    if has_json:
        _add(parser, "--json", action="store_true", help="print JSON instead of text")
    return parser


def _add(parser: argparse.ArgumentParser, flag: str, **how: Any) -> None:
    parser.add_argument(flag, default=argparse.SUPPRESS, **how)


def _with_settings(commands: Group, name: str, task: str, text: str, settings: SettingsHelp) -> argparse.ArgumentParser:
    """A command whose flags are the settings; they bring --folder along."""
    if settings is SettingsHelp.NONE:
        return _command(commands, name, task, text)
    from prime_node.config import NodeConfig
    from prime_runtime.settings.flags import add_flags

    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(task=task)
    add_flags(parser, NodeConfig, COMMON_SETTINGS, show_all=settings is SettingsHelp.ALL)
    return parser


def _add_lifecycle(commands: Group, settings: SettingsHelp) -> None:
    _with_settings(
        commands, "init", "setup:init", "make the folder and a config.toml that explains every setting", settings
    )
    start = _with_settings(
        commands,
        "start",
        "setup:start",
        "run the node until it is stopped; the first start needs only --coordinator",
        settings,
    )
    start.epilog = "--help-all lists every setting. Each is also a line in config.toml and an environment variable."
    for name, text in (
        ("pause", "finish the current jobs and take no more until `resume`"),
        ("resume", "take work again"),
    ):
        parser = _command(commands, name, f"status:{name}", text)
        parser.add_argument("--gpu", metavar="GPU", help="only on this GPU, by number or UUID as `doctor` shows it")
    _command(commands, "drain", "status:drain", "finish the current jobs, then stop")
    _command(commands, "stop", "status:stop", "return the leases and stop; wait until it has stopped")


def _add_inspection(commands: Group, settings: SettingsHelp) -> None:
    status = _command(commands, "status", "status:show_status", "show what the running node is doing", has_json=True)
    status.add_argument("--watch", action="store_true", help="refresh the whole screen every second, until interrupted")
    _command(
        commands,
        "peers",
        "peers:show_peers",
        "list the nodes connected over libp2p: how far, at what rates, through which relay",
        has_json=True,
    )
    rollouts = _command(
        commands,
        "rollouts",
        "status:show_rollouts",
        "list the node's jobs and what became of them, newest first; or show one",
        has_json=True,
    )
    rollouts.add_argument("id", nargs="?", metavar="ID", help="a submission or lease, to show all that is known of it")
    rollouts.add_argument("--limit", type=int, default=20, metavar="N", help="rows to show (default 20)")
    accusations = _command(
        commands,
        "accusations",
        "status:show_accusations",
        "list evidence that the coordinator broke a rule; or let the node work again",
        has_json=True,
    )
    actions = accusations.add_subparsers(dest="action", metavar="ACTION")
    _command(actions, "acknowledge", "status:acknowledge", "you have read them all: the node takes work again")
    doctor = _with_settings(
        commands,
        "doctor",
        "diagnose:run_doctor",
        "check whether this machine can take part, and say what to fix",
        settings,
    )
    _add(doctor, "--json", action="store_true", help="print JSON instead of text")
    logs = _command(commands, "logs", "status:show_logs", "show the node's log", has_json=True)
    logs.add_argument("--follow", action="store_true", help="keep printing new lines, until interrupted")
    logs.add_argument("--lines", type=int, default=50, metavar="N", help="lines to start with (default 50)")


def _add_audit(commands: Group) -> None:
    text = "replay a verdict, or check any submission, and say whether this machine gets the same result"
    audit = _command(commands, "audit", "audit:audit", text, has_json=True)
    audit.add_argument("verdict", nargs="?", help="id of the submission, or digest of the evidence")
    audit.add_argument("--coordinator", help="coordinator to fetch from. Default: that of the node in the folder.")
    audit.add_argument("--bundle", type=Path, help="evidence bundle to use instead of fetching it")
    audit.add_argument("--weights", type=Path, help="checkpoint folder. Default: the node's own copy.")
    audit.add_argument("--file", type=Path, help="rollout file, where it is too large for its bundle")
    audit.add_argument("--dataset", type=Path, help="problem file of the run's task set, where it has one")
    audit.add_argument(
        "--file-finding",
        action="store_const",
        dest="task",
        const="findings:file_finding",
        default="audit:audit",
        help="if the submission is fraudulent, file a finding with the bond that the run's terms require",
    )
    audit.add_argument("--force", action="store_true", help="file the finding though this machine finds no fraud")
    audit.add_argument("--key", type=Path, help="keystore file of the account that files it. Default: the node's.")
    _add_password(audit)
    text = "list the findings that this account has filed, newest first, and how each ended"
    findings = _command(commands, "findings", "findings:show_findings", text, has_json=True)
    findings.add_argument("--key", type=Path, help="keystore file of the account. Default: the node's.")
    _add_password(findings)


def _add_keys(commands: Group) -> None:
    keys: argparse.ArgumentParser = commands.add_parser("keys", help="the wallet key that is this node's identity")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = _command(actions, "new", "keys:new", "create a key and write it, encrypted, to a file")
    new.add_argument("--out", type=Path, help="keystore file to write; never overwritten. Default: in the folder.")
    show = _command(actions, "show", "keys:show", "print the address, name and peer id of a key", has_json=True)
    show.add_argument("file", type=Path, nargs="?", help="keystore file. Default: the node's.")
    backup = _command(
        actions, "backup", "keys:backup", "write an encrypted copy of the node's key, and verify that it opens"
    )
    backup.add_argument("target", type=Path, help="keystore file to write; never overwritten")
    backup.add_argument("--new-password-file", type=Path, help="the copy's own password. Default: the node's.")
    recover = _command(
        actions, "recover", "keys:recover", "restore the key of this folder from a copy or a private key"
    )
    recover.add_argument("source", help="keystore file, or a file with 64 hex digits; - reads standard input")
    recover.add_argument("--replace", action="store_true", help="rename the current key instead of refusing")
    delegate = _command(actions, "delegate", "keys:delegate", "as an owner: let a node work with your stake")
    delegate.add_argument("node", metavar="NODE", help="address of the node's key")
    delegate.add_argument("--key", type=Path, required=True, help="keystore file of the owner")
    delegate.add_argument("--network", help="name of the network. Default: that of the node in the folder.")
    delegate.add_argument(
        "--domain", metavar="CHAIN:COURT", help="where the network settles. Default: as for --network."
    )
    delegate.add_argument("--days", type=int, default=365, help="validity (default 365)")
    delegate.add_argument("--out", type=Path, required=True, help="file to write, for `start --delegation`")
    for action in (new, show, backup, recover, delegate):
        _add_password(action)


def _add_password(parser: argparse.ArgumentParser) -> None:
    text = "read the key's password from this file's first line instead of asking"
    _add(parser, "--password-file", type=Path, dest="key_password_file", help=text)


def _add_challenge(commands: Group) -> argparse.ArgumentParser:
    challenge = _command(
        commands,
        "challenge",
        "challenge:challenge",
        "compare the chain's pending payout roots with the log, and vote against a wrong one",
    )
    challenge.add_argument(
        "--mirror", type=Path, help="copy of the log to replay. Default: what the coordinator serves."
    )
    challenge.add_argument("--dry-run", action="store_true", help="compare only; exits with 3 if a root is wrong")
    challenge.add_argument(
        "--unverified",
        action="store_true",
        help="vote against the oldest pending root without a replay, because the log is withheld or breaks its rules",
    )
    return challenge


def _add_stake(commands: Group) -> None:
    stake = _command(
        commands,
        "stake",
        "stake:show",
        "show the stake, the run's minimum and the balance; or change the stake",
        has_json=True,
    )
    actions = stake.add_subparsers(dest="action", metavar="ACTION")
    add = _command(actions, "add", "stake:add", "stake an amount of the balance for the node")
    remove = _command(
        actions, "remove", "stake:remove", "unstake an amount; it stays slashable until the delay is over"
    )
    release = _command(
        actions, "release", "stake:release", "move unstaked amounts whose delay is over into the balance"
    )
    unstake = _command(commands, "unstake", "stake:remove", "same as `stake remove`")
    for action in (add, remove, unstake):
        action.add_argument("amount", metavar="AMOUNT", help="in the network's currency, such as 100 or 0.5")
    withdraw = _command(commands, "withdraw", "stake:release", "same as `stake release`; on a chain: into the wallet")
    claim = _command(commands, "claim", "stake:claim", "collect rewards, where the network settles on a chain")
    claim.add_argument("--bounty", action="store_true", help="collect bounties of findings from the court instead")
    appeal = _command(
        commands, "appeal", "stake:appeal", "appeal a slash or a penalty, with the bond that the run's terms require"
    )
    appeal.add_argument(
        "submission",
        metavar="SUBMISSION",
        help="id of the submission that the slash, or a validator's penalty, is about",
    )
    appeal.add_argument("--reason", default="", help="text for the public log")
    challenge = _add_challenge(commands)
    for action in (stake, add, remove, release, unstake, withdraw, claim, appeal, challenge):
        _add(action, "--key", type=Path, help="keystore file of the owner, if that is not the node itself")
        _add(
            action,
            "--rpc",
            dest="rpc_url",
            metavar="URL",
            help="RPC URL of the chain, where the network settles on one",
        )
        _add_password(action)


def _add_calibrate(commands: Group, settings: SettingsHelp) -> None:
    text = "measure the noise between honest engines of several machines, and write the bounds of a run"
    calibrate: argparse.ArgumentParser = commands.add_parser("calibrate", help=text, description=text)
    actions = calibrate.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "generate completions with proofs on this machine, in every way that it can run the model"
    write = _with_settings(actions, "write", "calibrate:write", text, settings)
    write.add_argument("checkpoint", type=Path, help="checkpoint folder")
    write.add_argument("--out", type=Path, required=True, help="folder for the files, one for each engine class")
    text = "measure completions of any machine with the engines of this one"
    read = _with_settings(actions, "read", "calibrate:read", text, settings)
    read.add_argument("checkpoint", type=Path, help="checkpoint folder, as the files were written with")
    read.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of completions")
    read.add_argument("--out", type=Path, required=True, help="folder for the measurements")
    merge = _command(actions, "merge", "calibrate_merge:merge", "fit the bounds of a run to all measurements")
    merge.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of measurements")
    merge.add_argument("--authors", nargs="+", metavar="ADDRESS", help="refuse files that others have signed")
    text = "write, read and merge on this machine alone"
    machine = _with_settings(actions, "machine", "calibrate:machine", text, settings)
    machine.add_argument("checkpoint", type=Path, help="checkpoint folder")
    for action in (write, machine):
        _add_generation(action)
    for action in (write, read, machine):
        _add_setups(action)
    for action in (read, machine):
        text = "completions of a file that an engine reads which imitates bfloat16 (default 1000)"
        action.add_argument("--slow-rows", type=int, default=1_000, help=text)
    for action in (merge, machine):
        action.add_argument("--out", type=Path, required=True, help="file to write, for the terms of a run")
        _add_target(action)


def _add_generation(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    add("--precision", choices=("float32", "bfloat16"), required=True, help="precision of the run's engines")
    add("--task-set", help="task set to take prompts from. Default: random tokens.")
    add("--completions", type=int, default=4_000, help="generated by all setups together (default 4000)")
    add("--tokens", type=int, default=128, help="longest completion (default 128)")
    add("--temperature", type=float, default=1.0, help="of the sampling (default 1)")
    add("--seed", type=int, default=0, help="of prompts and sampling (default 0)")


def _add_setups(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    add("--vllm-python", type=Path, help="interpreter that has vLLM. Default: vLLM is left out if this one has none.")
    add("--batch-sizes", default="4,64", help="completions at once (default 4,64)")
    add("--thread-counts", default="1,2", help="CPU threads (default 1,2)")
    add("--splits", help="tensor parallel sizes of vLLM, such as 1,2. Default: engine.tensor_parallel, or 1.")


def _add_target(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    add("--false-rejects", type=float, default=1e-9, help="chance that a limit rejects an honest chunk (default 1e-9)")
    add("--confidence", type=float, default=0.95, help="confidence in that chance (default 0.95)")
    add("--file-tokens", type=int, default=512, help="fewest output tokens of a file (default 512)")


def _add_plan(commands: Group) -> None:
    text = "say whether a model fits a machine, how it is split, and what speed and costs to expect"
    plan = _command(commands, "plan", "plan:show_plan", text, has_json=True)
    add = plan.add_argument
    add("model", nargs="?", metavar="MODEL", help="a checkpoint folder, or a model known by name such as Qwen3-8B")
    add("--gpu", metavar="NAME", help="card, such as 4090, A100-80 or H100. Default: those of this machine.")
    add("--memory", type=float, metavar="GB", help="memory of each GPU, for a card that is not known")
    add("--gpus", type=int, metavar="N", help="number of equal GPUs (default 1, or all of this machine)")
    add("--tensor-parallel", type=int, default=0, metavar="N", help="GPUs of one copy. Default: what fits best.")
    add("--sequence-tokens", type=int, default=8192, metavar="N", help="longest sequence of the run (default 8192)")
    add("--bandwidth", type=float, default=100.0, metavar="MBIT", help="of the download, in Mbit/s (default 100)")
    add("--price", type=float, default=0.0, metavar="P", help="price of a kWh, to show the cost of electricity")
    add("--table", action="store_true", help="print the table of the documentation instead")


def _add_selftest(commands: Group, settings: SettingsHelp) -> None:
    text = "try this machine's engines against numpy, transformers and each other, and measure them"
    selftest = _with_settings(commands, "selftest", "selftest:run", text, settings)
    add = selftest.add_argument
    add("checkpoint", type=Path, nargs="?", help="checkpoint folder. Default: a model with random weights.")
    add("--out", type=Path, default=Path("selftest.json"), help="file to write (default selftest.json)")
    add("--vllm-python", type=Path, help="interpreter that has vLLM. Default: vLLM is left out if this one has none.")
    add("--sequences", type=int, default=0, help="completions at once (default 256 on a GPU, 8 on a CPU)")
    add("--tokens", type=int, default=0, help="of each completion (default 256 on a GPU, 64 on a CPU)")
    _add(selftest, "--json", action="store_true", help="print the file instead of the table")


def _add_maintenance(commands: Group, settings: SettingsHelp) -> None:
    diagnose = _command(
        commands,
        "diagnose",
        "diagnose:write_diagnosis",
        "write a signed file that helps to find a fault; it contains no secrets",
    )
    diagnose.add_argument("--out", type=Path, help="file to write. Default: prime-node-diagnosis-TIME.tar.gz here.")
    service: argparse.ArgumentParser = commands.add_parser("service", help="start the node with the machine (systemd)")
    actions = service.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("install", "write and start a systemd user unit for the node in the folder"),
        ("uninstall", "stop it and remove the unit"),
    ):
        action = _command(actions, name, f"setup:{name}_service", text)
        action.add_argument("--name", default="prime-node", help="of the unit (default prime-node)")
    config: argparse.ArgumentParser = commands.add_parser("config", help="show the settings in force")
    shown = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = _with_settings(
        shown, "show", "setup:show_settings", "every setting, its value and where that came from", settings
    )
    _add(show, "--json", action="store_true", help="print JSON instead of text")
    show.add_argument("--changed", action="store_true", help="only those that are not the default")
    completion = commands.add_parser("completion", help="print a script that completes commands")
    completion.set_defaults(task="setup:print_completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
