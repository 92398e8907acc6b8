"""What a first start finds out instead of asking its owner: whose coordinator answers, of which network, for which run.

Trust on first use: what the coordinator says of itself is shown, so that it can be compared with what its operator
publishes, and held to from then on. From the first signed message on, only that key is believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prime_node.config import NodeConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NetworkId, NodeId, RunId
from prime_protocol.note import VerifierKey
from prime_protocol.statuses import RunStatus

ACTIVE = str(RunStatus.ACTIVE)


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
    return replace(
        config,
        network=str(greeting.network),
        coordinator_id=str(greeting.coordinator),
        run=config.run or str(choose_run(greeting).name),
        log_key=config.log_key or greeting.log_key,
    )


def choose_run(greeting: Greeting) -> RunSeen:
    """The only one that is active."""
    active = [run for run in greeting.runs if run.status == ACTIVE]
    if len(active) == 1:
        return active[0]
    if active:
        names = ", ".join(run.name for run in active)
        raise LocalError(f"{len(active)} runs are active on {greeting.network}: {names}; choose one with --run")
    known = ", ".join(f"{run.name} ({run.status})" for run in greeting.runs) or "none at all"
    raise LocalError(
        f"no run is active on {greeting.network} (there are: {known}); ask its operator, or name one: --run"
    )
