"""What every command is handed: its arguments, the environment, and a way to say something."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.errors import LocalError

FOLDER = Path("~/prime-node")
FOLDER_VARIABLE = "PRIME_FOLDER"


class NotRunning(LocalError):
    """There is no node in the folder, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Context:
    """One call of the command line."""

    args: Namespace
    variables: Mapping[str, str]
    """The environment, as cli.py read it."""
    say: Callable[[str], None]
    """One line, or several, on standard output."""

    @property
    def folder(self) -> Path:
        given = self.args.folder or self.variables.get(FOLDER_VARIABLE) or FOLDER
        try:
            return Path(given).expanduser().absolute()
        except RuntimeError:
            raise LocalError("there is no home folder; give --folder") from None

    def settings_variables(self) -> dict[str, str]:
        """The environment as the settings read it; the folder was found already."""
        return {name: value for name, value in self.variables.items() if name != FOLDER_VARIABLE}
