"""The settings of an explorer that a coordinator serves."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ExplorerConfig:
    """The section [explorer]: web pages over the log, on the same port."""

    enabled: bool = True
    """Serve them. The index that they read takes a process of its own and about 2 kB of disk for each entry."""
    models: tuple[Path, ...] = ()
    """Folders of checkpoints whose tokenizers turn rollouts into text, each used for runs that bind its files."""
