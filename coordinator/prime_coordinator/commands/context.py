"""What every command is handed: its arguments, the environment, the screen, and a way to ask for a password."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prime_coordinator.arguments import FOLDER, FOLDER_VARIABLE
from prime_coordinator.config import CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.home import Home
from prime_protocol.errors import LocalError
from prime_runtime.password import PASSWORD_CHARS_MIN
from prime_runtime.screen import Screen
from prime_runtime.secret import Secret


class NotReached(LocalError):
    """The coordinator is not running, or does not answer."""


@dataclass(frozen=True, slots=True)
class Context:
    """One call of the command line."""

    args: Namespace
    variables: Mapping[str, str]
    """The environment, as cli.py read it."""
    screen: Screen
    complain: Callable[[str], None]
    """One line on standard error."""
    ask_password: Callable[[bool], str | None]
    """Asks on the terminal, twice if True; None where there is no terminal."""

    @property
    def folder(self) -> Path:
        given = self.args.folder or self.variables.get(FOLDER_VARIABLE) or FOLDER
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise LocalError("there is no home folder; give --folder") from None

    def load_config(self) -> CoordinatorConfig:
        """The settings of the coordinator that is in the folder."""
        if not Home(self.folder).config.exists():
            raise LocalError(
                f"there is no coordinator in {self.folder};"
                f" make one with: prime-coordinator init --folder {self.folder}"
            )
        return resolve_coordinator_config(self.folder, {}, self.settings_variables()).config

    def settings_variables(self) -> dict[str, str]:
        """The environment as the settings read it; the folder was found already."""
        return {name: value for name, value in self.variables.items() if name != FOLDER_VARIABLE}

    def with_password(self, config: CoordinatorConfig, *, confirm: bool = False) -> CoordinatorConfig:
        """Ask for the key's password where no setting says it and somebody is there to answer."""
        if config.password is not None or config.password_file is not None:
            return config
        text = self.ask_password(confirm)
        if text is None:
            return config
        if len(text) < PASSWORD_CHARS_MIN:
            raise LocalError(f"the password has {len(text)} characters, it needs at least {PASSWORD_CHARS_MIN}")
        return replace(config, password=Secret(text))
