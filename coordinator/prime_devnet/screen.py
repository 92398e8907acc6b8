"""What the person at the keyboard sees: a live view on a terminal, now and then a line elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from prime_devnet import view
from prime_devnet.watch import Look
from prime_protocol.ids import NodeId

LINE_STEPS = 10
"""Between two lines where there is no terminal."""


class Screen:
    """One, from the first word to the last."""

    def __init__(self, steps: int) -> None:
        self._console = Console()
        self._steps = steps
        self._began_s = time.monotonic()
        self._told = ("", -1)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal else None
        self.names: dict[NodeId, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more view; lines still."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, look: Look, phase: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        if self._live is not None:
            self._live.update(
                view.render(look, self.names, steps=self._steps, elapsed_s=elapsed_s, phase=phase), refresh=True
            )
        elif (mark := (phase, look.step // LINE_STEPS)) != self._told:
            self._told = mark
            self.say(view.one_line(look, self._steps, elapsed_s, phase))
