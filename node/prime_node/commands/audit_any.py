"""`prime-node audit` of a submission that nobody rejected, or nobody was asked about: read again from the public log.

There is no bundle for it, so everything comes from the coordinator: the worker's signed receipt, the lease, the step's
facts, the file, and what validators said of it, with their looks.
"""

import random
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from prime_node import public_log
from prime_node.checks import Judgement
from prime_node.commands.context import Context
from prime_node.config import NodeConfig
from prime_node.evidence import check_receipt
from prime_node.outcomes import ask_receipt
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest, NetworkId, NodeId
from prime_protocol.looks import is_refuted, look_error
from prime_protocol.messages import STEP, AuditTask, StepFacts, StepWanted
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http_client import HttpClient, Server, open_client
from prime_runtime.json_client import JsonClient, NotKnown, open_json_client

PAGE_ROWS = 200
PAGES_MAX = 50
"""Leases of a node that are looked through for the one that was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One validator's verdict, as the log has it."""

    outcome: str
    looks: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All that is needed to read a submission again."""

    receipt: SubmissionReceipt
    task: AuditTask
    facts: StepFacts
    verdicts: Mapping[NodeId, Said]


async def ask_submission(config: NodeConfig, name: Digest) -> Asked | None:
    """From the coordinator; None where no submission has this name."""
    async with open_json_client(config.coordinator, config.authority) as api:
        try:
            await api.get(f"/submissions/{name}")
        except NotKnown:
            return None
        receipt, _ = await ask_receipt(api, name, config.signing_domain)
        first_slot, slots = await _find_slots(api, receipt)
        page = await api.get("/log/entries", kind="VerdictGiven", subject=str(name), limit=str(PAGE_ROWS))
        verdicts = public_log.read("entries", page, to_verdicts)
        told = public_log.read("status", await api.get("/status"), lambda status: str(status["coordinator"]))
    server = Server(config.coordinator, NodeId.parse(config.coordinator_id or told))
    task = AuditTask(
        submission=name,
        round=0,
        # Decoys of our own: whoever made the file could not know them either.
        seed=Digest(secrets.token_bytes(Digest.SIZE)),
        file_digest=receipt.file_digest,
        lease=receipt.lease,
        node=receipt.node,
        step=receipt.step,
        checkpoint_root=receipt.checkpoint_root,
        first_slot=first_slot,
        slots=slots,
        deadline_ms=0,
        readers=tuple(sorted(verdicts)),
    )
    check_receipt(receipt, task)
    return Asked(receipt=receipt, task=task, facts=await _ask_facts(config, server, receipt), verdicts=verdicts)


async def _find_slots(api: JsonClient, receipt: SubmissionReceipt) -> tuple[int, int]:
    """Which tasks its lease was for."""
    query = {"kind": "LeaseGranted", "subject": str(receipt.node), "limit": str(PAGE_ROWS)}
    for _ in range(PAGES_MAX):
        page = await api.get("/log/entries", **query)
        leases, cursor = public_log.read("entries", page, to_leases)
        if (receipt.run, receipt.lease) in leases:
            return leases[receipt.run, receipt.lease]
        if cursor is None:
            break
        query["cursor"] = cursor
    raise LocalError(f"lease {receipt.lease} of {receipt.node} is not among its last {PAGES_MAX * PAGE_ROWS}")


def open_as_nobody(config: NodeConfig, network: str) -> AbstractAsyncContextManager[HttpClient]:
    """Anybody may read what an audit needs, so no key of the node's is: the one here is new and nobody's."""
    return open_client(
        key=WalletKey.from_secret(secrets.token_bytes(32)),
        network=NetworkId(network),
        clock=SystemClock(),
        dice=random.Random(),
        limits=config.client,
        authority=config.authority,
    )


async def _ask_facts(config: NodeConfig, server: Server, receipt: SubmissionReceipt) -> StepFacts:
    async with open_as_nobody(config, receipt.network) as client:
        wanted = StepWanted(step=receipt.step, root=receipt.checkpoint_root)
        found: StepFacts = (await client.call(server, STEP, wanted, run=receipt.run)).message
    return found


def to_leases(page: Mapping[str, Any]) -> tuple[dict[tuple[str, int], tuple[int, int]], str | None]:
    """First slot and number of slots by run and lease, and the cursor of the next page."""
    leases = {
        (str(row["run"]), int(row["body"]["lease"])): (int(row["body"]["first_slot"]), int(row["body"]["slots"]))
        for row in page["rows"]
    }
    return leases, public_log.to_cursor(page)


def to_verdicts(page: Mapping[str, Any]) -> dict[NodeId, Said]:
    return {
        NodeId.parse(row["body"]["receipt"]["validator"]): Said(
            outcome=str(row["body"]["outcome"]), looks=bytes.fromhex(row["body"]["looks"].removeprefix("0x"))
        )
        for row in page["rows"]
    }


def describe_looks(said: bytes, found: bytes) -> str:
    """What a validator's looks say, in words."""
    if not found:
        return "the file needs no model"
    if not said:
        return "did not read it: its verdict has no looks"
    error = look_error(said, found)
    return f"did not read it: off by {error:.2f}" if is_refuted(said, found) else f"read it: off by {error:.4f}"


def report_any(context: Context, asked: Asked, judged: Judgement, looks: Mapping[NodeId, bytes]) -> None:
    readers = [(node, said.outcome, said.looks, looks.get(node, b"")) for node, said in sorted(asked.verdicts.items())]
    if context.args.json:
        context.screen.print_json(
            {
                "submission": str(asked.task.submission),
                "here": {"outcome": str(judged.outcome), "reason": judged.reason},
                "checks": {metric.name: metric.value for metric in judged.metrics},
                "validators": [
                    {"validator": str(node), "outcome": outcome, "read": not is_refuted(said, found) if found else None}
                    for node, outcome, said, found in readers
                ],
            }
        )
        return
    say, task = context.screen.say, asked.task
    say(f"submission  {task.submission} of {task.node}, whose signature under it is good")
    last = task.first_slot + task.slots - 1
    say(f"            lease {task.lease}, step {task.step}, slots {task.first_slot} to {last}")
    say(f"here        {judged.outcome}: {judged.reason or 'every check passes'}")
    say("")
    rows = [(metric.name, f"{metric.value:.6g}") for metric in judged.metrics]
    context.screen.show(context.screen.table(["check", "here"], rows))
    say("")
    if not readers:
        say("nobody was drawn to judge it")
        return
    told = [(str(node), outcome, describe_looks(said, found)) for node, outcome, said, found in readers]
    context.screen.show(context.screen.table(["validator", "found", "by its looks"], told))
