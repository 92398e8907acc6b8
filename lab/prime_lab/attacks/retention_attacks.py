"""A file that is deleted before its case is judged: what validators and finders could try, against the file table.

They cannot delete a file. They can name any file in a verdict or a finding, and so try to give it the due time of a
step that ends earlier, or of a kind that is kept for a shorter time.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Connection

from prime_coordinator.log.migrations import migrate
from prime_coordinator.log.store import open_engine
from prime_coordinator.retention.file_rows import StoredFile, add_file, apply_changes, expire_due, find_file
from prime_coordinator.retention.object_names import FileKind
from prime_coordinator.retention.schedule import FileClaimed, FileReason, StepReleased
from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    EXPIRED_EVIDENCE,
)
from prime_protocol.wire.ids import Digest, RunId, Step

RUN = RunId("attacked")
OPEN, OVER = Step(5), Step(0)
"""The step with the file and the finding, and one that ends long before."""
FINDING, OLD = "0xf1", "0x01"
"""Submissions of these steps."""
SLASH_MS = 10**12
LATER_MS = 10**11
SHORT = {FileReason.ROLLOUTS: 1, FileReason.EVIDENCE: 1, FileReason.MANIFESTS: 1, FileReason.SLASHES: SLASH_MS}


def attack_retention(folder: Path) -> Iterator[tuple[Attack, AttackResult]]:
    folder.mkdir(parents=True, exist_ok=True)
    engine = open_engine(f"sqlite:///{folder / 'files.db'}")
    with engine.begin() as connection:
        migrate(connection)
        yield EXPIRED_EVIDENCE, name_files_elsewhere(connection)
    engine.dispose()


def name_files_elsewhere(connection: Connection) -> AttackResult:
    """The file that convicts and the evidence of the finding are named in a step that ends at once."""
    forged, evidence = (_add(connection, kind) for kind in (FileKind.ROLLOUTS, FileKind.EVIDENCE))
    _claim(connection, forged, OPEN, FINDING)
    _claim(connection, evidence, OVER, OLD)  # uploaded for an old submission, as the finder chose
    _claim(connection, forged, OVER, OLD)  # an accomplice's verdict names the file that convicts
    _claim(connection, evidence, OPEN, FINDING)  # the finding names what is about to go
    _release(connection, OVER)
    gone = len(expire_due(connection, LATER_MS, 10))
    _release(connection, OPEN, FINDING)
    gone += len(expire_due(connection, LATER_MS, 10))
    kept = [find_file(connection, each) for each in (forged, evidence)]
    is_kept = all(isinstance(each, StoredFile) and each.due_ms == SLASH_MS for each in kept)
    told = f"{gone} of 2 files were deleted while the finding was open or before the slash's time was over"
    verdict = AttackVerdict.HARMLESS if is_kept and not gone else None
    return AttackResult(verdict=verdict, checks=("file_holds",), reason=told)


def _add(connection: Connection, kind: FileKind) -> Digest:
    digest = Digest(sha256(kind.encode()).digest())
    add_file(
        connection,
        StoredFile(digest=digest, kind=kind, day=0, size_bytes=1, reason=FileReason.UNCLAIMED, due_ms=LATER_MS),
    )
    return digest


def _claim(connection: Connection, digest: Digest, step: Step, submission: str) -> None:
    apply_changes(connection, [FileClaimed(size=1, run=RUN, step=step, digest=digest, submission=submission)])


def _release(connection: Connection, step: Step, *slashed: str) -> None:
    apply_changes(connection, [StepReleased(size=1, run=RUN, step=step, until_ms=SHORT, slashed=slashed)])
