"""Output of commands: tables and progress on a terminal, plain columns in a pipe, JSON on request.

Untrusted text is printed literally: rich interprets no markup, links or emoji in it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 10_000
"""A pipe has no width: nothing is folded or truncated."""


class CommandOutput:
    """Standard output."""

    def __init__(self, file: TextIO) -> None:
        self.is_terminal = file.isatty()
        self._file = file
        self._console = Console(
            file=file,
            width=None if self.is_terminal else PIPE_WIDTH,
            no_color=None if self.is_terminal else True,
            force_terminal=None if self.is_terminal else False,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=False,
        )

    def print_line(self, line: str) -> None:
        self.write(line + "\n")

    def write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def print_json(self, value: Any, *, in_one_line: bool = False) -> None:
        self.write(json.dumps(value, indent=None if in_one_line else 2) + "\n")

    def show(self, *parts: RenderableType) -> None:
        with self._console.capture() as captured:
            for part in parts:
                self._console.print(part)
        # Cells are padded to the width of their column; in a pipe the padding at the end of a line is removed.
        lines = captured.get().split("\n")
        self.write("\n".join(line if self.is_terminal else line.rstrip() for line in lines))

    def live(self, *, full: bool = False) -> Live:
        """A display that is redrawn; `full` uses the whole terminal and restores it at the end."""
        return Live(console=self._console, auto_refresh=False, transient=False, screen=full)

    def spinner(self, text: str) -> AbstractContextManager[Any]:
        """A progress spinner; prints nothing in a pipe."""
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        progress = Progress(*columns, console=self._console, transient=True, disable=not self.is_terminal)
        progress.add_task(text, total=None)
        return progress

    @contextmanager
    def progress_bar(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar; the function that it gives takes what is done and the total. Prints nothing in a pipe."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, transient=True, disable=not self.is_terminal) as progress:
            task = progress.add_task(text, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
        """A terminal that is too narrow folds ids and never truncates them: people copy them."""
        table = Table(
            box=SIMPLE_HEAD if self.is_terminal else None,
            title=Text(title) if title else None,
            title_justify="left",
            pad_edge=False,
            show_edge=False,
        )
        for header in headers:
            table.add_column(Text(header), overflow="fold", no_wrap=not self.is_terminal)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def key_value_table(self, pairs: Iterable[tuple[str, str]]) -> Table:
        """Two columns: names and values."""
        grid = Table.grid(padding=(0, 2))
        for name, value in pairs:
            grid.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
        return grid


def stack(*parts: RenderableType) -> Group:
    return Group(*parts)
