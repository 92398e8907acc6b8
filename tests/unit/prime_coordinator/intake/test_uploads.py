"""Uploads: who may send what, how often, and that what nobody names in time goes away."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from prime_coordinator.config import IntakeConfig
from prime_coordinator.constants import (
    FINDING_BYTES_MAX,
    FINDINGS_UNFILED_MAX,
    GRACE_MS,
    UNCLAIMED_MS,
    UPLOADS_PER_GRANT_MAX,
)
from prime_coordinator.core import Core
from prime_coordinator.intake.uploads import UploadReceiver
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.retention.file_rows import apply_changes
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import FileKind, get_day, make_key
from prime_coordinator.retention.schedule import FileClaimed
from prime_coordinator.retention.sweeper import FileSweeper
from prime_protocol.constants import ENTRY_VALUE_NANO
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, RunId, Step
from prime_protocol.wire.messages import UPLOAD, UploadPurpose, UploadReply, UploadRequest
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller
from prime_runtime.objects.store import ObjectStore, open_object_store
from support.ledger_network import NETWORK, RUN, TERMS, World

LIMIT = 10_000


class BucketLike:
    """A folder that presigns, as a bucket does."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def presign_put(self, key: str, *, digest: Digest, expires_s: int) -> str:
        assert not await self.inner.exists(key), "a key that exists is never presigned"
        return f"https://bucket.example.org/{key}?expires={expires_s}&checksum={digest}"

    def local_path(self, key: str) -> None:
        return None


@dataclass
class Counter:
    """Where uploads are asked for, and everybody who asks."""

    world: World
    core: Core
    uploads: UploadReceiver
    sweeper: FileSweeper
    objects: ObjectStore
    store: LogStore

    def now_ms(self) -> int:
        return self.world.now_ms

    def caller(self, name: str, run: RunId | None = RUN) -> Caller:
        frame = seal_envelope(
            self.world.key(name),
            kind=UPLOAD.kind,
            body=b"",
            network=NETWORK,
            run=run,
            sequence=1,
            issued_at_ms=self.world.now_ms,
            life_ms=1000,
        )
        envelope = open_envelope(frame, network=NETWORK)
        return Caller(envelope.payload, frame, envelope.digest, "192.0.2.1")

    def key(self, lease: int, data: bytes) -> str:
        """Where a rollout file for this lease goes."""
        granted_ms = self.core.state.runs[RUN].leases[lease].granted_at_ms
        return make_key(FileKind.ROLLOUTS, get_day(granted_ms), Digest(sha256(data).digest()))

    async def get_target(
        self, name: str, data: bytes, purpose: UploadPurpose, **about: int | Digest | None
    ) -> UploadReply:
        return await self.uploads.get_target(self.caller(name), announce(data, purpose, **about))


def announce(
    data: bytes, purpose: UploadPurpose, lease: int | None = None, submission: Digest | None = None
) -> UploadRequest:
    digest = Digest(sha256(data).digest())
    return UploadRequest(digest=digest, size_bytes=len(data), purpose=purpose, lease=lease, submission=submission)


@dataclass
class WorldClock:
    """The world's time; nothing here waits."""

    world: World

    def now_ms(self) -> int:
        return self.world.now_ms

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        raise AssertionError("nothing here waits")


def make_receiver(counter: "Counter", core: Core) -> UploadReceiver:
    files = FileTable(counter.store, counter.objects, core)
    return UploadReceiver(core, counter.objects, files, clock=WorldClock(counter.world), config=IntakeConfig())


def make_counter(tmp_path: Path, *, is_bucket: bool = False, bytes_max: int = LIMIT, **terms: int) -> Counter:
    world = World.started(**terms)
    core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
    store = open_log_store(f"sqlite:///{tmp_path / 'log.db'}")
    folder = open_object_store(str(tmp_path / "objects"))
    objects: ObjectStore = BucketLike(folder) if is_bucket else folder  # type: ignore[assignment]
    config = IntakeConfig(upload_bytes_max=bytes_max)
    made = Counter(world, core, None, None, objects, store)  # type: ignore[arg-type]

    files = FileTable(store, objects, core)
    made.sweeper = FileSweeper(store, objects, files, WorldClock(world))
    made.uploads = UploadReceiver(core, objects, files, clock=WorldClock(world), config=config)
    return made


@pytest.fixture
async def counter(tmp_path: Path) -> AsyncIterator[Counter]:
    made = make_counter(tmp_path)
    yield made
    made.store.close()


async def test_a_lease_entitles_only_its_holder(counter: Counter) -> None:
    lease = counter.world.lease("ann")
    assert await counter.get_target("ann", b"rows", UploadPurpose.ROLLOUTS, lease=lease) == UploadReply(
        stored=False, url=""
    )
    for name, number in (("bob", lease), ("ann", lease + 1)):
        with pytest.raises(RefusalError, match="not open, or not yours"):
            await counter.get_target(name, b"rows", UploadPurpose.ROLLOUTS, lease=number)


async def test_only_the_trainer_sends_manifests_and_only_drawn_validators_evidence(counter: Counter) -> None:
    await counter.get_target("trainer", b"manifest", UploadPurpose.MANIFEST)
    with pytest.raises(RefusalError, match="not the run's trainer"):
        await counter.get_target("ann", b"manifest", UploadPurpose.MANIFEST)
    with pytest.raises(RefusalError, match="were not asked to judge"):
        await counter.get_target("val-1", b"proof", UploadPurpose.EVIDENCE, submission=Digest(bytes(32)))
    name = counter.world.submit(counter.world.lease("ann"))
    drawn = counter.world.draw(name)
    core = Core(counter.world.key("coordinator"), counter.world.ledger, now_ms=counter.world.now_ms)
    uploads = make_receiver(counter, core)
    reply = await uploads.get_target(
        counter.caller(drawn[0]), announce(b"proof", UploadPurpose.EVIDENCE, submission=name)
    )
    assert not reply.stored


async def test_an_inspector_that_is_asked_to_decide_sends_evidence(counter: Counter) -> None:
    world = counter.world
    world.register("inspector", Role.RELAY)
    name = world.submit(world.lease("ann"))
    for _ in range(3):
        world.judge(name, Outcome.ACCEPT, Outcome.FRAUDULENT, Outcome.INVALID)
    core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms - GRACE_MS)
    uploads = make_receiver(counter, core)
    proof = announce(b"proof", UploadPurpose.EVIDENCE, submission=name)
    with pytest.raises(RefusalError, match="were not asked to judge"):
        await uploads.get_target(counter.caller("inspector"), proof)
    world.note_head()
    core.tick(world.now_ms)
    assert not (await uploads.get_target(counter.caller("inspector"), proof)).stored


def accept(world: World, first_slot: int = 0) -> Digest:
    """An accepted, credited and unpaid submission."""
    return world.settled("ann", Outcome.ACCEPT, first_slot)


async def test_an_account_that_can_file_a_finding_sends_its_evidence(counter: Counter) -> None:
    world, about = counter.world, {"submission": accept(counter.world)}
    with pytest.raises(RefusalError, match=r"cannot file a finding: amount_nano .* the balance of"):
        await counter.get_target("eve", b"proof", UploadPurpose.EVIDENCE, **about)
    world.deposit("eve", 2 * TERMS.finding_bond_nano)
    assert not (await counter.get_target("eve", b"proof", UploadPurpose.EVIDENCE, **about)).stored
    with pytest.raises(RefusalError, match="cannot file a finding: sender"):
        await counter.get_target("ann", b"proof", UploadPurpose.EVIDENCE, **about)
    world.file_finding("eve", about["submission"])
    with pytest.raises(RefusalError, match="has an open finding"):
        await counter.get_target("eve", b"proof", UploadPurpose.EVIDENCE, **about)


async def test_the_evidence_of_a_finding_is_small_and_from_accounts_with_value(tmp_path: Path) -> None:
    counter = make_counter(tmp_path, bytes_max=2 * FINDING_BYTES_MAX, finding_bond_nano=0)
    name = accept(counter.world)
    with pytest.raises(RefusalError, match="too little value"):
        await counter.get_target("eve", b"proof", UploadPurpose.EVIDENCE, submission=name)
    counter.world.deposit("eve", ENTRY_VALUE_NANO)
    with pytest.raises(RemoteError, match=f"the limit for a finding is {FINDING_BYTES_MAX}"):
        await counter.get_target("eve", bytes(FINDING_BYTES_MAX + 1), UploadPurpose.EVIDENCE, submission=name)
    counter.store.close()


async def test_an_account_uploads_evidence_about_few_submissions_before_it_files_a_finding(tmp_path: Path) -> None:
    counter = make_counter(tmp_path, is_bucket=True)
    world = counter.world
    world.deposit("eve", 10 * TERMS.finding_bond_nano)
    *names, last = [accept(world, number) for number in range(FINDINGS_UNFILED_MAX + 1)]
    for name in names:
        await counter.get_target("eve", bytes(name), UploadPurpose.EVIDENCE, submission=name)
    with pytest.raises(RefusalError, match=rf"file those about {names[0]}, .* first"):
        await counter.get_target("eve", bytes(last), UploadPurpose.EVIDENCE, submission=last)
    world.file_finding("eve", names[0])
    counter.uploads.record_finding(world.id("eve"), names[0])
    await counter.get_target("eve", bytes(last), UploadPurpose.EVIDENCE, submission=last)
    counter.store.close()


async def test_evidence_that_no_finding_names_counts_for_a_day(tmp_path: Path) -> None:
    counter = make_counter(tmp_path, is_bucket=True)
    world = counter.world
    world.deposit("eve", 10 * TERMS.finding_bond_nano)
    *names, last = [accept(world, number) for number in range(FINDINGS_UNFILED_MAX + 1)]
    for name in names:
        await counter.get_target("eve", bytes(name), UploadPurpose.EVIDENCE, submission=name)
    world.now_ms += UNCLAIMED_MS + 1
    await counter.uploads.forget_unfiled()
    await counter.get_target("eve", bytes(last), UploadPurpose.EVIDENCE, submission=last)
    counter.store.close()


async def test_a_file_that_is_too_large_or_for_no_run_is_refused(counter: Counter) -> None:
    lease = counter.world.lease("ann")
    with pytest.raises(RemoteError, match=f"the limit is {LIMIT}"):
        await counter.get_target("ann", bytes(LIMIT + 1), UploadPurpose.ROLLOUTS, lease=lease)
    for run in (None, RunId("no-such-run")):
        with pytest.raises(RemoteError, match="was not created here"):
            await counter.uploads.get_target(
                counter.caller("ann", run), announce(b"", UploadPurpose.ROLLOUTS, lease=lease)
            )


async def test_one_lease_is_good_for_a_few_files_only(tmp_path: Path) -> None:
    counter = make_counter(tmp_path, is_bucket=True)
    lease, other = counter.world.lease("ann"), counter.world.lease("ann", 1)
    for number in range(UPLOADS_PER_GRANT_MAX):
        reply = await counter.get_target("ann", b"%d" % number, UploadPurpose.ROLLOUTS, lease=lease)
        assert reply.url.startswith("https://bucket.example.org/rollouts/")
    with pytest.raises(RefusalError, match="for one lease or audit"):
        await counter.get_target("ann", b"one more", UploadPurpose.ROLLOUTS, lease=lease)
    await counter.get_target("ann", b"one more", UploadPurpose.ROLLOUTS, lease=other)
    counter.store.close()


async def test_a_file_that_is_there_is_not_sent_again(counter: Counter) -> None:
    lease = counter.world.lease("ann")
    await counter.objects.put(counter.key(lease, b"rows"), b"rows", bytes_max=LIMIT)
    assert (await counter.get_target("ann", b"rows", UploadPurpose.ROLLOUTS, lease=lease)).stored


async def test_a_file_in_a_bucket_counts_only_if_its_bytes_are_what_the_digest_says(tmp_path: Path) -> None:
    counter = make_counter(tmp_path, is_bucket=True)
    lease = counter.world.lease("ann")
    key = counter.key(lease, b"rows")
    for wrong in (b"rags", b"of another length"):
        await counter.objects.put(key, wrong, bytes_max=LIMIT)
        reply = await counter.get_target("ann", b"rows", UploadPurpose.ROLLOUTS, lease=lease)
        assert not reply.stored
        assert f"checksum={Digest(sha256(b'rows').digest())}" in reply.url
        assert not await counter.objects.exists(key)
    await counter.objects.put(key, b"rows", bytes_max=LIMIT)
    for _ in range(2):
        assert (await counter.get_target("ann", b"rows", UploadPurpose.ROLLOUTS, lease=lease)).stored
    counter.store.close()


async def test_files_that_no_entry_names_go_and_those_that_one_names_stay(counter: Counter) -> None:
    world = counter.world
    lease, spare = world.lease("ann"), world.lease("ann", 1)
    keys = {data: counter.key(lease, data) for data in (b"named", b"loose")}
    for data, number in ((b"named", lease), (b"loose", spare)):
        await counter.objects.put(keys[data], data, bytes_max=LIMIT)
        assert (await counter.get_target("ann", data, UploadPurpose.ROLLOUTS, lease=number)).stored
    claimed = FileClaimed(size=0, run=RUN, step=Step(0), digest=Digest(sha256(b"named").digest()))
    await counter.store.write(lambda connection: apply_changes(connection, [claimed]))
    assert await counter.sweeper.sweep() == 0, "it came a moment ago"
    world.wait(2 * UNCLAIMED_MS)
    assert await counter.sweeper.sweep() == 1
    assert await counter.objects.exists(keys[b"named"])
    assert not await counter.objects.exists(keys[b"loose"])


def test_an_upload_says_what_it_is_about_and_nothing_else() -> None:
    assert encode(announce(b"", UploadPurpose.ROLLOUTS, lease=0))
    for purpose, about, field in (
        (UploadPurpose.ROLLOUTS, {}, "lease"),
        (UploadPurpose.MANIFEST, {"lease": 1}, "lease"),
        (UploadPurpose.EVIDENCE, {}, "submission"),
        (UploadPurpose.MANIFEST, {"submission": Digest(bytes(32))}, "submission"),
    ):
        with pytest.raises(RemoteError) as refused:
            announce(b"", purpose, **about)
        assert refused.value.field == field
