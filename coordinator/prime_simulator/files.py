"""Rollout files as the simulator knows them: what intake can see of one, and the truth that only an audit can find."""

from dataclasses import dataclass, replace
from hashlib import sha256

from prime_coordinator.intake import Expected
from prime_protocol.entries import Submitted
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId, Step
from prime_protocol.rollouts import RolloutHeader, verify_header

HONEST = ""
FORGERIES = ("cheaper model", "best of many", "edited answer", "older weights", "cut short", "forged proof")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeFile:
    """A file without rows."""

    run: RunId
    step: Step
    lease: int
    node: NodeId
    checkpoint_root: Digest
    first_slot: int
    slots: int
    output_tokens: int
    context_tokens: int
    forgery: str = HONEST
    """What an audit finds in it; no cheap check does."""
    salt: int = 0

    @property
    def digest(self) -> Digest:
        return Digest(sha256(repr(self).encode()).digest())

    @property
    def rollout_root(self) -> Digest:
        return Digest(sha256(b"rows" + self.digest).digest())

    @property
    def size_bytes(self) -> int:
        return 16 * self.output_tokens

    def header(self) -> RolloutHeader:
        return RolloutHeader(
            run=self.run, step=self.step, checkpoint_root=self.checkpoint_root, lease=self.lease, node=self.node
        )


class FileStore:
    """Every file that anybody made."""

    def __init__(self) -> None:
        self._files: dict[Digest, FakeFile] = {}

    def add(self, file: FakeFile) -> Digest:
        digest = file.digest
        self._files[digest] = file
        return digest

    def get(self, digest: Digest) -> FakeFile | None:
        return self._files.get(digest)


def check_file(file: FakeFile | None, entry: Submitted, expected: Expected) -> None:
    """The cheap checks, in the order of the coordinator's intake."""
    if file is None or file.size_bytes != entry.file_bytes:
        raise RemoteError("receipt.file_digest", "the file has another digest or size")
    verify_header(file.header(), expected.header)
    if (file.first_slot, file.slots) != (expected.limits.first_slot, expected.limits.slots):
        raise RemoteError("rows", "are not those of the lease")
    if file.rollout_root != entry.receipt.rollout_root:
        raise RemoteError("receipt.rollout_root", "the rows have another root")
    if (file.output_tokens, file.context_tokens) != (entry.output_tokens, entry.context_tokens):
        raise RemoteError("output_tokens", "the file has others")


def forge(file: FakeFile, kind: str) -> FakeFile:
    return replace(file, forgery=kind)
