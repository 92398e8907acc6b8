"""`prime-node audit`: run a verdict again from its evidence, and say whether this machine finds the same.

Offline with --bundle and --weights. Else the evidence comes from the coordinator, by the name of the submission or by
the digest of the evidence.
"""

import asyncio
import random
import secrets
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from prime_node import public_log
from prime_node.checks import Judgement
from prime_node.commands.context import Context, with_pins
from prime_node.config import NodeConfig
from prime_node.evidence import BUNDLE_BYTES_MAX, Evidence, check_signature, open_evidence
from prime_node.home import Home
from prime_node.replaying import CheckRow, find_dataset, list_checks, replay
from prime_protocol.constants import DATASET_BYTES_MAX, ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId
from prime_protocol.signing import WalletKey
from prime_protocol.typed_data import Domain
from prime_runtime.clock import SystemClock
from prime_runtime.fetching import fetch_file
from prime_runtime.http_client import Server, open_client
from prime_runtime.json_client import NotKnown, open_json_client

EXIT_DISAGREES = 3


def audit(context: Context) -> int:
    return asyncio.run(_audit(context))


async def _audit(context: Context) -> int:
    given = {"coordinator": context.args.coordinator} if context.args.coordinator else {}
    config = with_pins(context.resolve(given).config)
    raw = await _load_bundle(context, config)
    try:
        evidence = open_evidence(raw)
    except RemoteError as error:
        raise LocalError(f"that is no evidence bundle, or a damaged one: {error}") from None
    file = evidence.file or await _load(
        context.args.file, config, f"/objects/{evidence.task.file_digest}", evidence.task.file_digest, "--file"
    )
    dataset = find_dataset(evidence)
    problems = b"" if dataset is None else await _load_dataset(context, config, dataset)
    weights = _find_weights(context, config, evidence)
    if not context.args.json:
        _introduce(context, evidence, raw, config.signing_domain)
    with tempfile.TemporaryDirectory(prefix="prime-audit-") as folder:
        judged = await replay(
            evidence,
            file=file,
            weights=weights,
            dataset=problems,
            engine=config.engine,
            folder=Path(folder),
            clock=SystemClock(),
        )
    agrees = judged.outcome is evidence.outcome
    _report(context, evidence, judged, agrees)
    return 0 if agrees else EXIT_DISAGREES


# --- What is needed ---------------------------------------------------------------------------------------------------


async def _load_bundle(context: Context, config: NodeConfig) -> bytes:
    if context.args.bundle is not None:
        return _read(context.args.bundle, BUNDLE_BYTES_MAX)
    if context.args.verdict is None:
        raise LocalError("name a submission or an evidence digest, or give --bundle FILE")
    evidence = await _find_evidence(config, parse_verdict(context.args.verdict))
    try:
        return await _fetch(config, f"/objects/{evidence}", evidence, BUNDLE_BYTES_MAX)
    except NotKnown:
        raise LocalError(
            f"nothing that was judged, and no evidence, is called {evidence} at {config.coordinator}, or it is not kept"
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


async def _find_evidence(config: NodeConfig, digest: Digest) -> Digest:
    """Of the first rejection of a submission with this name; else the digest is taken for that of the evidence."""
    if not config.coordinator:
        raise LocalError("there is no node in the folder that knows a coordinator; give --coordinator URL, or --bundle")
    async with open_json_client(config.coordinator, config.authority) as api:
        try:
            page = await api.get("/verdicts", submission=str(digest))
        except NotKnown:
            return digest
    found = public_log.read("verdicts", page, public_log.to_evidence)
    if found is None:
        return digest
    outcomes, evidence = found
    if evidence is None:
        raise LocalError(f"validators found {digest} {outcomes}: only a rejection has evidence that can be run again")
    return evidence


def _find_weights(context: Context, config: NodeConfig, evidence: Evidence) -> Path:
    """The folder that was given, else the checkpoint where a node of this folder keeps it."""
    if context.args.weights is not None:
        return Path(context.args.weights)
    store = config.weights.folder or Home(config.folder).weights
    path = store / "checkpoints" / evidence.task.checkpoint_root.hex()
    if not path.is_dir():
        raise LocalError(
            f"the checkpoint {evidence.task.checkpoint_root} of step {evidence.facts.weights.step} is not in {store}; "
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
    data = _read(given, bytes_max)
    if sha256(data).digest() != digest:
        raise LocalError(f"{given} is not {digest}")
    return data


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise LocalError(f"{path} is larger than {bytes_max} bytes")
    return data


async def _fetch(config: NodeConfig, path: str, digest: Digest, bytes_max: int) -> bytes:
    """Anybody may read it, so no key of the node's is needed: the one here signs nothing."""
    async with open_client(
        key=WalletKey.from_secret(secrets.token_bytes(32)),
        network=NetworkId(config.network or "any"),
        clock=SystemClock(),
        dice=random.Random(),
        limits=config.client,
        authority=config.authority,
    ) as client:
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
    checks = list(list_checks(evidence, judged))
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
