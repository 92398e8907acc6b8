"""Joining a network: a first start asks the coordinator for its key, its network, its runs and the run's trainer.

Trust on first use. What the coordinator says about itself is printed, so that the owner can compare it with what the
operator publishes, and saved. From then on the node accepts only that key.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from prime_node.config import NodeConfig
from prime_node.storage.node_folder import read_trainer
from prime_protocol.constants import KEY_FILE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.messages import RELAY_POLL, RelayPoll
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.ledger.entries import RunStatus
from prime_protocol.log.tiles import KEYS_PATH
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, parse_address
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.formatting import format_duration
from prime_runtime.http.client import CallRefused, HttpClient, Unreachable
from prime_runtime.http.coordinator_api import open_json_client

log = logging.getLogger(__name__)


ACTIVE = str(RunStatus.ACTIVE)
FINAL_REFUSALS = (RefusalCode.MALFORMED, RefusalCode.UNAUTHENTIC, RefusalCode.UNKNOWN)
"""Refusals that a retry does not change. At a first start they mean a wrong setting."""
VERSION_FIELD = "Payload.version"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, as the coordinator lists it."""

    name: RunId
    status: str
    model: str
    task_set: str
    is_unpaid: bool
    """Its pool cannot pay a step, or its terms pay nothing."""


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """What a coordinator says about itself, unsigned."""

    network: NetworkId
    coordinator: NodeId
    log_key: str
    runs: tuple[ListedRun, ...]
    domain: Domain = EMBEDDED_DOMAIN
    """Where receipts count."""
    keys: KeyChain | None = None
    """Of the log, where it was asked for them."""

    def continues(self, coordinator_id: str) -> bool:
        """Whether the log rotated the coordinator's key from this one to the one it has."""
        keys = self.keys
        return (
            keys is not None
            and keys.coordinator == self.coordinator
            and keys.has_coordinator(NodeId.parse(coordinator_id))
        )


UNPAID = "the pool of run {run} cannot pay a step now: accepted work earns nothing until its operator funds it"


def parse_coordinator_info(answer: Any) -> CoordinatorInfo:
    """From the JSON of /status. RemoteError: it has another form."""
    try:
        log_key = str(answer["log_key"])
        VerifierKey.parse(log_key)
        return CoordinatorInfo(
            NetworkId(answer["network"]),
            NodeId.parse(answer["coordinator"]),
            log_key,
            tuple(_parse_run(row) for row in answer["runs"]),
        )
    except (KeyError, TypeError) as error:
        raise RemoteError("status", f"is not the status of a coordinator ({error!r})") from None


def parse_domain(answer: Any) -> Domain:
    """From the JSON of /settlement. RemoteError: it has another form."""
    try:
        return Domain.parse(f"{answer['chain_id']}:{answer['court']}")
    except (KeyError, TypeError) as error:
        raise RemoteError("settlement", f"is not the settlement of a coordinator ({error!r})") from None


def _parse_run(row: Mapping[str, Any]) -> ListedRun:
    budget, pool = row.get("step_budget_nano", 1), row.get("pool_nano", 1)
    is_unpaid = isinstance(budget, int) and isinstance(pool, int) and (not budget or pool < budget)
    return ListedRun(RunId(row["run"]), str(row["status"]), str(row["model"]), str(row["task_set"]), is_unpaid)


def complete_config(config: NodeConfig, info: CoordinatorInfo) -> NodeConfig:
    """Fills in the settings that were left open. LocalError: they contradict the coordinator."""
    if config.network not in ("", info.network):
        raise LocalError(
            f"the coordinator at {config.coordinator} belongs to the network {info.network}, but network is set to"
            f" {config.network}; check the URL"
        )
    if config.coordinator_id not in ("", str(info.coordinator)) and not info.continues(config.coordinator_id):
        raise LocalError(
            f"{info.coordinator} answers at {config.coordinator}, but coordinator_id is {config.coordinator_id}."
            " That is another coordinator: ask the operator before you trust it"
        )
    for name in config.runs:
        if name not in [run.name for run in info.runs]:
            raise LocalError(f"there is no run {name} on {info.network}; there are: {_list_runs(info)}")
    return replace(
        config,
        network=str(info.network),
        coordinator_id=config.coordinator_id or str(info.coordinator),
        run=config.run or str(choose_run(info).name),
        log_key=config.log_key or info.log_key,
        domain=config.domain or str(info.domain),
    )


def choose_run(info: CoordinatorInfo) -> ListedRun:
    """The only active run. LocalError: there are several, or none."""
    active = [run for run in info.runs if run.status == ACTIVE]
    if len(active) == 1:
        return active[0]
    if active:
        names = ", ".join(run.name for run in active)
        raise LocalError(f"{len(active)} runs are active on {info.network}: {names}; choose one with --run")
    known = _list_runs(info)
    raise LocalError(
        f"no run is active on {info.network}; ask its operator, or name one with --run. There are: {known}"
    )


def _list_runs(info: CoordinatorInfo) -> str:
    return ", ".join(f"{run.name} ({run.status})" for run in info.runs) or "none at all"


# --- Errors -----------------------------------------------------------------------------------------------------------


def is_retryable(error: LocalError | RemoteError) -> bool:
    """Whether a retry can help: the coordinator is down or busy, or this machine's clock is wrong."""
    if isinstance(error, CallRefused):
        return error.refusal.code not in FINAL_REFUSALS
    return isinstance(error, Unreachable)


def explain_error(error: LocalError | RemoteError, now_ms: int) -> str:
    """In words for an owner at the first start."""
    if isinstance(error, RemoteError) and error.field == VERSION_FIELD:
        return (
            f"this program is newer than the coordinator, whose answer {error.problem.partition(':')[0]};"
            " install the version that its operator names, or wait for its upgrade"
        )
    return (explain_refusal(error.refusal, now_ms) if isinstance(error, CallRefused) else "") or str(error)


def explain_refusal(refusal: Refusal, now_ms: int) -> str:
    """Empty where the refusal's own text is clear enough."""
    if refusal.code is RefusalCode.CLOCK:
        skew_ms = now_ms - refusal.now_ms
        direction = "ahead of" if skew_ms > 0 else "behind"
        return (
            f"this machine's clock is {format_duration(abs(skew_ms))} {direction} the coordinator's;"
            " set it, for instance with: timedatectl set-ntp true"
        )
    if refusal.field == VERSION_FIELD:
        return f"this program is too old for this network: it {refusal.problem}: pip install --upgrade prime-swarm"
    return ""


RETRY_MS = 1_000
RETRY_MS_MAX = 30_000
"""Between two attempts, doubling, while the coordinator does not answer."""

T = TypeVar("T")
PrintLine = Callable[[str], None]


class CoordinatorDiscovery:
    """Asks the coordinator until it answers, or until the process is stopped."""

    def __init__(self, config: NodeConfig, stop: asyncio.Event, clock: Clock, print_line: PrintLine) -> None:
        self._config = config
        self._stop = stop
        self._clock = clock
        self._print = print_line
        self._is_first = read_trainer(config) is None
        self.problem = ""
        """Why the node has not joined yet."""

    async def resolve_config(self) -> NodeConfig | None:
        """The settings, completed with what the coordinator says; None: the process was stopped first."""
        if self._config.is_complete:
            return self._config
        return await self._retry(self._fetch_coordinator_info)

    async def resolve_trainers(self, config: NodeConfig, client: HttpClient) -> dict[RunId, NodeId] | None:
        """The trainer of each run, as an earlier start saved it, or as the coordinator says; None: stopped first."""
        trainers: dict[RunId, NodeId] = {}
        for run in config.runs:
            trainer = await self._resolve_trainer(config.for_run(run), client)
            if trainer is None:
                return None
            trainers[run] = trainer
        return trainers

    async def _resolve_trainer(self, config: NodeConfig, client: HttpClient) -> NodeId | None:
        if config.trainer:
            return parse_address(config.trainer)
        return read_trainer(config) or await self._retry(lambda: self._fetch_trainer(config, client))

    async def _fetch_coordinator_info(self) -> NodeConfig:
        config = self._config
        async with open_json_client(config.coordinator, config.authority) as client:
            answer = await client.get("/status")
            settlement = await client.get("/settlement")
            keys = await client.get_file(f"/log/{KEYS_PATH}", KEY_FILE_BYTES_MAX) if config.coordinator_id else None
        try:
            info = replace(parse_coordinator_info(answer), domain=parse_domain(settlement))
            if keys is not None:
                info = replace(info, keys=KeyChain.of_leaves(KeyFile.parse(keys).leaves, info.network))
        except RemoteError as error:
            raise LocalError(f"{config.coordinator} is not a coordinator: {error}; check the URL") from None
        found = complete_config(config, info)
        self._print(f"network {found.network}, run {found.run}")
        for run in info.runs:
            if run.is_unpaid and run.name in found.runs:
                self._print(f"  {UNPAID.format(run=run.name)}")
        self._print(f"coordinator {found.coordinator_id}")
        if found.signing_domain != EMBEDDED_DOMAIN:
            self._print(f"settles on chain {info.domain.chain_id}, court {info.domain.contract}")
        self._print(f"log key {found.log_key}")
        self._print(
            "  This is what it says about itself: compare it with what its operator publishes. It is saved now."
        )
        return found

    async def _fetch_trainer(self, config: NodeConfig, client: HttpClient) -> NodeId:
        wanted = RelayPoll(seen=0, wait_ms=0, wants_peers=False, record=b"")
        answer = await client.call(config.server, RELAY_POLL, wanted, run=config.run_id)
        return answer.message.trainer

    async def _retry(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """Until it is answered, or the process is stopped. A first start gives up where a retry cannot help."""
        wait_ms = RETRY_MS
        while not self._stop.is_set():
            try:
                return await question()
            except (LocalError, RemoteError) as error:
                problem = explain_error(error, self._clock.now_ms())
                if self._is_first and not is_retryable(error):
                    raise LocalError(problem) from None
                self._report_problem(problem)
            await wait_until_set(self._stop, wait_ms)
            wait_ms = min(RETRY_MS_MAX, 2 * wait_ms)
        return None

    def _report_problem(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot join yet: %s", problem)
            self._print(f"not joined yet, retrying: {problem}")
        self.problem = problem
