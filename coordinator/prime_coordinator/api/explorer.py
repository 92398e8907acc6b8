"""Adapter for the explorer inside a running coordinator: live data that the log does not hold."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prime_coordinator.app_context import AppContext
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.constants import STATUS_MS
from prime_coordinator.core import Core
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.log.store import ROWS_MAX
from prime_coordinator.retention.file_rows import StoredFile
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.scheduling.eligibility import NodePhase
from prime_coordinator.settlement.files import ChainFiles
from prime_explorer.app import Explorer
from prime_explorer.index.fold_audits import PROGRESS
from prime_explorer.pages.keys import RotatedKeySummary
from prime_explorer.pages.live import (
    ChainAnchor,
    ChainPromise,
    LiveNodeWork,
    LiveRun,
    NodeCounts,
    NodeEligibility,
    NodePresence,
    PaidAccount,
    PayoutView,
    RandomnessView,
    RefusedFile,
    RulesView,
    ServingNode,
    SettlementView,
    StatusView,
    SubmissionCounts,
    ValueTotals,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.state import LedgerState, RunState
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.objects.store import ObjectMissing, ObjectStore
from prime_runtime.rate_limits import RateLimit


class CoordinatorLive:
    """What the coordinator knows at this moment."""

    def __init__(self, context: AppContext, relay: GossipRelay) -> None:
        self._context = context
        self._relay = relay
        self._status: StatusView | None = None

    # --- The network ------------------------------------------------------------------------------------------------

    def get_status(self) -> StatusView:
        """Its counts are at most STATUS_MS old; what it says of the log is of this moment."""
        now_ms, state = self._context.now_ms(), self._context.core.state
        # A clock that was set back would make the cached status look as if it came from the future.
        if self._status is None or not 0 <= now_ms - self._status.now_ms < STATUS_MS:
            self._status = make_status(self._context.core, self._context.config, now_ms)
        return replace(self._status, entries=state.size, root=str(state.frontier.root()), newest_entry_ms=state.at_ms)

    def get_settlement(self) -> SettlementView:
        status, domain = self._context.settlement.describe(), self._context.core.state.domain
        return SettlementView(
            kind=status["kind"],
            chain_id=domain.chain_id,
            court=str(domain.contract),
            head=status.get("head", 0),
            followed=max(0, status.get("followed", 0)),
            problem=status.get("problem", ""),
            pending=tuple(status.get("pending", ())),
            refused=tuple(f"{action}: {why}" for action, why in status.get("refused", {}).items()),
            anchors=tuple(self.list_anchors()),
            promises=tuple(_make_promise(row) for row in status.get("promises", ())),
        )

    def list_anchors(self) -> list[ChainAnchor]:
        return [ChainAnchor(**row) for row in self._context.settlement.describe().get("anchors", ())]

    async def get_payout(self, run: RunId, epoch: int) -> PayoutView | None:
        path = ChainFiles(self._context.config.folder).payout(run, epoch)
        try:
            plain = json.loads(await asyncio.to_thread(path.read_bytes))
        except FileNotFoundError:
            return None
        paid = tuple(PaidAccount(account=account, paid_nano=nano) for account, nano in plain["paid_nano"].items())
        return PayoutView(run=plain["run"], epoch=plain["epoch"], size=plain["size"], paid=paid)

    async def list_refused(self, node: NodeId | None = None) -> list[RefusedFile]:
        found = await self._context.log.list_refused(limit=ROWS_MAX)
        names = RefusedFile.__slots__
        return [
            RefusedFile(**{name: getattr(each, name) for name in names})
            for each in found
            if node is None or each.node == str(node)
        ]

    # --- Nodes ------------------------------------------------------------------------------------------------------

    def count(self) -> NodeCounts:
        return count_nodes(self._context.core)

    def list_phase(self, phase: str) -> list[NodeId]:
        liveness = self._context.core.liveness
        if phase == NodePhase.ONLINE:
            return liveness.list_online()
        return [node for node in self._context.core.state.nodes if liveness.phase(node) == phase]

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, NodePresence]:
        return {str(node): self._presence(node) for node in nodes}

    def _presence(self, node: NodeId) -> NodePresence:
        liveness = self._context.core.liveness
        found = liveness.get(node)
        return NodePresence(
            phase=str(liveness.phase(node)),
            activity=str(found.activity) if found else None,
            checkpoint_step=found.checkpoint_step if found else None,
            last_beat_ms=found.beat_ms if found else None,
        )

    def get_work(self, node: NodeId) -> LiveNodeWork | None:
        core, now_ms = self._context.core, self._context.now_ms()
        if node not in core.state.nodes:
            return None
        throughput, rules = (
            core.leases.throughput,
            {run: core.get_eligibility(node, run, now_ms) for run in core.state.runs},
        )
        return LiveNodeWork(
            tokens_per_s=round(throughput.get(node, 0), 3) if throughput.is_measured(node) else None,
            eligibility=tuple(
                NodeEligibility(
                    run=run, eligibility=str(rule.eligibility), is_eligible=rule.is_eligible, remedy=rule.remedy
                )
                for run, rule in rules.items()
            ),
            audits=tuple(str(task.submission) for task in core.audits.tasks(node)),
        )

    def list_serving(self, run: RunId) -> list[ServingNode]:
        return [
            ServingNode(
                node=str(node),
                depth=serving.depth,
                slots_free=serving.slots_free,
                urls=len(serving.urls),
                manifests=tuple(map(str, serving.manifests)),
                parents=tuple(map(str, serving.parents)),
                sent_bytes=serving.sent_bytes,
            )
            for node, serving in self._relay.list_serving(run, self._context.now_ms())
        ]

    def get_sent_bytes(self, node: NodeId) -> int | None:
        serving = self._relay.find_serving(node, self._context.now_ms())
        return None if serving is None else serving.sent_bytes


def _make_promise(row: dict[str, Any]) -> ChainPromise:
    plain = {name: value for name, value in row.items() if name not in ("headSize", "maturesAt")}
    return ChainPromise(**plain, head_size=row["headSize"], matures_at_s=row["maturesAt"])


def make_status(core: Core, config: CoordinatorConfig, now_ms: int) -> StatusView:
    state, funds = core.state, core.state.funds
    work = _count_submissions(state)
    return StatusView(
        network=config.network,
        coordinator=str(state.coordinator),
        log_key=state.log_key,
        rotations=tuple(
            RotatedKeySummary(index=each.index, at_ms=each.at_ms, kind=str(each.kind), old=each.old, new=each.new)
            for each in reversed(state.key_rotations)
        ),
        ticker=state.ticker,
        faucet_nano=config.faucet.amount_nano,
        now_ms=now_ms,
        entries=state.size,
        root=str(state.frontier.root()),
        head_size=core.head_size,
        newest_entry_ms=state.at_ms,
        rules=RulesView(**asdict(state.rules)),
        randomness=_make_randomness(core, now_ms),
        nodes=count_nodes(core),
        leases_open=sum(len(run.leases) for run in state.runs.values()),
        submissions=SubmissionCounts(**{name: work[name] for name in SubmissionCounts.__slots__}),
        slashes_open=sum(len(run.slashes) for run in state.runs.values()),
        value=ValueTotals(
            deposited_nano=funds.deposited_nano,
            withdrawn_nano=funds.withdrawn_nano,
            burned_nano=funds.burned_nano,
            held_nano=funds.deposited_nano - funds.withdrawn_nano - funds.burned_nano,
        ),
        runs=tuple(_make_live_run(core, name, run, now_ms) for name, run in state.runs.items()),
    )


def _make_randomness(core: Core, now_ms: int) -> RandomnessView:
    state = core.state
    number = next(iter(state.pending_rounds), None)
    late_s = (now_ms - state.randomness.round_time_ms(number)) // 1000 if number is not None else 0
    return RandomnessView(
        chain=state.randomness.describe(),
        chain_hash=state.randomness.compute_hash().hex(),
        waiting_for_round=number,
        late_s=max(0, late_s),
        last_witnesses=core.witnesses.last_witnesses,
    )


def count_nodes(core: Core) -> NodeCounts:
    phases, registered = core.liveness.count(), len(core.state.nodes)
    online, late = phases[NodePhase.ONLINE], phases[NodePhase.LATE]
    return NodeCounts(registered=registered, online=online, late=late, lost=registered - online - late)


def _count_submissions(state: LedgerState) -> Counter[str]:
    """By progress; those that are settled since the log began."""
    counts = Counter[str]()
    for run in state.runs.values():
        for name in run.unsettled:
            counts["auditing" if run.submissions[name].rounds else "waiting"] += 1
    for node in state.nodes.values():
        for outcome, settled in node.settled.items():
            counts[PROGRESS[outcome]] += settled
    return counts


def _make_live_run(core: Core, name: RunId, run: RunState, now_ms: int) -> LiveRun:
    step = run.steps.get(Step(run.latest))
    return LiveRun(
        run=name,
        status=str(run.status),
        model=run.terms.model,
        task_set=run.terms.task_set,
        latest_step=run.latest,
        slots_done=len(step.credited) if step else 0,
        slots_held=len(step.held.keys() - step.credited) if step else 0,
        slots_per_step=step.terms.slots_per_step if step else run.terms.slots_per_step,
        leases_open=len(run.leases),
        validators=len(run.validators),
        pool_nano=core.state.funds.pools[name],
        step_budget_nano=run.terms.step_budget_nano,
        version_min=core.state.get_version_min(run.terms, now_ms),
        calibration=run.terms.calibration,
        calibrated_at_ms=run.terms.calibrated_at_ms,
        engine_classes=run.terms.class_bounds.classes,
        is_closed=run.terms.class_bounds.is_closed,
    )


class StoredFiles:
    """Files that the log names, from the coordinator's object store."""

    def __init__(self, context: AppContext, objects: ObjectStore) -> None:
        self._context = context
        self._objects = objects
        self._files = FileTable(context.log, objects, context.core)

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """None if the log does not name it. Its digest was verified at upload."""
        if not await self._context.log.is_subject(digest):
            return None
        found = await self._files.find_or_rebuild(digest)
        if not isinstance(found, StoredFile):
            return None
        try:
            return await self._objects.get(found.key, bytes_max=bytes_max)
        except (ObjectMissing, RemoteError):
            return None  # gone, or longer than wanted

    async def find_expired(self, digests: Sequence[Digest]) -> dict[Digest, int]:
        """When each of these files expired; those that did not are missing."""
        return await self._files.find_expired(list(digests))


def open_models(folders: tuple[Path, ...]) -> tuple[ModelFiles, ...]:
    """The tokenizers that decode texts; LocalError names a folder without one."""
    if folders and find_spec("tokenizers") is None:
        raise LocalError("explorer.models needs the package tokenizers: pip install tokenizers, or leave it unset")
    try:
        return tuple(map(ModelFiles.open, folders))
    except LocalError as error:
        raise LocalError(f"explorer.models: {error}") from None


def make_explorer(context: AppContext, relay: GossipRelay, objects: ObjectStore, clock: Clock) -> Explorer:
    home = CoordinatorHome(context.config.folder)
    return Explorer(
        mirror=home.mirror,
        folder=home.explorer,
        live=CoordinatorLive(context, relay),
        objects=StoredFiles(context, objects),
        clock=clock,
        models=open_models(context.config.explorer.models),
        proxies=context.config.limits.trusted_proxies,
        rate=RateLimit(per_second=context.config.read_api.per_second, burst=context.config.read_api.burst),
        is_indexed=context.config.explorer.enabled,
    )
