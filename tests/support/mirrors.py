"""A whole log as a mirror folder, written by the code that the coordinator extends its own with."""

from collections.abc import Sequence
from pathlib import Path

from prime_coordinator.log.mirror import write_log_copy


def write_mirror(folder: Path, leaves: Sequence[bytes], signed_head: bytes) -> None:
    write_log_copy(folder, lambda start, stop: leaves[start:stop], signed_head, len(leaves))
