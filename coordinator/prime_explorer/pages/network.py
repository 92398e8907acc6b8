"""Who serves weights, and how far from the origin, as far as the nodes themselves say it."""

from dataclasses import dataclass

from prime_explorer.live import ServingNode
from prime_explorer.reading import Db
from prime_protocol.ids import NodeId, RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """The tree of one run."""

    run: str
    runs: tuple[str, ...]
    serving: tuple[ServingNode, ...] | None
    """Null where this explorer cannot know: it reads a copy of the log."""
    ahead: int
    """Of those who serve: who has the newest weights."""
    latest_step: int
    latest_manifest: str | None
    registered: int
    relays: int
    """Nodes that registered as relays."""
    trainer: str | None


def read_network(db: Db, run: RunId | None) -> NetworkView | None:
    """Of the run that is asked for, or of the newest."""
    runs = tuple(row["run"] for row in db.rows("SELECT run FROM runs ORDER BY idx DESC LIMIT 20"))
    name = run or (RunId(runs[0]) if runs else None)
    if name is None:
        return NetworkView(
            run="",
            runs=(),
            serving=(),
            ahead=0,
            latest_step=-1,
            latest_manifest=None,
            registered=0,
            relays=0,
            trainer=None,
        )
    row = db.row("SELECT latest_step, json_extract(terms, '$.trainer') AS trainer FROM runs WHERE run=?", name)
    if row is None:
        return None
    manifest = db.value("SELECT manifest FROM steps WHERE run=? AND step=?", name, row["latest_step"])
    return NetworkView(
        run=name,
        runs=runs,
        serving=None,
        ahead=0,
        latest_step=row["latest_step"],
        latest_manifest="0x" + manifest.hex() if manifest else None,
        registered=db.facts().get("nodes", 0),
        relays=db.value("SELECT count(*) FROM nodes WHERE is_relay=1"),
        trainer=str(NodeId.parse(row["trainer"])),
    )
