"""`prime-node audit --file-finding` and `prime-node findings`: claim that an accepted submission is fraudulent, and see
how such claims ended.

The evidence is uploaded before the entry names it, so that judges and anyone else can read it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from prime_node.cli.audit import fetch_submission, parse_verdict_id, print_submission, recompute
from prime_node.cli.context import NodeCliContext
from prime_node.cli.stake import ENDPOINTS, load_joined_config, load_owner_key, with_node_password
from prime_node.config import NodeConfig
from prime_node.coordinator_client import UPLOAD_MS
from prime_node.jobs.evidence_bundle import encode_evidence
from prime_node.log import public_api as public_log
from prime_node.storage.keys import load_key
from prime_protocol.constants import REASON_CHARS_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import FindingFiled, Outcome
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.messages import UploadPurpose, UploadRequest
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_time
from prime_runtime.http.client import CallRefused, open_client
from prime_runtime.http.coordinator_api import JsonClient, NotFound, open_json_client, upload_file


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFinding:
    """A finding and its evidence, before they are sent."""

    entry: FindingFiled
    bundle: bytes
    run: RunId


def file_finding(context: NodeCliContext) -> int:
    """Check an accepted submission and, if it is fraudulent, say so in the log against a bond."""
    if context.args.verdict is None:
        raise LocalError("name the submission that the finding is about")
    config = load_joined_config(context)
    key = load_author_key(context, config)
    finding = asyncio.run(_make_finding(context, config))
    try:
        index = asyncio.run(_send_finding(config, key, finding))
    except CallRefused as error:
        problem = f"{error.refusal.field} {error.refusal.problem}".strip()
        raise LocalError(f"no finding was filed: {problem}. See: prime-node stake") from None
    entry = finding.entry
    if context.args.json:
        filed = {"submission": str(entry.submission), "evidence": str(entry.evidence), "index": index}
        context.screen.print_json({"finding": filed})
        return 0
    say = context.screen.print_line
    say(f"the finding about {entry.submission} is filed; drawn validators decide it (entry {index} of the log)")
    say(f"others check its evidence with: prime-node audit {entry.evidence}")
    say("how it ends: prime-node findings")
    return 0


def load_author_key(context: NodeCliContext, config: NodeConfig) -> WalletKey:
    """--key, else the node's. Its account pays the bond."""
    if context.args.key is not None:
        return load_owner_key(context)
    return load_key(with_node_password(context, config))


async def _make_finding(context: NodeCliContext, config: NodeConfig) -> PreparedFinding:
    name = parse_verdict_id(context.args.verdict)
    found = await fetch_submission(config, name)
    if found is None:
        raise LocalError(f"{config.coordinator} has no submission {name}")
    await _check_subject(config, name)
    examined = await recompute(context, config, found.receipt.run, found.task, found.facts, b"")
    judged = examined.judge()
    print_submission(context, found, judged, examined.read_proofs)
    check_finding(judged.outcome, is_forced=context.args.force)
    bundle = encode_evidence(
        network=config.network_id,
        run=found.receipt.run,
        task=found.task,
        facts=found.facts,
        # The coordinator has the file under the digest that the task names.
        file=b"",
        signed=(found.receipt, found.signature),
        examined=examined,
        judged=judged,
    )
    evidence = Digest(sha256(bundle).digest())
    (config.folder / f"finding-{evidence.hex()}.evidence").write_bytes(bundle)
    entry = FindingFiled(submission=name, evidence=evidence, reason=judged.reason[:REASON_CHARS_MAX])
    return PreparedFinding(entry=entry, bundle=bundle, run=found.receipt.run)


async def _check_subject(config: NodeConfig, name: Digest) -> None:
    """Refuse before the audit, which may take long, what the log would refuse after it."""
    async with open_json_client(config.coordinator, config.authority) as api:
        await api.wait_for_index()
        view = await api.get(f"/submissions/{name}")
    problem = public_log.parse_answer("submission", view, lambda found: find_obstacle(found["summary"]))
    if problem:
        raise LocalError(f"no finding was filed: {problem}")


def find_obstacle(summary: Mapping[str, Any]) -> str:
    """Why there can be no finding about a submission now; empty where there can be one."""
    if summary["progress"] != "accepted":
        return f"the submission is {summary['progress']}, and a finding is about an accepted one"
    if summary["paid_idx"] is not None:
        return f"the submission was paid in entry {summary['paid_idx']}: its pay has vested"
    if summary["finding"] == "filed":
        return "another finding about it is open"
    return ""


def check_finding(outcome: Outcome, *, is_forced: bool) -> None:
    """A finding that judges do not agree with loses its bond."""
    if outcome is not Outcome.FRAUDULENT and not is_forced:
        raise LocalError(
            f"no finding was filed: on this machine the file is {outcome}, and a finding would lose its bond. "
            "--force files it"
        )


async def _send_finding(config: NodeConfig, key: WalletKey, finding: PreparedFinding) -> int:
    """The entry's index in the log. CallRefused: a rule is against it, or against storing its evidence."""
    entry = finding.entry
    upload = UploadRequest(
        digest=entry.evidence,
        size_bytes=len(finding.bundle),
        purpose=UploadPurpose.EVIDENCE,
        lease=None,
        submission=entry.submission,
    )
    async with open_client(
        key=key, network=config.network_id, clock=SystemClock(), limits=config.client, authority=config.authority
    ) as client:
        await upload_file(client, config.server, upload, finding.bundle, run=finding.run, deadline_ms=UPLOAD_MS)
        answer = await client.call(config.server, ENDPOINTS[FindingFiled], entry, run=finding.run)
        return int(answer.message.index)


# --- How findings ended -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledFinding:
    """A finding of this account, as the log has it."""

    index: int
    at_ms: int
    submission: str
    reason: str
    state: str
    bounty_to: str
    """Account of the bounty, once the slash is executed."""


def show_findings(context: NodeCliContext) -> int:
    """List the findings of the account, and how each ended."""
    config = load_joined_config(context)
    rows = asyncio.run(_fetch_findings(config, load_author_key(context, config).node))
    if context.args.json:
        names = ("index", "at_ms", "submission", "reason", "state", "bounty_to")
        context.screen.print_json([{name: getattr(row, name) for name in names} for row in rows])
    elif not rows:
        context.screen.print_line("this account has filed no finding: prime-node audit SUBMISSION --file-finding")
    else:
        cells = [(format_time(row.at_ms), row.submission, STATES[row.state]) for row in rows]
        context.screen.show(context.screen.table(["filed, UTC", "submission", "state"], cells))
        for account in sorted({row.bounty_to for row in rows if row.bounty_to}):
            context.screen.print_line(describe_bounty(account, is_on_chain=config.signing_domain != EMBEDDED_DOMAIN))
    return 0


def describe_bounty(account: str, *, is_on_chain: bool) -> str:
    """Where the bounties of executed slashes are."""
    if not is_on_chain:
        return f"bounties are in the balance of {account}"
    return f"bounties of {account} are at the court once it has executed the slash: prime-node claim --bounty"


async def _fetch_findings(config: NodeConfig, author: NodeId) -> list[FiledFinding]:
    """The newest page of them, newest first."""
    async with open_json_client(config.coordinator, config.authority) as api:
        await api.wait_for_index()
        page = await api.get("/log", kind="FindingFiled", author=str(author))
        rows = public_log.parse_answer("log", page, lambda found: list(found["entries"]["rows"]))
        return [await _fetch_finding(api, row) for row in rows]


async def _fetch_finding(api: JsonClient, row: Mapping[str, Any]) -> FiledFinding:
    name = public_log.parse_answer("log", row, lambda found: Digest.parse(found["about"]))
    history = await api.get("/log", about=str(name), limit="100")
    try:
        view = await api.get(f"/submissions/{name}")
    except NotFound:
        raise LocalError(f"the coordinator has a finding about {name}, but not the submission") from None

    is_undecided = public_log.parse_answer("submission", view, lambda found: found["summary"]["finding"]) == "undecided"
    ends = public_log.parse_answer("log", history, lambda found: [int(each["idx"]) for each in list_ends(found)])
    executed = await api.get(f"/log/{max(ends)}") if ends else None

    def parse(found: Mapping[str, Any]) -> FiledFinding:
        index = int(found["idx"])
        later = sorted((int(each["idx"]), str(each["kind"])) for each in history["entries"]["rows"])
        kinds = [kind for at, kind in later if at > index]
        state = get_finding_state(kinds, is_undecided=is_undecided)
        return FiledFinding(
            index=index,
            at_ms=int(found["at_ms"]),
            submission=str(name),
            reason=str(found["brief"]),
            state=state,
            bounty_to=str(executed["body"]["bounty_to"] or "") if executed and state == "executed" else "",
        )

    return public_log.parse_answer("log", row, parse)


def list_ends(history: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The executed slash among the entries about a submission; there is at most one."""
    return [row for row in history["entries"]["rows"] if row["kind"] == "SlashExecuted"]


STATES = {
    "open": "open: drawn validators decide it",
    "upheld": "upheld: the worker may still appeal",
    "appealed": "upheld; the worker appealed, and other validators decide",
    "executed": "upheld, and the worker is slashed: your bond is back, the bounty is yours",
    "overturned": "upheld, then overturned on appeal: your bond is back",
    "dismissed": "dismissed: judges did not agree, and your bond is lost",
    "undecided": "not decided in time: your bond is back, and you may file it again",
}


def get_finding_state(later: Sequence[str], *, is_undecided: bool) -> str:
    """From the kinds of the entries about the submission that follow the finding, oldest first."""
    ended = next((kind for kind in later if kind in ("FindingUpheld", "FindingDismissed")), None)
    if ended is None:
        return "open"
    if ended == "FindingDismissed":
        # The coordinator states how the newest finding about the submission ended.
        return "undecided" if is_undecided and "FindingFiled" not in later else "dismissed"
    for kind, state in (("SlashExecuted", "executed"), ("SlashOverturned", "overturned"), ("Appealed", "appealed")):
        if kind in later:
            return state
    return "upheld"
