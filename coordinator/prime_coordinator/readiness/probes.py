"""Finds the facts for the checklist: asks the running coordinator, reads its settings, and calls its public address."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Protocol

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.operator_messages import ValidatorCount
from prime_coordinator.readiness.facts import NetworkFacts, PublicAddress, RunFacts
from prime_explorer.config import ROWS_PER_PAGE_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entry_values import RunStatus
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import NodeId, RunId
from prime_runtime.http.coordinator_api import NotFound, open_json_client


class Operator(Protocol):
    """The calls of an operator's client that the probes make."""

    @property
    def coordinator(self) -> NodeId: ...

    def query(self, route: str, params: dict[str, str], *, is_fresh: bool = True) -> Any: ...

    def get_terms(self, run: RunId) -> RunTerms: ...

    def count_validators(self, run: RunId, terms: RunTerms) -> ValidatorCount: ...


def probe_network(config: CoordinatorConfig, client: Operator, authority: Path | None) -> NetworkFacts:
    """All facts; CoordinatorUnreachable if it does not run."""
    status = client.query("status", {})
    # The status may be seconds old; what an order has just changed must show.
    overview = client.query("overview", {})
    runs = client.query("runs", {"limit": str(ROWS_PER_PAGE_MAX)})["rows"]
    randomness = status["randomness"]
    return NetworkFacts(
        ticker=status["ticker"],
        is_devnet=config.is_devnet,
        is_evm=config.settlement.is_evm,
        now_ms=status["now_ms"],
        address=probe_address(config, str(client.coordinator), authority),
        faucet_nano=config.faucet.amount_nano,
        balance_nano=_find_balance(client),
        deposited_nano=overview["deposited_nano"],
        randomness=randomness["chain"],
        randomness_is_own=CoordinatorHome(config.folder).randomness_key.exists(),
        randomness_late_s=randomness["late_s"],
        disk_free_bytes=shutil.disk_usage(config.folder).free,
        nodes_online=status["nodes"]["online"],
        runs=tuple(probe_run(client, row) for row in runs if row["status"] != RunStatus.CLOSED),
    )


def probe_address(config: CoordinatorConfig, coordinator: str, authority: Path | None) -> PublicAddress:
    url = config.public_url
    return PublicAddress(
        url=url,
        is_loopback=config.listen.is_loopback,
        has_tls=url.startswith("https://"),
        problem=asyncio.run(find_address_problem(url, coordinator, authority)) if url else "",
    )


async def find_address_problem(url: str, coordinator: str, authority: Path | None) -> str:
    """Why a node that is given this URL would not find this coordinator; empty if it would."""
    try:
        async with open_json_client(url, authority) as client:
            status = await client.get("/status")
    except LocalError as error:
        return str(error)
    if status.get("coordinator") != coordinator:
        return f"another coordinator answers at {url}: {status.get('coordinator')}"
    return ""


def probe_run(client: Operator, row: dict[str, Any]) -> RunFacts:
    run = RunId(row["run"])
    terms = client.get_terms(run)
    view = client.query("run", {"run": run})
    serving = client.query("network", {"run": run})["serving"] or ()
    published = [step["published_ms"] for step in view["drawn"]]
    return RunFacts(
        name=row["run"],
        status=row["status"],
        terms=terms,
        latest_step=row["latest_step"],
        published_ms=published[-1] if published else None,
        step_ms=(published[-1] - published[0]) // (len(published) - 1) if len(published) > 1 else None,
        pool_nano=row["pool_nano"],
        owners_registered=client.count_validators(run, terms).registered,
        serving=len(serving),
    )


def _find_balance(client: Operator) -> int:
    """Of the coordinator's own account; none before its first deposit."""
    try:
        return int(client.query("node", {"node": str(client.coordinator)}, is_fresh=False).get("balance_nano") or 0)
    except NotFound:
        return 0
