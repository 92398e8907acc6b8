"""The explorer beside a running coordinator: what the coordinator knows and the log does not, handed to its pages."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from prime_coordinator.board import Board
from prime_coordinator.desk import Desk
from prime_coordinator.home import Home
from prime_coordinator.store import LISTED_MAX
from prime_coordinator.uploads import file_key
from prime_explorer.app import Explorer
from prime_explorer.live import Attendance, ChainAnchor, Presence, RefusedFile, ServingNode
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NodeId, RunId
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.objects import ObjectMissing, ObjectStore


class DeskLive:
    """Presence, serving records and refused files, as the coordinator has them now."""

    def __init__(self, desk: Desk, board: Board) -> None:
        self._desk = desk
        self._board = board

    def count(self) -> Attendance | None:
        counts = {str(phase): count for phase, count in self._desk.core.liveness.count().items()}
        return Attendance(online=counts["online"], late=counts["late"])

    def list_online(self) -> list[NodeId] | None:
        return self._desk.core.liveness.list_online()

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, Presence] | None:
        return {str(node): self._presence(node) for node in nodes}

    def _presence(self, node: NodeId) -> Presence:
        liveness = self._desk.core.liveness
        found = liveness.get(node)
        return Presence(
            phase=str(liveness.phase(node)),
            activity=str(found.activity) if found else None,
            checkpoint_step=found.checkpoint_step if found else None,
            last_beat_ms=found.beat_ms if found else None,
        )

    def list_anchors(self) -> list[ChainAnchor] | None:
        return [ChainAnchor(**row) for row in self._desk.settlement.describe().get("anchors", ())]

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
            for node, serving in self._board.list_serving(run, self._desk.now_ms())
        ]

    def get_sent_bytes(self, node: NodeId) -> int | None:
        serving = self._board.find_serving(node, self._desk.now_ms())
        return None if serving is None else serving.sent_bytes

    async def list_refused(self, node: NodeId) -> list[RefusedFile] | None:
        found = await self._desk.log.list_refused(limit=LISTED_MAX)
        return [
            RefusedFile(at_ms=each.at_ms, run=each.run, lease=each.lease, field=each.field, problem=each.problem)
            for each in found
            if each.node == str(node)
        ]


class StoredFiles:
    """Files that the log names, from the coordinator's own store."""

    def __init__(self, desk: Desk, objects: ObjectStore) -> None:
        self._desk = desk
        self._objects = objects

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """It was checked against its digest when it came."""
        if not await self._desk.log.is_subject(digest):
            return None
        try:
            return await self._objects.get(file_key(digest), bytes_max=bytes_max)
        except (ObjectMissing, RemoteError):
            return None  # gone, or longer than wanted


def open_models(folders: tuple[Path, ...]) -> tuple[ModelFiles, ...]:
    """The tokenizers that texts are made with; LocalError names a folder that has none."""
    if folders and find_spec("tokenizers") is None:
        raise LocalError("explorer.models needs the package tokenizers: pip install tokenizers, or leave it unset")
    try:
        return tuple(map(ModelFiles.open, folders))
    except LocalError as error:
        raise LocalError(f"explorer.models: {error}") from None


def make_explorer(desk: Desk, board: Board, objects: ObjectStore, clock: Clock) -> Explorer:
    home = Home(desk.config.folder)
    return Explorer(
        mirror=home.mirror,
        folder=home.explorer,
        live=DeskLive(desk, board),
        objects=StoredFiles(desk, objects),
        clock=clock,
        models=open_models(desk.config.explorer.models),
        proxies=desk.config.limits.trusted_proxies,
        is_live=True,
    )
