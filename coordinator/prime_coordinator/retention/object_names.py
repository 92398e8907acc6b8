"""The names of files of nodes in the object store. Pure.

Rollout files and evidence are under the day on which the lease was granted that they are about, in UTC:
`rollouts/2026/11/18/ab/<digest>`. The log has that day, so the name follows from the log. It is known before the file
is uploaded, and a bucket can expire a prefix. Manifests are small and have no day: `manifests/ab/<digest>`.
"""

from datetime import date, timedelta
from enum import StrEnum

from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UploadPurpose
from prime_runtime.objects.store import content_key

DAY_MS = 24 * 3_600_000
EPOCH = date(1970, 1, 1)


class FileKind(StrEnum):
    """What a file is, and the first part of its name."""

    ROLLOUTS = "rollouts"
    EVIDENCE = "evidence"
    MANIFESTS = "manifests"


DATED_KINDS = (FileKind.ROLLOUTS, FileKind.EVIDENCE)
KIND_OF_PURPOSE = {
    UploadPurpose.ROLLOUTS: FileKind.ROLLOUTS,
    UploadPurpose.EVIDENCE: FileKind.EVIDENCE,
    UploadPurpose.MANIFEST: FileKind.MANIFESTS,
}


def get_day(at_ms: int) -> int:
    """Days since 1970 in UTC."""
    return at_ms // DAY_MS


def make_day_prefix(kind: FileKind, day: int) -> str:
    """The folder of everything of one kind and day."""
    return f"{kind}/{EPOCH + timedelta(days=day):%Y/%m/%d}"


def make_key(kind: FileKind, day: int, digest: Digest) -> str:
    """The day of a manifest does not matter."""
    return content_key(make_day_prefix(kind, day) if kind in DATED_KINDS else str(kind), digest)
