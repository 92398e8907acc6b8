"""Contributions as CSV: one line for each node, or one for each step of one node."""

import csv
import io
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiohttp import web

from prime_explorer.asking import Ask
from prime_explorer.constants import CSV_ROWS_AT_ONCE
from prime_explorer.reading import Db, Reader, plain
from prime_protocol.ids import NodeId

NODE_COLUMNS = (
    "node", "owner", "name", "status", "accepted", "soft", "hard", "rollouts", "tokens", "units", "earned_nano",
    "stake_nano", "verdicts", "upheld", "faults",
)  # fmt: skip
STEP_COLUMNS = (
    "run", "step", "submissions", "accepted", "soft", "hard", "rollouts", "tokens", "units", "paid_nano",
)  # fmt: skip


async def send_contributions(request: web.Request, reader: Reader) -> web.StreamResponse:
    """Of all nodes, or with `node` of one, in pieces."""
    node = Ask(request.query).node("node")
    columns = STEP_COLUMNS if node else NODE_COLUMNS
    name = f"contributions-{node}.csv" if node else "contributions.csv"
    rows = await reader.ask(partial(_read, node, (b"",) if node is None else ("", -1)))
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/csv; charset=utf-8",
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
    )
    await response.prepare(request)
    await response.write(to_csv([columns]))
    while rows:
        await response.write(to_csv([[plain(row[column]) for column in columns] for row in rows]))
        last = (rows[-1]["node"],) if node is None else (rows[-1]["run"], rows[-1]["step"])
        rows = await reader.ask(partial(_read, node, last))
    return response


def _read(node: NodeId | None, last: tuple[Any, ...], db: Db) -> list[Any]:
    if node is None:
        return db.rows("SELECT * FROM nodes WHERE node>? ORDER BY node LIMIT ?", *last, CSV_ROWS_AT_ONCE)
    query = "SELECT * FROM contributions WHERE node=? AND (run, step)>(?, ?) ORDER BY run, step LIMIT ?"
    return db.rows(query, node, *last, CSV_ROWS_AT_ONCE)


def to_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
