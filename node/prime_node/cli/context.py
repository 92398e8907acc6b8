"""What every command gets, and how it reaches the running node of a folder: over the control API on loopback, with the
token of the lock file.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prime_node.cli.arguments import FOLDER, FOLDER_VARIABLE
from prime_node.config import NodeConfig, resolve_node_config
from prime_node.engine.config import inherit_gpu_variables
from prime_node.storage.node_folder import NodeFolder, read_pins
from prime_protocol.errors import LocalError
from prime_runtime.console import CommandOutput
from prime_runtime.http.control_api import call_control_api
from prime_runtime.keys import PASSWORD_CHARS_MIN
from prime_runtime.redaction import Secret
from prime_runtime.settings.flags import read_flags
from prime_runtime.settings.loader import ResolvedConfig


async def call_node(folder: Path, method: str, path: str, given: dict[str, str] | None = None) -> dict[str, Any]:
    """One request to the running node of the folder."""
    start = f"prime-node start --folder {folder}"
    return await call_control_api(NodeFolder(folder).lock, "node", method, path, start=start, given=given)


@dataclass(frozen=True, slots=True)
class NodeCliContext:
    """What every command gets: its arguments, the environment, the output, and a way to ask for a password."""

    args: Namespace
    variables: Mapping[str, str]
    """The environment, as main.py read it."""
    screen: CommandOutput
    ask_password: Callable[[str, bool], str | None]
    """Asks on the terminal, twice if True; None without a terminal."""

    @property
    def folder(self) -> Path:
        given = self.args.folder or self.variables.get(FOLDER_VARIABLE) or FOLDER
        try:
            return Path(given).expanduser().absolute()
        except RuntimeError:
            raise LocalError("there is no home folder; give --folder") from None

    def resolve(self, flags: Mapping[str, Any] | None = None) -> ResolvedConfig[NodeConfig]:
        """The settings from flags, environment and file, with the source of each."""
        given = read_flags(self.args, NodeConfig) if flags is None else flags
        others = {name: value for name, value in given.items() if name != "folder"}
        variables = {name: value for name, value in self.variables.items() if name != FOLDER_VARIABLE}
        found = resolve_node_config(self.folder, others, variables)
        engine = inherit_gpu_variables(found.config.engine, self.variables)
        return replace(found, config=replace(found.config, engine=engine))

    def load_config(self, *, with_password_flag: bool = True) -> NodeConfig:
        """The settings of the node in the folder, with what it has learned from its coordinator."""
        if not self.folder.exists():
            raise LocalError(f"there is no node in {self.folder}; prime-node start creates one")
        config = with_pins(self.resolve({}).config)
        file = self.args.key_password_file
        return replace(config, password=None, password_file=file) if file and with_password_flag else config

    def with_password(self, config: NodeConfig, question: str = "password of the node's key") -> NodeConfig:
        """Ask for the key's password if no setting has it and there is a terminal."""
        if config.password or config.password_file or NodeFolder(config.folder).password.exists():
            return config
        text = self.ask_password(question, False)
        return config if text is None else replace(config, password=check_password(text))


def with_pins(config: NodeConfig) -> NodeConfig:
    """Fill empty settings with what earlier starts learned from the coordinator."""
    missing: dict[str, Any] = {name: value for name, value in read_pins(config).items() if not getattr(config, name)}
    return replace(config, **missing)


def check_password(text: str) -> Secret:
    if len(text) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password has {len(text)} characters, it needs at least {PASSWORD_CHARS_MIN}")
    return Secret(text)
