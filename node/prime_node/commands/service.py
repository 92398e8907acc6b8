"""`prime-node service`: a systemd user unit, so that the node starts with the machine and after a crash."""

import getpass
import shutil
import subprocess
import sys
from pathlib import Path

from prime_node.commands.context import Context
from prime_node.home import Home
from prime_node.service_unit import render_unit, unit_name
from prime_protocol.errors import LocalError

SYSTEMCTL_S = 60
LINGER = Path("/var/lib/systemd/linger")


def install(context: Context) -> int:
    name, folder = unit_name(context.args.name), context.folder
    if not Home(folder).config.exists():
        raise LocalError(f"there is no node in {folder} yet: start it once by hand, prime-node start --coordinator URL")
    unit = render_unit(Path(sys.argv[0]).absolute(), folder)
    check_systemd(unit)
    path = find_place(context) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
    run_systemctl("daemon-reload")
    run_systemctl("enable", "--now", name)
    say = context.screen.say
    say(f"wrote {path}; the node is started, and is from now on with your session")
    say(f"look: prime-node status, systemctl --user status {name}, prime-node logs --follow")
    user = getpass.getuser()
    if not (LINGER / user).exists():
        say(f"it ends when you log out, unless: sudo loginctl enable-linger {user}")
    return 0


def uninstall(context: Context) -> int:
    name = unit_name(context.args.name)
    path = find_place(context) / name
    if not path.exists():
        raise LocalError(f"there is no {path}")
    check_systemd("")
    run_systemctl("disable", "--now", name)
    path.unlink()
    run_systemctl("daemon-reload")
    context.screen.say(f"stopped it and removed {path}; the node's folder is untouched")
    return 0


def find_place(context: Context) -> Path:
    """Where systemd looks for the units of a user."""
    given = context.variables.get("XDG_CONFIG_HOME")
    home = context.variables.get("HOME")
    if not given and not home:
        raise LocalError("there is no home folder, so systemd has no place for a user's units")
    return (Path(given) if given else Path(home or "") / ".config") / "systemd" / "user"


def check_systemd(unit: str) -> None:
    """Refuse where no systemd answers to this user, with what can be done instead."""
    problem = "there is no systemctl on this machine"
    if shutil.which("systemctl"):
        done = _systemctl("show-environment")
        if done.returncode == 0:
            return
        problem = f"systemd does not answer to this user: {done.stderr.strip() or 'no reason given'}"
    shown = f" The unit would have been:\n\n{unit}" if unit else ""
    raise LocalError(f"{problem}. Have whatever starts programs here run: prime-node start.{shown}")


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
