"""`prime-node audit`: recompute a verdict, or check any submission, and say whether this machine agrees.

Works offline with --bundle and --weights. Otherwise the evidence comes from the coordinator, by the id of the
submission or the digest of the evidence. A submission without a rejection has no evidence; then the coordinator
provides all inputs: the worker's signed receipt, the lease, the step's facts, the file, and the verdicts.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from prime_node.cli.context import NodeCliContext, with_pins
from prime_node.config import NodeConfig
from prime_node.jobs.evidence_bundle import (
    BUNDLE_BYTES_MAX,
    EvidenceBundle,
    decode_evidence,
    verify_evidence_signature,
    verify_receipt,
)
from prime_node.jobs.examination import (
    ComparedMetric,
    Examination,
    compare_metrics,
    get_dataset_digest,
    replay_audit,
)
from prime_node.jobs.file_checks import Judgement
from prime_node.log import public_api as public_log
from prime_node.log.submission_tracker import fetch_receipt
from prime_node.storage.node_folder import NodeFolder, RunFolder
from prime_protocol.constants import DATASET_BYTES_MAX, ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.read_proofs import ReadCoverage, compute_read_proof_error, is_read_proof_refuted
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.messages import STEP, AuditTask, StepReply, StepRequest
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import FileExpired, HttpClient, open_client
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.coordinator_api import NotFound, fetch_file, open_json_client


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedVerdict:
    """One validator's verdict, as the log has it."""

    outcome: str
    read_proof: bytes
    blocks_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionToAudit:
    """What is needed to check a submission, with the verdicts about it."""

    receipt: SubmissionReceipt
    signature: Signature
    """Of the worker, under the receipt."""
    task: AuditTask
    facts: StepReply
    verdicts: Mapping[NodeId, LoggedVerdict]


async def fetch_submission(config: NodeConfig, name: Digest) -> SubmissionToAudit | None:
    """From the coordinator; None if no submission has this id."""
    async with open_json_client(config.coordinator, config.authority) as api:
        try:
            view = await api.get(f"/submissions/{name}")
        except NotFound:
            return None
        receipt, signature = await fetch_receipt(api, name, config.signing_domain)
        first_slot, slots, indexes = public_log.parse_answer("submission", view, parse_submission)
        entries = [await api.get(f"/log/{index}") for index in indexes]
        verdicts = public_log.parse_answer("entries", entries, parse_verdicts)
        told = public_log.parse_answer("status", await api.get("/status"), lambda status: str(status["coordinator"]))
    server = ServerAddress(config.coordinator, NodeId.parse(config.coordinator_id or told))
    task = AuditTask(
        submission=name,
        round=0,
        # A random seed for the decoy evaluations, which the file's author cannot have known.
        seed=Digest(secrets.token_bytes(Digest.SIZE)),
        file_digest=receipt.file_digest,
        lease=receipt.lease,
        node=receipt.node,
        step=receipt.step,
        checkpoint_root=receipt.checkpoint_root,
        first_slot=first_slot,
        slots=slots,
        deadline_ms=0,
        readers=tuple(ReadCoverage(node, verdicts[node].blocks_read) for node in sorted(verdicts)),
    )
    verify_receipt(receipt, task)
    return SubmissionToAudit(
        receipt=receipt,
        signature=signature,
        task=task,
        facts=await _fetch_step_facts(config, server, receipt),
        verdicts=verdicts,
    )


def open_anonymous_client(config: NodeConfig, network: str) -> AbstractAsyncContextManager[HttpClient]:
    """A client with a fresh random key: an audit reads only public data, so the node's key is not needed."""
    return open_client(
        key=WalletKey.from_secret(secrets.token_bytes(32)),
        network=NetworkId(network),
        clock=SystemClock(),
        limits=config.client,
        authority=config.authority,
    )


async def _fetch_step_facts(config: NodeConfig, server: ServerAddress, receipt: SubmissionReceipt) -> StepReply:
    async with open_anonymous_client(config, receipt.network) as client:
        wanted = StepRequest(step=receipt.step, root=receipt.checkpoint_root)
        found: StepReply = (await client.call(server, STEP, wanted, run=receipt.run)).message
    return found


def parse_submission(view: Mapping[str, Any]) -> tuple[int, int, list[int]]:
    """First slot, number of slots, and the indexes of the entries with its verdicts."""
    summary = view["summary"]
    return (
        int(summary["first_slot"]),
        int(summary["slots"]),
        [int(verdict["summary"]["idx"]) for verdict in view["verdicts"]],
    )


def parse_verdicts(entries: Sequence[Mapping[str, Any]]) -> dict[NodeId, LoggedVerdict]:
    bodies = [entry["body"] for entry in entries]
    return {
        NodeId.parse(body["receipt"]["validator"]): LoggedVerdict(
            outcome=str(body["outcome"]),
            read_proof=bytes.fromhex(body["read_proof"].removeprefix("0x")),
            blocks_read=int(body["blocks_read"]),
        )
        for body in bodies
    }


def describe_read_proof(said: bytes, found: bytes) -> str:
    """Whether a validator ran the model on the file, in words."""
    if not found:
        return "the file needs no model"
    if not said:
        return "did not run the model: its verdict has no read proof"
    error = compute_read_proof_error(said, found)
    return (
        f"did not run the model: error {error:.2f}"
        if is_read_proof_refuted(said, found)
        else f"ran the model: error {error:.4f}"
    )


def print_submission(
    context: NodeCliContext, asked: SubmissionToAudit, judged: Judgement, read_proofs: Mapping[NodeId, bytes]
) -> None:
    readers = [
        (node, verdict.outcome, verdict.read_proof, read_proofs.get(node, b""))
        for node, verdict in sorted(asked.verdicts.items())
    ]
    if context.args.json:
        context.screen.print_json(
            {
                "submission": str(asked.task.submission),
                "here": {"outcome": str(judged.outcome), "reason": judged.reason},
                "checks": {metric.name: metric.value for metric in judged.metrics},
                "validators": [
                    {
                        "validator": str(node),
                        "outcome": outcome,
                        "read": not is_read_proof_refuted(said, found) if found else None,
                    }
                    for node, outcome, said, found in readers
                ],
            }
        )
        return
    say, task = context.screen.print_line, asked.task
    say(f"submission  {task.submission} of {task.node}, signature valid")
    last = task.first_slot + task.slots - 1
    say(f"            lease {task.lease}, step {task.step}, slots {task.first_slot} to {last}")
    say(f"here        {judged.outcome}: {judged.reason or 'every check passes'}")
    say("")
    checks = [(metric.name, f"{metric.value:.6g}") for metric in judged.metrics]
    context.screen.show(context.screen.table(["check", "here"], checks))
    say("")
    if not readers:
        say("no validator has judged it")
        return
    rows = [(str(node), outcome, describe_read_proof(said, found)) for node, outcome, said, found in readers]
    context.screen.show(context.screen.table(["validator", "verdict", "read proof"], rows))


EXIT_DISAGREES = 3


def audit(context: NodeCliContext) -> int:
    return asyncio.run(_audit(context))


async def _audit(context: NodeCliContext) -> int:
    given = {"coordinator": context.args.coordinator} if context.args.coordinator else {}
    config = with_pins(context.resolve(given).config)
    found = await _find_subject(context, config)
    if isinstance(found, SubmissionToAudit):
        return await _audit_submission(context, config, found)
    return await _audit_bundle(context, config, found)


async def _audit_bundle(context: NodeCliContext, config: NodeConfig, raw: bytes) -> int:
    """Recompute a verdict from its evidence bundle."""
    try:
        evidence = decode_evidence(raw)
    except RemoteError as error:
        raise LocalError(f"this is not an evidence bundle, or it is damaged: {error}") from None
    if not context.args.json:
        _print_evidence(context, evidence, raw, config.signing_domain)
    examined = await recompute(context, config, evidence.run, evidence.task, evidence.facts, evidence.file)
    judged = examined.judge()
    agrees = judged.outcome is evidence.outcome
    tolerance = examined.tolerance or evidence.facts.terms.tolerance
    _print_comparison(context, evidence, judged, agrees, tolerance)
    return 0 if agrees else EXIT_DISAGREES


async def _audit_submission(context: NodeCliContext, config: NodeConfig, asked: SubmissionToAudit) -> int:
    """Check a submission without a rejection, and whether its validators ran the model on it."""
    examined = await recompute(context, config, asked.receipt.run, asked.task, asked.facts, b"")
    judged = examined.judge()
    print_submission(context, asked, judged, examined.read_proofs)
    return 0 if judged.outcome is Outcome.ACCEPT else EXIT_DISAGREES


async def recompute(
    context: NodeCliContext, config: NodeConfig, run: RunId, task: AuditTask, facts: StepReply, file: bytes
) -> Examination:
    """Check the file with this machine's engine. What is missing is fetched."""
    file = file or await _load(context.args.file, config, f"/objects/{task.file_digest}", task.file_digest, "--file")
    dataset = get_dataset_digest(facts)
    problems = b"" if dataset is None else await _load_dataset(context, config, dataset)
    weights = _find_weights(context, config, task, facts)
    with tempfile.TemporaryDirectory(prefix="prime-audit-") as folder:
        return await replay_audit(
            run,
            task,
            facts,
            file=file,
            weights=weights,
            dataset=problems,
            engine_config=config.engine,
            folder=Path(folder),
            clock=SystemClock(),
        )


# --- Inputs -----------------------------------------------------------------------------------------------------------


async def _find_subject(context: NodeCliContext, config: NodeConfig) -> bytes | SubmissionToAudit:
    """An evidence bundle; or the submission, if it has no rejection and thus no evidence."""
    if context.args.bundle is not None:
        return _read_file(context.args.bundle, BUNDLE_BYTES_MAX)
    if context.args.verdict is None:
        raise LocalError("name a submission or an evidence digest, or give --bundle FILE")
    name = parse_verdict_id(context.args.verdict)
    if not config.coordinator:
        raise LocalError("the folder has no node with a coordinator; give --coordinator URL, or --bundle")
    evidence = await _find_evidence(config, name)
    if evidence is None:
        asked = await fetch_submission(config, name)
        if asked is not None:
            return asked
    try:
        return await _fetch(config, f"/objects/{evidence or name}", evidence or name, BUNDLE_BYTES_MAX)
    except NotFound:
        raise LocalError(
            f"{config.coordinator} has no submission or evidence {name}, or no longer keeps it. "
            "`prime-node rollouts ID` shows the ids of yours; pass an evidence file with --bundle"
        ) from None
    except FileExpired as error:
        raise LocalError(f"{error}. Pass a copy of the evidence with --bundle") from None


def parse_verdict_id(text: str) -> Digest:
    try:
        return Digest.parse(text)
    except RemoteError as error:
        raise LocalError(
            f"{text!r} names no verdict: a digest {error.problem}. `prime-node rollouts ID` shows a submission's, the "
            "explorer a verdict's; pass an evidence file with --bundle"
        ) from None


async def _find_evidence(config: NodeConfig, name: Digest) -> Digest | None:
    """The evidence of the first rejection of the submission, if there is one."""
    async with open_json_client(config.coordinator, config.authority) as api:
        try:
            page = await api.get("/verdicts", submission=str(name))
        except NotFound:
            return None
    return public_log.parse_answer("verdicts", page, public_log.parse_evidence_digest)


def _find_weights(context: NodeCliContext, config: NodeConfig, task: AuditTask, facts: StepReply) -> Path:
    """--weights, else the checkpoint of the node in the folder."""
    if context.args.weights is not None:
        return Path(context.args.weights)
    stores = [RunFolder(config, run).weights for run in config.runs]
    paths = [store / "checkpoints" / task.checkpoint_root.hex() for store in stores]
    found = next((path for path in paths if path.is_dir()), None)
    if found is None:
        raise LocalError(
            f"the checkpoint {task.checkpoint_root} of step {facts.weights.step} is not in"
            f" {' or '.join(map(str, stores))}; give --weights FOLDER with its files"
        )
    return found


async def _load_dataset(context: NodeCliContext, config: NodeConfig, digest: Digest) -> bytes:
    known = NodeFolder(config.folder).datasets / digest.hex()
    given = context.args.dataset or (known if known.exists() else None)
    return await _load(given, config, f"/datasets/{digest}", digest, "--dataset", DATASET_BYTES_MAX)


async def _load(
    given: Path | None,
    config: NodeConfig,
    path: str,
    digest: Digest,
    flag: str,
    bytes_max: int = ROLLOUT_FILE_BYTES_MAX,
) -> bytes:
    """From a file, else from the coordinator."""
    if given is None:
        if not config.coordinator:
            raise LocalError(f"the audit needs {digest}, which is not in the bundle; give {flag} FILE")
        try:
            return await _fetch(config, path, digest, bytes_max)
        except FileExpired as error:
            raise LocalError(f"{error}. Pass a copy with {flag} FILE") from None
    data = _read_file(given, bytes_max)
    if sha256(data).digest() != digest:
        raise LocalError(f"{given} is not {digest}")
    return data


def _read_file(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise LocalError(f"{path} is larger than {bytes_max} bytes")
    return data


async def _fetch(config: NodeConfig, path: str, digest: Digest, bytes_max: int) -> bytes:
    async with open_anonymous_client(config, config.network or "any") as client:
        server = ServerAddress(config.coordinator, NodeId(bytes(NodeId.SIZE)))
        return await fetch_file(client, server, path, digest, bytes_max=bytes_max)


# --- Output -----------------------------------------------------------------------------------------------------------


def _print_evidence(context: NodeCliContext, evidence: EvidenceBundle, raw: bytes, domain: Domain) -> None:
    task, say = evidence.task, context.screen.print_line
    say(f"evidence    0x{sha256(raw).hexdigest()}, {len(raw)} bytes")
    say(f"submission  {task.submission} of {task.node}")
    last = task.first_slot + task.slots - 1
    say(f"            lease {task.lease}, step {task.step}, slots {task.first_slot} to {last}")
    say(f"            {'signature valid' if verify_evidence_signature(evidence, domain) else 'not signed'}")
    say(f"checkpoint  {task.checkpoint_root}, step {evidence.facts.weights.step}")
    engine = evidence.engine
    how = f"{engine.engine} on {engine.device} in {engine.precision}" if engine else "no engine was needed"
    say(f"then        {evidence.outcome}: {evidence.reason}")
    say(f"            {how}; {', '.join(evidence.software) or 'unknown software'}")


def _print_comparison(
    context: NodeCliContext, evidence: EvidenceBundle, judged: Judgement, agrees: bool, tolerance: Tolerance
) -> None:
    """`tolerance` is what counts as noise for this machine's engine: the validator's may have had another class."""
    checks = list(compare_metrics(evidence.metrics, judged, tolerance))
    if context.args.json:
        context.screen.print_json(
            {
                "submission": str(evidence.task.submission),
                "then": {"outcome": str(evidence.outcome), "reason": evidence.reason},
                "here": {"outcome": str(judged.outcome), "reason": judged.reason},
                "agrees": agrees,
                "checks": [{"name": r.name, "limit": r.limit, "then": r.in_verdict, "here": r.here} for r in checks],
                "flaws": [flaw.text for flaw in judged.flaws],
            }
        )
        return
    say = context.screen.print_line
    say(f"here        {judged.outcome}: {judged.reason or 'every check passes'}")
    say("")
    context.screen.show(context.screen.table(["check", "limit", "then", "here"], [_cells(row) for row in checks]))
    for flaw in judged.flaws[:10]:
        say(f"  {flaw.text}")
    say("this machine agrees with the verdict" if agrees else "this machine DISAGREES with the verdict")


def _cells(row: ComparedMetric) -> tuple[Any, ...]:
    return (row.name, *("" if value is None else f"{value:.6g}" for value in (row.limit, row.in_verdict, row.here)))
