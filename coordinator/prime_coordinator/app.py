"""The coordinator's asyncio shell: sockets, clock and disk around the decisions of core.py. It wires everything.

No caller gets a reply, not even a refusal, before every entry that the reply depends on is on disk.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.admin.operator_api import add_operator_routes
from prime_coordinator.admin.rotation import finish_rotations
from prime_coordinator.api.explorer import make_explorer
from prime_coordinator.api.files import add_file_routes
from prime_coordinator.api.metrics import CoordinatorMetrics, GossipMetrics
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.constants import (
    DISK_CHECK_MS,
    ORPHANS_MS,
    RETRY_MS_MAX,
    SCRUB_MS,
    SNAPSHOT_CHECK_MS,
    SWEEP_MS,
    UNFILED_CHECK_MS,
    WRITER_CHECK_MS,
)
from prime_coordinator.core import Core
from prime_coordinator.gossip.service import CoordinatorGossip
from prime_coordinator.home import (
    CoordinatorHome,
    check_database,
    database_url,
    load_key,
    load_log_key,
    lock_home,
    objects_url,
)
from prime_coordinator.intake.checker import CheckerPool
from prime_coordinator.intake.uploads import BadFile, SubmissionVerifier, UploadReceiver
from prime_coordinator.log.key_list import read_key_file, write_key_file
from prime_coordinator.log.replay import recover_ledger
from prime_coordinator.log.restored import note_restore
from prime_coordinator.log.snapshots import SnapshotWriter
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.log.writer import LogWriter
from prime_coordinator.randomness import OwnRounds, open_rounds
from prime_coordinator.retention.disk_watch import DiskWatch
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.sweeper import FileSweeper
from prime_coordinator.settlement.interface import Settlement, open_settlement
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import RELAY_POLL, RELAY_PUBLISH
from prime_protocol.ledger.entries import (
    Appealed,
    CheckpointPublished,
    FindingFiled,
    Inspected,
    LeaseEnded,
    NodeRegistered,
    RulingGiven,
    SubmissionsListed,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.ledger.entry_index import decode_leaf, list_subjects
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.messages import (
    ENTRY_ENDPOINTS,
    HEARTBEAT,
    LEASE,
    RUN,
    STEP,
    UPLOAD,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    RunReply,
    RunRequest,
    StepReply,
    StepRequest,
)
from prime_protocol.wire.rpc import RefusalCode
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer
from prime_runtime.lock import ProcessLock
from prime_runtime.metrics import Metrics, RequestMetrics
from prime_runtime.objects.store import ObjectStore, open_object_store
from prime_runtime.rate_limits import network_group

log = logging.getLogger(__name__)

LOGGED_ONCE = (
    Appealed,
    CheckpointPublished,
    FindingFiled,
    Inspected,
    LeaseEnded,
    RulingGiven,
    SubmissionsListed,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
"""Entries that can be logged only once: a sender that repeats one, not knowing that it arrived, gets its position."""
REQUEST_KINDS = (
    HEARTBEAT.kind,
    LEASE.kind,
    STEP.kind,
    RUN.kind,
    UPLOAD.kind,
    RELAY_PUBLISH.kind,
    RELAY_POLL.kind,
    "page",
    *(endpoint.kind for endpoint in ENTRY_ENDPOINTS),
)


class CoordinatorServer:
    """One running coordinator; it implements AppContext."""

    def __init__(
        self,
        config: CoordinatorConfig,
        core: Core,
        writer: LogWriter,
        *,
        store: LogStore,
        objects: ObjectStore,
        settlement: Settlement,
        http: HttpServer,
        gossip: CoordinatorGossip,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.config = config
        self.core = core
        self.writer = writer
        self.log = store
        self.http = http
        self._clock = clock
        self.settlement = settlement
        self._gossip = gossip
        state, key_path = core.state, CoordinatorHome(config.folder).randomness_key
        self._rounds = open_rounds(state.randomness, config.randomness_urls, config.randomness, key_path, clock)
        intake = config.intake
        self._checkers = CheckerPool(count=intake.checkers, check_ms=intake.check_ms, memory_mb=intake.memory_mb_max)
        self._files = files = FileTable(store, objects, core)
        self._sweeper = FileSweeper(store, objects, files, clock)
        self._disk = DiskWatch(metrics, files, config.folder, clock)
        self._submissions = SubmissionVerifier(self._checkers, objects, store, files, clock=clock, config=intake)
        self._uploads = UploadReceiver(core, objects, files, clock=clock, config=intake)
        self._explorer = make_explorer(self, gossip.relay, objects, clock)
        mirror, entries = CoordinatorHome(config.folder).mirror, config.log_writer.snapshot_entries
        self._snapshots = SnapshotWriter(mirror, config.network_id, entries=entries)
        self._snapshot_lock = asyncio.Lock()
        self._add_routes(objects)

    @classmethod
    async def open(
        cls, config: CoordinatorConfig, key: WalletKey, log_key: Ed25519PrivateKey, store: LogStore, clock: Clock
    ) -> Self:
        """Recover from what is on disk."""
        network, home = config.network_id, CoordinatorHome(config.folder)
        vkey = VerifierKey.of(ORIGIN_PREFIX + network, log_key)
        ledger, tree = await recover_ledger(store, home.mirror, network=network, coordinator=key.node, log_key=vkey)
        core = Core(
            key,
            ledger,
            now_ms=clock.now_ms(),
            intervals=config.intervals,
            inspect_share=config.inspect_share,
        )

        settings = config.log_writer
        writer = LogWriter(
            store, home.mirror, log_key, network, tree, clock=clock, config=settings, on_head=core.set_head
        )
        await note_restore(home.restored, core, writer, clock.now_ms())
        write_key_file(home.mirror, await read_key_file(store))
        repaired = await writer.open_mirror()
        home.restored.unlink(missing_ok=True)
        log.info("the log has %d entries; %d of the newest files of its mirror were repaired", writer.size, repaired)
        settlement = open_settlement(config, core.state, key, clock)
        core.audits.is_appealable = settlement.is_appealable
        metrics = Metrics("coordinator")
        http = HttpServer(
            key, network, clock=clock, limits=config.limits, metrics=RequestMetrics(metrics, REQUEST_KINDS)
        )
        objects = open_object_store(objects_url(config), config.s3)
        gossip = CoordinatorGossip(config, core, key, http, clock)
        made = cls(
            config,
            core,
            writer,
            store=store,
            objects=objects,
            settlement=settlement,
            http=http,
            gossip=gossip,
            metrics=metrics,
            clock=clock,
        )
        await made._files.release_forgotten()
        proxies = config.limits.trusted_proxies
        CoordinatorMetrics(metrics, core, writer, settlement, made._disk, proxies).add_routes(http.app)
        GossipMetrics(metrics, gossip.relay, gossip.gossip_http)
        return made

    # --- AppContext -------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def commit(self) -> None:
        fresh = self.core.entry_writer.drain()
        if fresh:
            self.writer.enqueue(fresh, self.core.retention.drain())
        await self.writer.wait_for_size(self.core.state.size)

    # --- Routes -----------------------------------------------------------------------------------------------------

    def _add_routes(self, objects: ObjectStore) -> None:
        self.http.add(HEARTBEAT, self.handle_heartbeat, is_fast=True)
        self.http.add(LEASE, self.request_lease, is_fast=True)  # every node asks at once for a new checkpoint
        self.http.add(STEP, self.get_step_facts)
        self.http.add(RUN, self.get_run_facts)
        for endpoint in ENTRY_ENDPOINTS:
            self.http.add(endpoint, self.submit if endpoint.request is Submitted else self.append_entry)
        self.http.add(UPLOAD, self._uploads.get_target)
        handle_ms = self.config.intake.upload_ms
        self.http.add_upload("/objects/{digest}", UPLOAD, self._uploads.receive, handle_ms=handle_ms)
        mirror = CoordinatorHome(self.config.folder).mirror
        add_file_routes(self.http, mirror=mirror, objects=objects, store=self.log, files=self._files)
        if isinstance(self._rounds, OwnRounds):
            self._rounds.add_routes(self.http.app)
        add_operator_routes(self.http, self)
        self._explorer.add_routes(self.http.app)

    def handle_heartbeat(self, caller: Caller, heartbeat: Heartbeat) -> HeartbeatReply | Awaitable[HeartbeatReply]:
        reply = self.core.handle_heartbeat(caller.sender, get_run(caller), heartbeat, self._clock.now_ms())
        # The leases and audits in the reply may be so new that they are not on disk yet.
        return reply if self.writer.size >= self.core.state.size else self._when_on_disk(reply)

    async def _when_on_disk(self, reply: HeartbeatReply) -> HeartbeatReply:
        await self.commit()
        return reply

    async def request_lease(self, caller: Caller, request: LeaseRequest) -> LeaseReply:
        try:
            return self.core.request_lease(caller.sender, get_run(caller), request, self._clock.now_ms())
        finally:
            await self.commit()

    async def get_step_facts(self, caller: Caller, wanted: StepRequest) -> StepReply:
        facts = self.core.get_step_facts(get_run(caller), wanted)
        await self.commit()
        return facts

    async def get_run_facts(self, caller: Caller, wanted: RunRequest) -> RunReply:
        facts = self.core.get_run_facts(get_run(caller), wanted, self._clock.now_ms())
        await self.commit()
        return facts

    async def submit(self, caller: Caller, entry: Submitted) -> EntryReply:
        """Check the file, then append the entry."""
        run, now_ms = get_run(caller), self._clock.now_ms()
        if self.core.find_repeat(caller.payload, entry) is None:
            try:
                expected = self.core.get_expected_submission(caller.sender, run, entry, now_ms)
            except RemoteError as error:
                return await self._find_logged(caller, entry, error)
            try:
                await self._submissions.check(caller, entry, expected)
            except BadFile:
                self.core.record_refused_file(caller.sender, run, entry.receipt.lease, self._clock.now_ms())
                raise
            except LocalError as error:
                # The operator's fault, not the worker's: the worker keeps its file and sends the entry again.
                log.error("cannot check the file of lease %d in run %s: %s", entry.receipt.lease, run, error)
                problem = "files of this run cannot be checked now"
                raise RefusalError(RefusalCode.OVERLOADED, "", problem, retry_after_ms=RETRY_MS_MAX) from None
        return await self.append_entry(caller, entry)

    async def append_entry(self, caller: Caller, entry: Any) -> EntryReply:
        """Append any entry of a node."""
        try:
            logged = self._append(caller, entry)
        except RemoteError as error:
            return await self._find_logged(caller, entry, error)
        await self.commit()
        return logged

    def _append(self, caller: Caller, entry: Any) -> EntryReply:
        now_ms, group = self._clock.now_ms(), network_group(caller.address)
        logged = self.core.append_entry(caller.payload, entry, caller.frame, address_group=group, now_ms=now_ms)
        if isinstance(entry, FindingFiled):
            self._uploads.record_finding(caller.sender, entry.submission)
        if isinstance(entry, NodeRegistered):
            for deposit in self.settlement.get_welcome_deposits(self.core.state, caller.sender):
                self.core.append_operator_entry(deposit, None, now_ms)
        return logged

    async def _find_logged(self, caller: Caller, entry: Any, error: RemoteError) -> EntryReply:
        """The position of this same entry if it is already logged; otherwise raise the error."""
        await self.commit()
        if isinstance(entry, LOGGED_ONCE):
            subject = list_subjects(caller.run, entry)[0]
            kinds = [caller.payload.kind]
            found = await self.log.list_entries(kinds=kinds, author=caller.sender, subject=subject, limit=10)
            for listed in found:
                _, payload = decode_leaf(listed.leaf)
                if (payload.run, payload.body) == (caller.run, caller.payload.body):
                    return EntryReply(index=listed.index, at_ms=listed.at_ms)
        raise error

    # --- Running ----------------------------------------------------------------------------------------------------

    async def serve(self, lock: ProcessLock, until: Awaitable[Any]) -> None:
        """Serve until `until` completes; LocalError if a part fails."""
        port = await self.http.start(self.config.listen)
        lock.write_url(local_url(self.config, port))
        stop: asyncio.Future[Any] = asyncio.ensure_future(until)
        work = [asyncio.create_task(part) for part in self._parts(port)]
        try:
            await asyncio.wait([stop, *work], return_when=asyncio.FIRST_COMPLETED)
            self._gossip.close()
            self._explorer.close_streams()
            await self.http.stop()
            if not any(task.done() for task in work):
                await self._finish()
        finally:
            await _end(stop, *work)
            await self._checkers.close()
            await self.settlement.close()
            await self._rounds.close()
            self._explorer.close()
        for task in work:
            if not task.cancelled() and (error := task.exception()):
                raise error

    def _parts(self, port: int) -> list[Coroutine[Any, Any, None]]:
        return [
            self._explorer.run(),
            self.writer.write_batches(),
            self.writer.sign_heads(),
            self._repeat(self.config.intervals.tick_ms, self.tick),
            self._repeat(self.config.intervals.tick_ms, self._record_due_rounds),
            self._repeat(SWEEP_MS, self._sweeper.sweep),
            self._repeat(ORPHANS_MS, self._sweeper.sweep_orphans),
            self._repeat(UNFILED_CHECK_MS, self._uploads.forget_unfiled),
            self._repeat(DISK_CHECK_MS, self._disk.check),
            self._repeat(SNAPSHOT_CHECK_MS, self._write_due_snapshot),
            self._repeat(WRITER_CHECK_MS, self.writer.check_is_only_writer),
            self._scrub(),
            self._gossip.run(port),
            self.settlement.run(self),
        ]

    async def _finish(self) -> None:
        """Write a snapshot, and a last head, so that the mirror is complete while the coordinator is down."""
        await self.commit()
        if self.core.state.size > self.core.state.snapshot_size + 1:  # the newest entry may be what notes the last one
            await self._write_snapshot()
        if self.writer.size > self.writer.head_size:
            await self.writer.sign_head()

    async def _write_due_snapshot(self) -> None:
        if self._snapshots.is_due(self.core.state):
            await self._write_snapshot()

    async def _write_snapshot(self) -> None:
        async with self._snapshot_lock:
            try:
                noted = await self._snapshots.write(self.core.state)
            except LocalError as error:
                log.warning("no snapshot was written, so the next start takes longer: %s", error)
                return
            self.core.entry_writer.append_own(noted, None, self._clock.now_ms())
            await self.commit()
            self._snapshots.publish(noted)

    async def _scrub(self) -> None:
        """Compare the log on disk with what was signed, at the start and then daily."""
        while True:
            repaired = await self.writer.scrub()
            log.log(logging.WARNING if repaired else logging.DEBUG, "%d files of the mirror were repaired", repaired)
            await self._clock.sleep_ms(SCRUB_MS)

    async def _repeat(self, every_ms: int, work: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await self._clock.sleep_ms(every_ms)
            await work()

    async def _record_due_rounds(self) -> None:
        """Fetch the rounds that beacons and draws wait for."""
        witnesses = self.core.witnesses
        while (number := witnesses.get_wanted_round(self._clock.now_ms())) is not None:
            signature = await self._rounds.fetch(number)
            if signature is None:
                return
            self.core.record_round(number, signature, self._clock.now_ms())
            self.core.tick(self._clock.now_ms())
            await self.commit()

    async def tick(self) -> None:
        """Do what is due, and append what came from the chain."""
        for order in await self.settlement.collect(self.core.state):
            self.core.append_operator_entry(order, None, self._clock.now_ms())
        for run, appeal in self.settlement.appeals(self.core.state):
            self.core.append_chain_appeal(appeal, run, self._clock.now_ms())
        self.core.tick(self._clock.now_ms())
        await self.commit()


def local_url(config: CoordinatorConfig, port: int) -> str:
    """How commands on this machine reach the server; a server on all interfaces is reached on loopback."""
    scheme = "https" if config.listen.tls_key else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.listen.host, config.listen.host)
    return f"{scheme}://{host}:{port}"


def get_run(caller: Caller) -> RunId:
    if caller.run is None:
        raise RemoteError("Payload.run", "is missing: this request is about a run")
    return caller.run


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def tune_garbage_collector() -> None:
    """Objects that exist at start stay: exclude them from garbage collection."""
    gc.collect()
    gc.freeze()


async def run(config: CoordinatorConfig) -> int:
    """Run until SIGTERM or SIGINT. 0: stopped cleanly, 1: a part failed, as logged."""
    clock, stop = SystemClock(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with lock_home(config.folder) as lock:
        check_database(config)
        store = open_log_store(database_url(config), config.database_password)
        async with AsyncExitStack() as stack:
            stack.callback(store.close)
            await finish_rotations(config, store)
            key, log_key = load_key(config), load_log_key(config)
            server = await CoordinatorServer.open(config, key, log_key, store, clock)
            tune_garbage_collector()
            try:
                await server.serve(lock, stop.wait())
            except LocalError as error:
                log.error("the coordinator stops: %s", error)
                return 1
    return 0
