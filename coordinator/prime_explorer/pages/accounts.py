"""An address that is no node: a coordinator, a trainer, an owner, a sponsor. What the books and the log say of it."""

from dataclasses import dataclass
from typing import ClassVar

from prime_explorer.constants import FOUND_MAX
from prime_explorer.pages.nodes import NodeRow, node_row
from prime_explorer.pages.tables import EntryRow, Rows, read_rows
from prime_explorer.reading import Db
from prime_protocol.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """An address with a balance, or with a part in some run."""

    TEMPLATE: ClassVar[str] = "account.html"

    account: str
    balance_nano: int
    is_coordinator: bool
    trains: tuple[str, ...]
    """Runs whose trainer it is."""
    nodes: tuple[NodeRow, ...]
    """Nodes that it owns, those with the most units first."""
    entries: Rows[EntryRow]
    """What it wrote, newest first."""


def read_account(db: Db, account: NodeId) -> AccountView | None:
    balance = db.value("SELECT balance_nano FROM accounts WHERE account=?", account)
    runs = db.rows("SELECT run FROM runs WHERE json_extract(terms, '$.trainer')=? LIMIT ?", str(account), FOUND_MAX)
    owned = db.rows("SELECT * FROM nodes WHERE owner=? ORDER BY units DESC, node LIMIT ?", account, FOUND_MAX)
    if balance is None and not runs and not owned:
        return None
    return AccountView(
        account=str(account),
        balance_nano=balance or 0,
        is_coordinator=db.facts().get("coordinator") == bytes(account),
        trains=tuple(row["run"] for row in runs),
        nodes=tuple(map(node_row, owned)),
        entries=read_rows(db, EntryRow, limit=10, index="entries_by_author", author=account),
    )
