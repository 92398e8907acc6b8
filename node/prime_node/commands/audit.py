"""`prime-node audit`: run a verdict again from its evidence, and say whether this machine finds the same.

Offline with --bundle and --weights. Else the evidence comes from the coordinator, by the name of the submission or by
the digest of the evidence. A submission that nobody rejected has none; it is read again from the log (audit_any.py).
"""

import asyncio
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from prime_node import public_log
from prime_node.checks import Judgement
from prime_node.commands.audit_any import Asked, ask_submission, open_as_nobody, report_any
from prime_node.commands.context import Context, with_pins
from prime_node.config import NodeConfig
from prime_node.evidence import BUNDLE_BYTES_MAX, Evidence, check_signature, open_evidence
from prime_node.examination import Examination
from prime_node.home import Home
from prime_node.replaying import CheckRow, find_dataset, list_checks, replay
from prime_protocol.constants import DATASET_BYTES_MAX, ROLLOUT_FILE_BYTES_MAX
from prime_protocol.entries import Outcome
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.messages import AuditTask, StepFacts
from prime_protocol.typed_data import Domain
from prime_runtime.clock import SystemClock
from prime_runtime.fetching import fetch_file
from prime_runtime.http_client import Server
from prime_runtime.json_client import NotKnown, open_json_client

EXIT_DISAGREES = 3


def audit(context: Context) -> int:
    return asyncio.run(_audit(context))


async def _audit(context: Context) -> int:
    given = {"coordinator": context.args.coordinator} if context.args.coordinator else {}
    config = with_pins(context.resolve(given).config)
    found = await _find(context, config)
    if isinstance(found, Asked):
        return await _audit_any(context, config, found)
    return await _audit_again(context, config, found)


async def _audit_again(context: Context, config: NodeConfig, raw: bytes) -> int:
    """A verdict, from its bundle."""
    try:
        evidence = open_evidence(raw)
    except RemoteError as error:
        raise LocalError(f"that is no evidence bundle, or a damaged one: {error}") from None
    if not context.args.json:
        _introduce(context, evidence, raw, config.signing_domain)
    examined = await _read(context, config, evidence.run, evidence.task, evidence.facts, evidence.file)
    judged = examined.judge()
    agrees = judged.outcome is evidence.outcome
    _report(context, evidence, judged, agrees)
    return 0 if agrees else EXIT_DISAGREES


async def _audit_any(context: Context, config: NodeConfig, asked: Asked) -> int:
    """A submission that nobody rejected: what this machine finds in it, and who had read it."""
    examined = await _read(context, config, asked.receipt.run, asked.task, asked.facts, b"")
    judged = examined.judge()
    report_any(context, asked, judged, examined.looks)
    return 0 if judged.outcome is Outcome.ACCEPT else EXIT_DISAGREES


async def _read(
    context: Context, config: NodeConfig, run: RunId, task: AuditTask, facts: StepFacts, file: bytes
) -> Examination:
    """With this machine's engine. What is not at hand is fetched."""
    file = file or await _load(context.args.file, config, f"/objects/{task.file_digest}", task.file_digest, "--file")
    dataset = find_dataset(facts)
    problems = b"" if dataset is None else await _load_dataset(context, config, dataset)
    weights = _find_weights(context, config, task, facts)
    with tempfile.TemporaryDirectory(prefix="prime-audit-") as folder:
        return await replay(
            run,
            task,
            facts,
            file=file,
            weights=weights,
            dataset=problems,
            engine=config.engine,
            folder=Path(folder),
            clock=SystemClock(),
        )


# --- What is needed ---------------------------------------------------------------------------------------------------


async def _find(context: Context, config: NodeConfig) -> bytes | Asked:
    """A bundle; or a submission that has none, since nobody rejected it."""
    if context.args.bundle is not None:
        return _read_file(context.args.bundle, BUNDLE_BYTES_MAX)
    if context.args.verdict is None:
        raise LocalError("name a submission or an evidence digest, or give --bundle FILE")
    name = parse_verdict(context.args.verdict)
    if not config.coordinator:
        raise LocalError("there is no node in the folder that knows a coordinator; give --coordinator URL, or --bundle")
    evidence = await _find_evidence(config, name)
    if evidence is None:
        asked = await ask_submission(config, name)
        if asked is not None:
            return asked
    try:
        return await _fetch(config, f"/objects/{evidence or name}", evidence or name, BUNDLE_BYTES_MAX)
    except NotKnown:
        raise LocalError(
            f"nothing that was submitted, and no evidence, is called {name} at {config.coordinator}, or it is not kept"
            " any more. `prime-node rollouts ID` shows the names of yours; a file that you have is given with --bundle"
        ) from None


def parse_verdict(text: str) -> Digest:
    try:
        return Digest.parse(text)
    except RemoteError as error:
        raise LocalError(
            f"{text!r} names no verdict: a digest {error.problem}. `prime-node rollouts ID` shows a submission's, the "
            "explorer a verdict's; a file that you have is given with --bundle"
        ) from None


async def _find_evidence(config: NodeConfig, name: Digest) -> Digest | None:
    """Of the first rejection of a submission with this name, if there is one."""
    async with open_json_client(config.coordinator, config.authority) as api:
        try:
            page = await api.get("/verdicts", submission=str(name))
        except NotKnown:
            return None
    return public_log.read("verdicts", page, public_log.to_evidence)


def _find_weights(context: Context, config: NodeConfig, task: AuditTask, facts: StepFacts) -> Path:
    """The folder that was given, else the checkpoint where a node of this folder keeps it."""
    if context.args.weights is not None:
        return Path(context.args.weights)
    store = config.weights.folder or Home(config.folder).weights
    path = store / "checkpoints" / task.checkpoint_root.hex()
    if not path.is_dir():
        raise LocalError(
            f"the checkpoint {task.checkpoint_root} of step {facts.weights.step} is not in {store}; "
            "give --weights FOLDER with its files"
        )
    return path


async def _load_dataset(context: Context, config: NodeConfig, digest: Digest) -> bytes:
    known = Home(config.folder).datasets / digest.hex()
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
        return await _fetch(config, path, digest, bytes_max)
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
    async with open_as_nobody(config, config.network or "any") as client:
        server = Server(config.coordinator, NodeId(bytes(NodeId.SIZE)))
        return await fetch_file(client, server, path, digest, bytes_max=bytes_max)


# --- What is said -----------------------------------------------------------------------------------------------------


def _introduce(context: Context, evidence: Evidence, raw: bytes, domain: Domain) -> None:
    task, say = evidence.task, context.screen.say
    say(f"evidence    0x{sha256(raw).hexdigest()}, {len(raw)} bytes")
    say(f"submission  {task.submission} of {task.node}")
    last = task.first_slot + task.slots - 1
    say(f"            lease {task.lease}, step {task.step}, slots {task.first_slot} to {last}")
    signed = "its author's signature under it is good" if check_signature(evidence, domain) else "no signature is here"
    say(f"            {signed}")
    say(f"checkpoint  {task.checkpoint_root}, step {evidence.facts.weights.step}")
    engine = evidence.engine
    how = f"{engine.engine} on {engine.device} in {engine.precision}" if engine else "no engine was needed"
    say(f"then        {evidence.outcome}: {evidence.reason}")
    say(f"            {how}; {', '.join(evidence.software) or 'software not named'}")


def _report(context: Context, evidence: Evidence, judged: Judgement, agrees: bool) -> None:
    checks = list(list_checks(evidence.metrics, judged, evidence.facts.terms.tolerance))
    if context.args.json:
        context.screen.print_json(
            {
                "submission": str(evidence.task.submission),
                "then": {"outcome": str(evidence.outcome), "reason": evidence.reason},
                "here": {"outcome": str(judged.outcome), "reason": judged.reason},
                "agrees": agrees,
                "checks": [{"name": r.name, "limit": r.limit, "then": r.then, "here": r.here} for r in checks],
                "flaws": [flaw.text for flaw in judged.flaws],
            }
        )
        return
    say = context.screen.say
    say(f"here        {judged.outcome}: {judged.reason or 'every check passes'}")
    say("")
    context.screen.show(context.screen.table(["check", "limit", "then", "here"], [_cells(row) for row in checks]))
    for flaw in judged.flaws[:10]:
        say(f"  {flaw.text}")
    say("this machine agrees with the verdict" if agrees else "this machine DISAGREES with the verdict")


def _cells(row: CheckRow) -> tuple[Any, ...]:
    return (row.name, *("" if value is None else f"{value:.6g}" for value in (row.limit, row.then, row.here)))
