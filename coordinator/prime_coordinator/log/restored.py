"""Says in the log that it was restored, before anything else is appended.

A restore leaves a mark in the folder. The first start after it appends LogRestored, which tells nodes and auditors
after which entry others may be lost. The mark is removed once a signed head covers the entry.
"""

from pathlib import Path

from prime_coordinator.core import Core
from prime_coordinator.log.writer import LogWriter
from prime_protocol.errors import LocalError
from prime_runtime.log_files import read_bounded

MARK_BYTES_MAX = 20


async def note_restore(mark: Path, core: Core, writer: LogWriter, now_ms: int) -> None:
    """Append the entry if a restore was made and the log does not have it."""
    if not mark.exists():
        return
    text = read_bounded(mark, MARK_BYTES_MAX)
    if not text.isdigit():
        raise LocalError(f"{mark} is damaged; write into it how many entries the restore brought back")
    if core.state.restored_size >= int(text):
        return  # this process was interrupted before it could remove the mark
    core.append_restored(now_ms)
    writer.enqueue(core.entry_writer.drain())
    await writer.flush()
