"""Files of this node on their way to the coordinator, each under its digest: rollouts and evidence.

A file is here, whole, before anything names it, and stays until nothing does any more.
"""

import logging
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from prime_node.home import write_whole
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest

log = logging.getLogger(__name__)


class Shelf:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> Digest:
        """LocalError: there is no room."""
        digest = Digest(sha256(data).digest())
        path = self._path(digest)
        if not path.exists():
            write_whole(path, data)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        """None where it is not here, or not what it was."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalError(f"cannot read {self._path(digest)}: {error.strerror}") from None
        if Digest(sha256(data).digest()) != digest:
            log.warning("the file %s on this disk is damaged and is removed", digest)
            self.remove(digest)
            return None
        return data

    def remove(self, digest: Digest) -> None:
        self._path(digest).unlink(missing_ok=True)

    def sweep(self, named: Collection[Digest]) -> int:
        """After a start: remove what nothing names, drafts too; how many files that were."""
        keep, removed = {self._path(digest).name for digest in named}, 0
        for path in self._folder.glob("*"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _path(self, digest: Digest) -> Path:
        return self._folder / digest.hex()
