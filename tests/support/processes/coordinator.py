"""Parts for tests of a running coordinator: its folder, its process, and people who talk to it over real sockets."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from prime_coordinator.config import CoordinatorConfig, FaucetConfig, IntakeConfig, LogWriterConfig
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.home import CoordinatorHome, database_url, initialise, load_key
from prime_coordinator.log.store import open_log_store
from prime_explorer.index.fold import encode_json
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.entry_index import compute_entry_keys, decode_leaf
from prime_protocol.ledger.randomness import compute_slot_task
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope, decode_entry, replay
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.ledger.versions.upgrades import choose_version
from prime_protocol.log.tree_head import SignedNote, TreeHead, derive_witness_key, encode_cosigned_message
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutHeader,
    compute_proofs_bytes,
    compute_rollout_root,
)
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Sample, Slot, Step
from prime_protocol.wire.keystore import encrypt_key
from prime_protocol.wire.messages import (
    ENTRY_ENDPOINTS,
    HEARTBEAT,
    LEASE,
    UPLOAD,
    AuditTask,
    Cosigned,
    EntryReply,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeActivity,
    UploadPurpose,
    UploadReply,
    UploadRequest,
)
from prime_protocol.wire.rpc import REFUSAL_SUFFIX, REPLY_SUFFIX, Endpoint, Refusal, open_reply
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain, SubmissionReceipt, VerdictReceipt, sign_document
from prime_runtime.clock import SystemClock
from prime_runtime.gossip.config import P2PConfig, P2PMode
from prime_runtime.http.client import CallRefused, HttpClient, open_client
from prime_runtime.http.config import ClientLimits, ServerAddress
from prime_runtime.http.messages import ENVELOPE_HEADER
from prime_runtime.keys import SequenceCounter
from prime_runtime.log_files import read_leaves, read_tree_head
from prime_runtime.redaction import Secret
from support.ledger_network import BUDGET, STAKE, TERMS, TOKEN, make_registration
from support.processes.coordinator_main import PASSWORD

NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
ROOT = Path(__file__).parents[3]
ENDPOINTS: dict[type, Endpoint[Any, EntryReply]] = {endpoint.request: endpoint for endpoint in ENTRY_ENDPOINTS}
GIFT = 2 * STAKE
FUND = 1000 * TOKEN
OUTPUT = 24
DRAW_MARGIN_MS = 300
"""Validators of these tests ask several times in it whether there is a head to cosign."""
BOOKS = LogWriterConfig()


def key_of(name: str) -> WalletKey:
    return WalletKey.from_secret(sha256(f"party/{name}".encode()).digest())


def terms(**changes: Any) -> RunTerms:
    usual = {"trainer": key_of("trainer").node, "quorum": 1, "verdict_ms": 60_000, "step_budget_nano": BUDGET}
    return replace(TERMS, **usual | changes)


async def make_folder(
    folder: Path,
    database: str | None = None,
    books: LogWriterConfig = BOOKS,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CoordinatorConfig:
    """A new coordinator with one run, whose terms can be changed; its keystore is cheap to open."""
    config = CoordinatorConfig(
        folder=folder,
        network=NETWORK,
        password=Secret(PASSWORD),
        database=database,
        log_writer=books,
        faucet=FaucetConfig(amount_nano=GIFT),
        randomness_period_s=1,
        draw_margin_ms=DRAW_MARGIN_MS,
        intake=IntakeConfig(memory_mb_max=2048),
        # A second of CPU for each coordinator; tests of gossip turn it on.
        **{"p2p": P2PConfig(enabled=P2PMode.OFF), **(settings or {})},
    )
    await initialise(config, SystemClock())
    key = load_key(config)
    home = CoordinatorHome(folder)
    home.key.write_text(encrypt_key(key, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2))
    await create_run(config, key, terms(**changes))
    return config


async def create_run(config: CoordinatorConfig, key: WalletKey, wanted: RunTerms, *, fund_nano: int = FUND) -> None:
    """Written while nobody runs: the operator's endpoints have tests of their own."""
    store = open_log_store(database_url(config), config.database_password)
    try:
        size = await store.size()
        writer = EntryWriter(key, replay(NETWORK, await store.read(0, size)))
        now_ms = SystemClock().now_ms()
        sponsor = key_of("sponsor").node
        writer.append_own(e.RunCreated(terms=wanted), RUN, now_ms)
        if fund_nano:
            deposit = e.Deposited(account=sponsor, amount_nano=fund_nano, reference=Digest(bytes(32)))
            writer.append_own(deposit, None, now_ms)
        leaves = writer.drain()
        await store.append(size, leaves, [compute_entry_keys(leaf) for leaf in leaves])
    finally:
        store.close()


class CoordinatorProcess:
    """Starts, is killed, starts again."""

    def __init__(self, config: CoordinatorConfig, program: str = "coordinator_main.py") -> None:
        self.config = config
        self._program = program
        self.node = NodeId(bytes.fromhex(json.loads(CoordinatorHome(config.folder).key.read_text())["address"]))
        self.server = ServerAddress("http://127.0.0.1:1", self.node)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.lines: list[str] = []

    async def start(self) -> None:
        """Until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "tests/support/processes" / self._program),
            str(self.config.folder),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        )
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            self.lines.append(raw.decode().rstrip())
            if "listening on http" in self.lines[-1]:
                url = json.loads(self.lines[-1])["message"].removeprefix("listening on ")
                self.server = ServerAddress(url, self.node)
                self._reading = asyncio.create_task(self._read(self._process.stderr))
                return
        raise AssertionError("the coordinator did not start:\n" + "\n".join(self.lines[-20:]))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            self.lines.append(raw.decode().rstrip())

    async def kill(self) -> None:
        """As the power would."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._wait()

    def freeze(self, *, is_frozen: bool) -> None:
        """Keep its port and its connections, and answer nothing meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    async def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self._wait()

    async def _wait(self) -> int:
        assert self._process is not None
        code = await self._process.wait()
        if self._reading is not None:
            await self._reading
        return code


def read_entries(config: CoordinatorConfig, kind: str) -> list[dict[str, Any]]:
    """Bodies of the log's entries of a kind under the newest signed head, oldest first."""
    mirror = CoordinatorHome(config.folder).mirror
    size = TreeHead.parse(SignedNote.parse(read_tree_head(mirror)).text).size
    found = [payload for _, payload in map(decode_leaf, read_leaves(mirror, size)) if payload.kind == kind]
    return [json.loads(encode_json(asdict(decode_entry(payload)))) for payload in found]


@asynccontextmanager
async def running(config: CoordinatorConfig, program: str = "coordinator_main.py") -> AsyncIterator[CoordinatorProcess]:
    process = CoordinatorProcess(config, program)
    await process.start()
    try:
        yield process
    finally:
        await process.kill()


@dataclass
class Party:
    """Somebody with a key and a client."""

    process: CoordinatorProcess
    key: WalletKey
    client: HttpClient
    session: aiohttp.ClientSession
    head_size: int = 0
    heads: list[bytes] = field(default_factory=list)
    """Every signed head it was ever shown."""
    audits: tuple[AuditTask, ...] = ()
    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    """Where each entry stands by the coordinator's word, and the entry's frame."""
    domain: Domain = EMBEDDED_DOMAIN
    rules: int = PROTOCOL_VERSION
    """Of the log, for the form of its entries."""
    _sequence: SequenceCounter = field(default_factory=SequenceCounter)

    @property
    def node(self) -> NodeId:
        return self.key.node

    async def call(self, endpoint: Endpoint[Any, Any], message: Any, run: RunId | None = RUN) -> Any:
        return (await self.client.call(self.process.server, endpoint, message, run=run)).message

    async def write(self, entry: Any) -> EntryReply:
        run = RUN if ENTRY_RULES[type(entry)].scope is EntryScope.RUN else None
        version = choose_version(type(entry), self.rules)
        answer = await self.client.call(self.process.server, ENDPOINTS[type(entry)], entry, run=run, version=version)
        self.acknowledged.append((answer.message.index, answer.request))
        return answer.message

    async def beat(self) -> HeartbeatReply:
        reply = await self._beat(None)
        if reply.witness:
            reply = await self._beat(self.cosign(reply.witness))
        if reply.head:
            self.heads.append(reply.head)
        self.audits = reply.audits
        return reply

    async def _beat(self, cosigned: Cosigned | None) -> HeartbeatReply:
        beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=self.head_size, cosigned=cosigned)
        reply = await self.call(HEARTBEAT, beat)
        assert isinstance(reply, HeartbeatReply)
        return reply

    def cosign(self, note: bytes) -> Cosigned:
        """Witness a head without comparing it with others."""
        head, time_s = TreeHead.parse(SignedNote.parse(note).text), SystemClock().now_ms() // 1000
        signature = derive_witness_key(self.key).sign(encode_cosigned_message(head.text, time_s))
        return Cosigned(head_size=head.size, time_s=time_s, signature=signature)

    async def join(self, *roles: Role) -> None:
        """Register, and stake what the faucet gave."""
        await self.write(make_registration(self.key, *roles))
        await self.write(e.Staked(node=self.node, amount_nano=STAKE))

    async def lease(self, checkpoint_step: int = 0) -> e.LeaseGranted:
        """Ask until there is work for this checkpoint."""
        while True:
            reply = await self.call(LEASE, LeaseRequest(checkpoint_step=checkpoint_step, tokens_per_s=100))
            assert isinstance(reply, LeaseReply)
            if reply.lease is not None:
                return reply.lease
            await asyncio.sleep(0.05)

    async def upload(self, data: bytes, purpose: UploadPurpose, **about: Any) -> UploadReply:
        """Through the coordinator, with the signed word in a header."""
        digest = Digest(sha256(data).digest())
        return await self.put(self.announce(data, purpose, **about), data, digest)

    def announce(self, data: bytes, purpose: UploadPurpose, **about: Any) -> UploadRequest:
        usual: dict[str, Any] = {"lease": None, "submission": None}
        digest = Digest(sha256(data).digest())
        return UploadRequest(digest=digest, size_bytes=len(data), purpose=purpose, **usual | about)

    async def put(self, upload: UploadRequest, data: bytes, digest: Digest) -> UploadReply:
        now_ms = SystemClock().now_ms()
        frame = seal_envelope(
            self.key,
            kind=UPLOAD.kind,
            body=encode(upload),
            network=NETWORK,
            run=RUN,
            sequence=self._sequence.next(now_ms),
            issued_at_ms=now_ms,
            life_ms=60_000,
        )
        headers = {ENVELOPE_HEADER: base64.b64encode(frame).decode()}
        url = f"{self.process.server.url}/objects/{digest}"
        async with self.session.put(url, data=data, headers=headers) as response:
            raw, status = await response.read(), response.status
        named = {"request": Digest(sha256(frame).digest()), "server": self.process.node, "network": NETWORK}
        if status != 200:
            refusal = decode(Refusal, open_reply(raw, kind=UPLOAD.kind + REFUSAL_SUFFIX, **named))
            raise CallRefused(f"{refusal.field}: {refusal.problem}", refusal)
        return decode(UploadReply, open_reply(raw, kind=UPLOAD.kind + REPLY_SUFFIX, **named))

    def answer(
        self,
        lease: e.LeaseGranted,
        *,
        beacon: Digest,
        root: Digest,
        wanted: RunTerms,
        rows: list[Rollout] | None = None,
    ) -> tuple[bytes, Any]:
        """A file that passes intake, and the entry that names it. No model stands behind it."""
        header = RolloutHeader(run=RUN, step=lease.step, checkpoint_root=root, lease=lease.lease, node=self.node)
        rows = rows or make_rows(lease, beacon, wanted)
        limits = wanted.rollout_limits(lease.first_slot, lease.slots)
        data = write_rollouts(header, rows, names_class=limits.names_class)
        receipt = SubmissionReceipt(
            network=NETWORK,
            run=RUN,
            step=lease.step,
            lease=lease.lease,
            node=self.node,
            checkpoint_root=root,
            file_digest=Digest(sha256(data).digest()),
            rollout_root=compute_rollout_root(read_rollouts(data, limits)),
        )
        entry = e.Submitted(
            receipt=receipt,
            signature=sign_document(self.key, receipt, self.domain),
            file_bytes=len(data),
            output_tokens=sum(len(row.output_tokens) for row in rows),
            context_tokens=sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in rows),
        )
        return data, entry

    async def judge(self, task: AuditTask, outcome: Outcome) -> EntryReply:
        """Evidence first, then the verdict. In a round of several validators use `judge_round`."""
        return await self.write(await self.prepare_verdict(task, outcome))

    async def prepare_verdict(self, task: AuditTask, outcome: Outcome) -> e.VerdictGiven:
        """Upload evidence, and return the verdict that names it."""
        evidence = f"what {self.node} saw of {task.submission}".encode()
        await self.upload(evidence, UploadPurpose.EVIDENCE, submission=task.submission)
        receipt = VerdictReceipt(
            network=NETWORK,
            run=RUN,
            submission=task.submission,
            validator=self.node,
            outcome=e.OUTCOME_NUMBER[outcome],
            evidence=Digest(sha256(evidence).digest()),
        )
        signature = sign_document(self.key, receipt, self.domain)
        return e.VerdictGiven(receipt=receipt, signature=signature, outcome=outcome, reason="", metrics=())


async def judge_round(drawn: list[tuple[Party, AuditTask]], outcome: Outcome) -> None:
    """Every validator commits to its verdict where the round asks for that, then all reveal."""
    verdicts = [(validator, task, await validator.prepare_verdict(task, outcome)) for validator, task in drawn]
    for validator, task, verdict in verdicts:
        if task.commit:
            await validator.write(
                e.VerdictCommitted(submission=task.submission, commitment=Digest(sha256(encode(verdict)).digest()))
            )
    for validator, _, verdict in verdicts:
        await validator.write(verdict)


def make_rows(lease: e.LeaseGranted, beacon: Digest, wanted: RunTerms) -> list[Rollout]:
    family, dice = open_family(TaskSetSpec.parse(wanted.task_set)), np.random.default_rng(lease.lease)
    return [
        Rollout(
            slot=Slot(slot),
            sample=Sample(sample),
            task=compute_slot_task(beacon, Slot(slot), family.size),
            temperature=wanted.temperature,
            target_length=None,
            finish=FinishReason.EOS,
            prompt_tokens=np.arange(5, dtype=np.int32),
            output_tokens=dice.integers(0, wanted.vocabulary, OUTPUT, dtype=np.int32),
            output_logprobs=-dice.random(OUTPUT, dtype=np.float32),
            proofs=dice.bytes(compute_proofs_bytes(OUTPUT)),
        )
        for slot in range(lease.first_slot, lease.first_slot + lease.slots)
        for sample in range(wanted.samples_per_slot)
    ]


@asynccontextmanager
async def party(process: CoordinatorProcess, name: str, **limits: Any) -> AsyncIterator[Party]:
    key = key_of(name)
    async with (
        aiohttp.ClientSession() as session,
        open_client(
            key=key,
            network=NETWORK,
            clock=SystemClock(),
            limits=ClientLimits(**{"backoff_ms": 50, **limits}),
        ) as client,
    ):
        yield Party(process, key, client, session)


def compute_weights_root(step: int) -> Digest:
    """Of the checkpoint that `publish` publishes."""
    return Digest(sha256(f"weights {step}".encode()).digest())


async def publish(trainer: Party, step: int, *trained_on: Digest) -> e.CheckpointPublished:
    """Manifest first, then the entry."""
    manifest = f"manifest of step {step}".encode()
    await trainer.upload(manifest, UploadPurpose.MANIFEST)
    _, entry = make_checkpoint_entries(
        trained_on, step=Step(step), root=compute_weights_root(step), manifest=Digest(sha256(manifest).digest())
    )
    await trainer.write(entry)
    return entry


async def until_beacon(node: Party) -> Digest:
    """Beat until the newest checkpoint has its beacon."""
    while True:
        weights = (await node.beat()).weights
        if weights is not None and weights.beacon is not None:
            return weights.beacon
        await asyncio.sleep(0.05)


async def until_drawn(validators: list[Party], name: Digest) -> list[tuple[Party, AuditTask]]:
    """Beat until the round of this submission is drawn, and return all of its validators."""
    drawn: list[tuple[Party, AuditTask]] = []
    while True:
        # A draw may be written between two beats: what the first beats after it show is complete.
        was_drawn = bool(drawn)
        for validator in validators:
            await validator.beat()
        drawn = [(each, task) for each in validators for task in each.audits if task.submission == name]
        if was_drawn:
            return drawn
        await asyncio.sleep(0.05)
