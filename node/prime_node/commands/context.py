"""What every command is handed: its arguments, the environment, the screen, and a way to ask for a password."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prime_node.arguments import FOLDER, FOLDER_VARIABLE
from prime_node.config import NodeConfig, resolve_node_config
from prime_node.home import Home, read_pins
from prime_protocol.errors import LocalError
from prime_runtime.password import PASSWORD_CHARS_MIN
from prime_runtime.screen import Screen
from prime_runtime.secret import Secret
from prime_runtime.settings import Resolved, read_flags


@dataclass(frozen=True, slots=True)
class Context:
    """One call of the command line."""

    args: Namespace
    variables: Mapping[str, str]
    """The environment, as cli.py read it."""
    screen: Screen
    ask_password: Callable[[str, bool], str | None]
    """Asks on the terminal, twice if True; None where there is no terminal."""

    @property
    def folder(self) -> Path:
        given = self.args.folder or self.variables.get(FOLDER_VARIABLE) or FOLDER
        try:
            return Path(given).expanduser().absolute()
        except RuntimeError:
            raise LocalError("there is no home folder; give --folder") from None

    def resolve(self, flags: Mapping[str, Any] | None = None) -> Resolved[NodeConfig]:
        """The settings by flags, environment and file, with where each came from."""
        given = read_flags(self.args, NodeConfig) if flags is None else flags
        others = {name: value for name, value in given.items() if name != "folder"}
        variables = {name: value for name, value in self.variables.items() if name != FOLDER_VARIABLE}
        return resolve_node_config(self.folder, others, variables)

    def load_config(self, *, with_password_flag: bool = True) -> NodeConfig:
        """The settings of the node that is in the folder, with what it has learnt of its coordinator."""
        if not self.folder.exists():
            raise LocalError(f"there is no node in {self.folder}; prime-node start makes one")
        config = with_pins(self.resolve({}).config)
        file = self.args.key_password_file
        return replace(config, password=None, password_file=file) if file and with_password_flag else config

    def with_password(self, config: NodeConfig, question: str = "password of the node's key") -> NodeConfig:
        """Ask for the key's password where nothing says it and somebody is there to answer."""
        if config.password or config.password_file or Home(config.folder).password.exists():
            return config
        text = self.ask_password(question, False)
        return config if text is None else replace(config, password=check_password(text))


def with_pins(config: NodeConfig) -> NodeConfig:
    """What is not set is what was learnt before."""
    missing: dict[str, Any] = {name: value for name, value in read_pins(config).items() if not getattr(config, name)}
    return replace(config, **missing)


def check_password(text: str) -> Secret:
    if len(text) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password has {len(text)} characters, it needs at least {PASSWORD_CHARS_MIN}")
    return Secret(text)
