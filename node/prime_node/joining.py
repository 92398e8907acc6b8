"""What a first start finds out instead of asking its owner: whose coordinator answers, of which network, for which run.

Trust on first use: what the coordinator says of itself is shown, so that it can be compared with what its operator
publishes, and held to from then on. From the first signed message on, only that key is believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prime_node.config import NodeConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.exchange import Refusal, RefusalCode
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.note import VerifierKey
from prime_protocol.statuses import RunStatus
from prime_protocol.typed_data import EMBEDDED, Domain
from prime_runtime.http_errors import Refused, Unreachable
from prime_runtime.wording import show_span

ACTIVE = str(RunStatus.ACTIVE)
FINAL = (RefusalCode.MALFORMED, RefusalCode.UNAUTHENTIC, RefusalCode.UNKNOWN)
"""Refusals that asking again does not change; a first start that gets one has a wrong setting."""
VERSION_FIELD = "Letter.version"


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A run, as the coordinator lists it."""

    name: RunId
    status: str
    model: str
    task_set: str


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a coordinator says of itself to anybody."""

    network: NetworkId
    coordinator: NodeId
    log_key: str
    runs: tuple[RunSeen, ...]
    domain: Domain = EMBEDDED
    """Where receipts count."""


def read_greeting(answer: Any) -> Greeting:
    """From the JSON of /status; RemoteError where it is not that."""
    try:
        log_key = str(answer["log_key"])
        VerifierKey.parse(log_key)
        return Greeting(
            NetworkId(answer["network"]),
            NodeId.parse(answer["coordinator"]),
            log_key,
            tuple(_read_run(row) for row in answer["runs"]),
        )
    except (KeyError, TypeError) as error:
        raise RemoteError("status", f"lacks what a coordinator tells ({error!r})") from None


def read_domain(answer: Any) -> Domain:
    """From the JSON of /settlement; RemoteError where it is not that."""
    try:
        return Domain.parse(f"{answer['chain_id']}:{answer['court']}")
    except (KeyError, TypeError) as error:
        raise RemoteError("settlement", f"lacks what a coordinator tells ({error!r})") from None


def _read_run(row: Mapping[str, Any]) -> RunSeen:
    return RunSeen(RunId(row["run"]), str(row["status"]), str(row["model"]), str(row["task_set"]))


def complete(config: NodeConfig, greeting: Greeting) -> NodeConfig:
    """The settings with what was left open filled in; LocalError where they contradict the coordinator."""
    if config.network not in ("", greeting.network):
        raise LocalError(
            f"the coordinator at {config.coordinator} is of the network {greeting.network}, and network is set to"
            f" {config.network}; is it the right URL?"
        )
    if config.coordinator_id not in ("", str(greeting.coordinator)):
        raise LocalError(
            f"{greeting.coordinator} answers at {config.coordinator}, and coordinator_id is {config.coordinator_id}:"
            " that is another coordinator. Ask the operator before you trust it"
        )
    if config.run and config.run not in [run.name for run in greeting.runs]:
        raise LocalError(f"there is no run {config.run} on {greeting.network}; there are: {_list(greeting)}")
    return replace(
        config,
        network=str(greeting.network),
        coordinator_id=str(greeting.coordinator),
        run=config.run or str(choose_run(greeting).name),
        log_key=config.log_key or greeting.log_key,
        domain=config.domain or str(greeting.domain),
    )


def choose_run(greeting: Greeting) -> RunSeen:
    """The only one that is active."""
    active = [run for run in greeting.runs if run.status == ACTIVE]
    if len(active) == 1:
        return active[0]
    if active:
        names = ", ".join(run.name for run in active)
        raise LocalError(f"{len(active)} runs are active on {greeting.network}: {names}; choose one with --run")
    known = _list(greeting)
    raise LocalError(
        f"no run is active on {greeting.network}; ask its operator, or name one with --run. There are: {known}"
    )


def _list(greeting: Greeting) -> str:
    return ", ".join(f"{run.name} ({run.status})" for run in greeting.runs) or "none at all"


# --- When it does not work --------------------------------------------------------------------------------------------


def may_pass(error: LocalError | RemoteError) -> bool:
    """Whether waiting can help: a coordinator that is away, busy, or sees our clock off."""
    if isinstance(error, Refused):
        return error.refusal.code not in FINAL
    return isinstance(error, Unreachable)


def explain(error: LocalError | RemoteError, now_ms: int) -> str:
    """In words for somebody who has just installed this."""
    if isinstance(error, RemoteError) and error.field == VERSION_FIELD:
        return (
            f"this program is newer than the coordinator, whose answer {error.problem.partition(':')[0]};"
            " install the version that its operator names, or wait until it has upgraded"
        )
    return (explain_refusal(error.refusal, now_ms) if isinstance(error, Refused) else "") or str(error)


def explain_refusal(refusal: Refusal, now_ms: int) -> str:
    """Empty where the refusal's own words say it best."""
    if refusal.code is RefusalCode.CLOCK:
        skew_ms = now_ms - refusal.now_ms
        direction = "ahead of" if skew_ms > 0 else "behind"
        return (
            f"this machine's clock is {show_span(abs(skew_ms))} {direction} the coordinator's;"
            " set it, for instance with: timedatectl set-ntp true"
        )
    if refusal.field == VERSION_FIELD:
        return f"this program is too old for this network: it {refusal.problem}: pip install --upgrade prime-swarm"
    return ""
