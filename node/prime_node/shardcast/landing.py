"""Where a shard's bytes go as they come: hashed while the processor's cache has them, then written at their place.

So nothing is read again to check it, and the pages of the file are filled once, not cleared before. Nobody looks at
what was written until all of it is there and its digest was right.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from prime_protocol.ids import Digest
from prime_runtime.shardcast.room import open_plain


class Landing:
    """Takes one shard, piece by piece and in order; `keep` is given each piece and its offset in the shard."""

    def __init__(self, length: int, keep: Callable[[int, memoryview], None]) -> None:
        self.length = length
        self._keep = keep
        self._state = blake3()
        self._position = 0

    def take(self, piece: memoryview) -> None:
        """OSError where there is no room for it."""
        self._state.update(piece)
        self._keep(self._position, piece)
        self._position += len(piece)

    @property
    def digest(self) -> Digest:
        """Of what has come."""
        return Digest(self._state.digest())


@contextmanager
def land_in_file(path: Path, offset: int, length: int) -> Iterator[Landing]:
    """Straight into a part of a file."""
    with open_plain(path, "r+b") as file:
        yield Landing(length, lambda position, piece: write_at(file.fileno(), offset + position, piece))


def land_in_memory(place: bytearray) -> Landing:
    """Into memory of the shard's length."""

    def keep(position: int, piece: memoryview) -> None:
        place[position : position + len(piece)] = piece

    return Landing(len(place), keep)


def write_at(file: int, offset: int, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(file, piece[done:], offset + done)
