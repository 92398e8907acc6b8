"""`prime-node start`, `service`, `config show` and `completion`.

`start` takes settings from flags, environment and file and runs the daemon until it is stopped. `service` installs a
systemd user unit, so that the node starts with the machine and after a crash.
"""

import asyncio
import getpass
import logging
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from prime_node.app import run
from prime_node.cli.arguments import FOLDER_VARIABLE, build_parser
from prime_node.cli.context import NodeCliContext, with_pins
from prime_node.config import NodeConfig
from prime_node.storage.node_folder import PINNED, NodeFolder, make_folder, read_pins, save_first_config
from prime_protocol.errors import LocalError
from prime_runtime.cli import SettingsHelp, build_completion_script
from prime_runtime.logs import LogLevel, configure_logging
from prime_runtime.settings.loader import DEFAULT, describe_config, list_secrets, list_values

log = logging.getLogger(__name__)


NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")


def unit_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise LocalError(f"--name is {name!r}; use a-z, 0-9 and dashes")
    return f"{name}.service"


def render_unit(program: Path, folder: Path) -> str:
    """systemd restarts it without a limit, so that after an hour with a full disk no operator is needed, and kills it
    only after it had time to return its leases.
    """
    command = " ".join(_quote(word) for word in (str(program), "start", "--folder", str(folder)))
    return f"""[Unit]
Description=prime-node in {_escape(str(folder))}
StartLimitIntervalSec=0

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=10
TimeoutStopSec=60
LimitNOFILE=65536
Nice=5

[Install]
WantedBy=default.target
"""


def _quote(word: str) -> str:
    """Quote a word for systemd where needed, and double %."""
    escaped = _escape(word)
    return escaped if escaped == shlex.quote(escaped) else '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    if not text.isprintable():
        raise LocalError(f"{text!r} cannot be written into a systemd unit; choose another folder")
    return text.replace("%", "%%").replace("$", "$$")


def init(context: NodeCliContext) -> int:
    """Write the settings without starting: for people who want to read and change them first."""
    config = with_absolute_paths(context.resolve().config)
    make_folder(config.folder)
    path = NodeFolder(config.folder).config
    if not save_first_config(config):
        raise LocalError(f"{path} exists: change it, or choose another --folder")
    context.screen.print_line(f"wrote {path}: every setting with its default")
    context.screen.print_line(f"start the node with: prime-node start --folder {config.folder}")
    return 0


def start(context: NodeCliContext) -> int:
    resolved = context.resolve()
    config = with_absolute_paths(with_pins(resolved.config))
    if not config.coordinator:
        raise LocalError(
            "no coordinator is set. The operator of a network publishes its URL: "
            "prime-node start --coordinator http://host:port"
        )
    if NodeFolder(config.folder).key.exists():
        config = context.with_password(config)
    make_folder(config.folder)  # before the log file creates it with wider permissions
    logs = config.log if config.log.file else replace(config.log, file=NodeFolder(config.folder).log)
    # On a terminal, log lines below WARNING go only to the file, so that the few lines for the user stay visible.
    is_quiet = sys.stderr.isatty() and resolved.sources["log.level"] == DEFAULT
    configure_logging(
        logs, stream=sys.stderr, secrets=list_secrets(config), stream_level=LogLevel.WARNING if is_quiet else None
    )
    for line in describe_config(resolved):
        log.log(logging.DEBUG if line.endswith(f"({DEFAULT})") else logging.INFO, "setting %s", line)
    return asyncio.run(run(config, context.screen.print_line))


def with_absolute_paths(config: NodeConfig) -> NodeConfig:
    """Paths saved to config.toml must be valid from any working directory."""
    return replace(
        config,
        password_file=make_absolute(config.password_file),
        authority=make_absolute(config.authority),
        delegation=make_absolute(config.delegation),
    )


def make_absolute(path: Path | None) -> Path | None:
    return path.absolute() if path else None


SYSTEMCTL_S = 60
LINGER = Path("/var/lib/systemd/linger")


def install_service(context: NodeCliContext) -> int:
    name, folder = unit_name(context.args.name), context.folder
    if not NodeFolder(folder).config.exists():
        raise LocalError(f"there is no node in {folder} yet: start it once by hand, prime-node start --coordinator URL")
    unit = render_unit(Path(sys.argv[0]).absolute(), folder)
    check_systemd(unit)
    path = find_unit_folder(context) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
    run_systemctl("daemon-reload")
    run_systemctl("enable", "--now", name)
    print_line = context.screen.print_line
    print_line(f"wrote {path}; the node is started, and starts with your session from now on")
    print_line(f"see: prime-node status, systemctl --user status {name}, prime-node logs --follow")
    user = getpass.getuser()
    if not (LINGER / user).exists():
        print_line(f"it stops when you log out, unless: sudo loginctl enable-linger {user}")
    return 0


def uninstall_service(context: NodeCliContext) -> int:
    name = unit_name(context.args.name)
    path = find_unit_folder(context) / name
    if not path.exists():
        raise LocalError(f"there is no {path}")
    check_systemd("")
    run_systemctl("disable", "--now", name)
    path.unlink()
    run_systemctl("daemon-reload")
    context.screen.print_line(f"stopped the node and removed {path}; the node's folder is unchanged")
    return 0


def find_unit_folder(context: NodeCliContext) -> Path:
    """The folder of the user's systemd units."""
    given = context.variables.get("XDG_CONFIG_HOME")
    home = context.variables.get("HOME")
    if not given and not home:
        raise LocalError("there is no home folder, so systemd has no place for a user's units")
    return (Path(given) if given else Path(home or "") / ".config") / "systemd" / "user"


def check_systemd(unit: str) -> None:
    """LocalError, with an alternative, if no systemd manages this user's units."""
    problem = "there is no systemctl on this machine"
    if shutil.which("systemctl"):
        done = _systemctl("show-environment")
        if done.returncode == 0:
            return
        problem = f"systemd does not answer this user: {done.stderr.strip() or 'no reason given'}"
    shown = f" The unit would have been:\n\n{unit}" if unit else ""
    raise LocalError(f"{problem}. Start `prime-node start` with this machine's own service manager.{shown}")


def run_systemctl(*words: str) -> None:
    done = _systemctl(*words)
    if done.returncode:
        raise LocalError(f"systemctl --user {' '.join(words)} failed: {done.stderr.strip()}")


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {SYSTEMCTL_S} s")


def show_settings(context: NodeCliContext) -> int:
    resolved = context.resolve()
    pins, rows = read_pins(resolved.config), []
    for key, value, source in list_values(resolved):
        if key == "folder" and context.args.folder is None:
            source = FOLDER_VARIABLE if context.variables.get(FOLDER_VARIABLE) else DEFAULT
        if key in PINNED and source == DEFAULT and key in pins:
            value, source = pins[key], str(NodeFolder(context.folder).run)
        if source != DEFAULT or not context.args.changed:
            rows.append((key, value, source))
    if context.args.json:
        context.screen.print_json([{"setting": key, "value": value, "source": source} for key, value, source in rows])
        return 0
    context.screen.show(context.screen.table(["setting", "value", "from"], rows))
    return 0


def print_completion(context: NodeCliContext) -> int:
    context.screen.write(build_completion_script(build_parser(SettingsHelp.ALL), context.args.shell))
    return 0
