"""Adapter for the explorer inside a running coordinator: live data that the log does not hold."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from prime_coordinator.app_context import AppContext
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.intake.uploads import file_key
from prime_coordinator.log.store import ROWS_MAX
from prime_explorer.app import Explorer
from prime_explorer.sources import ChainAnchor, NodePresence, OnlineCounts, RefusedFile, ServingNode
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.objects.store import ObjectMissing, ObjectStore


class CoordinatorLive:
    """Presence, serving records and refused files of this moment."""

    def __init__(self, context: AppContext, relay: GossipRelay) -> None:
        self._context = context
        self._relay = relay

    def count(self) -> OnlineCounts | None:
        counts = {str(phase): count for phase, count in self._context.core.liveness.count().items()}
        return OnlineCounts(online=counts["online"], late=counts["late"])

    def list_online(self) -> list[NodeId] | None:
        return self._context.core.liveness.list_online()

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, NodePresence] | None:
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

    def list_anchors(self) -> list[ChainAnchor] | None:
        return [ChainAnchor(**row) for row in self._context.settlement.describe().get("anchors", ())]

    def list_serving(self, run: RunId) -> list[ServingNode] | None:
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

    async def list_refused(self, node: NodeId) -> list[RefusedFile] | None:
        found = await self._context.log.list_refused(limit=ROWS_MAX)
        return [
            RefusedFile(at_ms=each.at_ms, run=each.run, lease=each.lease, field=each.field, problem=each.problem)
            for each in found
            if each.node == str(node)
        ]


class StoredFiles:
    """Files that the log names, from the coordinator's object store."""

    def __init__(self, context: AppContext, objects: ObjectStore) -> None:
        self._context = context
        self._objects = objects

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """None if the log does not name it. Its digest was verified at upload."""
        if not await self._context.log.is_subject(digest):
            return None
        try:
            return await self._objects.get(file_key(digest), bytes_max=bytes_max)
        except (ObjectMissing, RemoteError):
            return None  # gone, or longer than wanted


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
        is_live=True,
    )
