"""Whether a page of the explorer gets slower with a longer log: three indexes, each ten times the one before.

Each index is filled directly, with rows as folding a log of that size would give: 1,000 to 10,000 nodes, so that every
table fills its page, five submissions a step, one node that is in every step. Every page is requested over HTTP from
all three in turn, so that a busy machine affects them alike. Growth is that of the page that grows most, from the
smallest index to the largest, by the median processor time of a request, the client included.

    python bench/explorer.py [--rounds 40] [--largest 1000000]
"""

import asyncio
import itertools
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from benchmark import BenchmarkParser, print_result

from prime_explorer.app import Explorer
from prime_explorer.index.fold import encode_json
from prime_explorer.index.schema import INDEX_FORMAT, TABLES
from prime_explorer.sources import NoObjects
from prime_protocol.constants import TILE_HASHES
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.log.tiles import EntryBundle, encode_bundle
from prime_protocol.wire.ids import (
    NodeId,
    friendly_name,
)
from prime_runtime.clock import SystemClock
from support.explorer_index import signed_head
from support.ledger_network import RUN, TERMS, World

KINDS = ("LeaseGranted", "Submitted", "AuditDrawn", "VerdictCommitted", *["VerdictGiven"] * 3, "Settled")
"""What a submission puts into the log."""
PER_STEP = 5
SLASHED = 20
"""One in so many."""
PAGE_BYTES_MAX = 100_000
START_MS = 1_800_000_000_000
NOTE = b"prime-swarm/testnet\n1\nAAAA\n\n\xe2\x80\x94 prime-swarm/testnet AAAAAAAA\n"


Taken = dict[str, list[list[tuple[float, float]]]]
"""By page and index: milliseconds until the answer, and of the processor."""


def identity(kind: str, number: int, size: int = 32) -> bytes:
    return sha256(f"{kind} {number}".encode()).digest()[:size]


Row = dict[str, Any]
"""Values by column: a table may get new columns, or have them in another order."""


def insert(connection: sqlite3.Connection, table: str, rows: Iterator[Row]) -> None:
    first = next(rows)
    names = ", ".join(first)
    values = ", ".join(f":{name}" for name in first)
    connection.executemany(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})", itertools.chain([first], rows))


class Filler:
    """One index of so many entries."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.folder = folder
        self.submissions = entries // len(KINDS)
        self.entries = self.submissions * len(KINDS)
        self.steps = self.submissions // PER_STEP
        self.nodes = [NodeId(identity("node", number, 20)) for number in range(round(10 * entries**0.5))]
        self.validators = self.nodes[: len(self.nodes) // 10]
        self.workers = self.nodes[len(self.nodes) // 10 :]
        self.busy = self.workers[: max(10, self.submissions // 14)]
        """Those who work, so that each has about as much to show."""
        self.dice = random.Random(entries)

    def worker_of(self, submission: int) -> NodeId:
        """The first of a step is always the same one."""
        if submission % PER_STEP == 0:
            return self.workers[0]
        return self.busy[int.from_bytes(identity("by", submission, 4)) % len(self.busy)]

    def fill(self) -> None:
        connection = sqlite3.connect(self.folder / "index.db")
        connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-262144;")
        connection.executescript(TABLES)
        with connection:
            for table, rows in self.tables():
                insert(connection, table, rows)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        self.link_bundles()

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        yield "entries", self.entry_rows()
        yield "mentions", self.mention_rows()
        yield "submissions", self.submission_rows()
        yield "verdicts", self.verdict_rows()
        yield "rounds", self.round_rows()
        yield "steps", self.step_rows()
        yield "contributions", self.contribution_rows()
        yield "payouts", self.payout_rows()
        yield "nodes", self.node_rows()
        yield "names", ({"term": friendly_name(node), "node": node} for node in self.nodes)
        yield "accounts", ({"account": node, "balance_nano": 10**9} for node in self.nodes)
        yield "stakes", self.stake_rows()
        yield "slashes", self.slash_rows()
        yield "heads", ({"size": size, "at_ms": START_MS, "root": bytes(32), "note": NOTE} for size in range(1, 2000))
        yield "runs", iter([self.run_row()])
        yield "meta", ({"name": name, "value": value} for name, value in self.facts().items())

    def entry_rows(self) -> Iterator[Row]:
        coordinator = NodeId(identity("coordinator", 0, 20))
        for idx in range(self.entries):
            number, place = divmod(idx, len(KINDS))
            kind = KINDS[place]
            author = self.worker_of(number) if kind == "Submitted" else coordinator
            author = self.validators[(number + place) % len(self.validators)] if kind.startswith("Verdict") else author
            yield {
                "idx": idx,
                "at_ms": START_MS + 10 * idx,
                "kind": kind,
                "author": author,
                "run": RUN,
                "about": identity("submission", number),
                "brief": "what it says",
            }

    def mention_rows(self) -> Iterator[Row]:
        for number in range(self.submissions):
            first, name = number * len(KINDS), identity("submission", number)
            yield {"subject": self.worker_of(number), "idx": first}
            yield from ({"subject": name, "idx": first + place} for place in range(1, len(KINDS)))

    def submission_rows(self) -> Iterator[Row]:
        rejected = (Outcome.FRAUDULENT.value, Outcome.INVALID.value)
        for number in range(self.submissions):
            idx, node, step = number * len(KINDS) + 1, self.worker_of(number), number // PER_STEP
            at_ms = START_MS + 10 * idx
            yield {
                "submission": identity("submission", number), "idx": idx, "run": RUN, "step": step, "node": node,
                "owner": node, "lease": number, "first_slot": 0, "slots": 2, "samples": 2, "leased_ms": START_MS,
                "at_ms": at_ms, "file_digest": identity("file", number), "file_bytes": 9000,
                "rollout_root": identity("rows", number), "checkpoint_step": step,
                "checkpoint_root": identity("root", step), "output_tokens": 200, "context_tokens": 900,
                "progress": rejected[number % 2] if number % 50 < 2 else "accepted", "reason": "a reason",
                "drawn_ms": START_MS, "validators": 3, "verdicts": 3, "settled_idx": idx + 6, "settled_ms": at_ms,
                "reward": 0.5, "units": 200, "credited_idx": idx + 6, "is_carried": 0, "paid_idx": idx + 20,
                "trained_into": step + 1,
            }  # fmt: skip

    def verdict_rows(self) -> Iterator[Row]:
        metrics = json.dumps({"margin_max": 0.2, "logprob_error_max": 0.1, "reward_mean": 0.5})
        for number, place in itertools.product(range(self.submissions), range(4, 7)):
            idx = number * len(KINDS) + place
            yield {
                "idx": idx, "at_ms": START_MS + 10 * idx, "run": RUN, "submission": identity("submission", number),
                "validator": self.validators[(number + place) % len(self.validators)], "round": 0,
                "outcome": Outcome.ACCEPT.value, "reason": "", "evidence": identity("evidence", number),
                "metrics": metrics, "reward": 0.5, "upheld": 1,
            }  # fmt: skip

    def round_rows(self) -> Iterator[Row]:
        drawn = json.dumps([str(node) for node in self.validators[:3]])
        for number in range(self.submissions):
            yield {
                "submission": identity("submission", number), "round": 0, "idx": number * len(KINDS) + 2,
                "drawn_ms": START_MS, "randomness_round": 5, "validators": drawn,
            }  # fmt: skip

    def step_rows(self) -> Iterator[Row]:
        for step in range(self.steps + 1):
            at_ms = START_MS + 400 * step
            yield {
                "run": RUN, "step": step, "idx": step, "published_ms": at_ms, "root": identity("root", step),
                "manifest": identity("manifest", step), "beacon": bytes(32), "beacon_ms": at_ms, "slots": 10,
                "samples": 2, "slots_done": 10, "trained_on": 5, "trained_tokens": 1000, "lag_sum": 3, "lag_max": 1,
                "ready_ms": at_ms, "first_lease_ms": at_ms, "first_submitted_ms": at_ms + 50,
                "last_submitted_ms": at_ms + 300, "first_drawn_ms": at_ms + 60, "last_settled_ms": at_ms + 350,
                "paid_ms": at_ms + 390, "paid_nano": 5000, "leases": 5, "submissions": 5, "accepted": 5, "audited": 5,
                "rollouts": 20, "tokens": 1000, "units": 1000, "file_bytes": 45_000, "nodes": 5, "reward_sum": 2.5,
                "rewards": 5,
            }  # fmt: skip

    def contribution_rows(self) -> Iterator[Row]:
        for number in range(self.submissions):
            yield {
                "node": self.worker_of(number), "run": RUN, "step": number // PER_STEP, "submissions": 1,
                "accepted": 1, "rollouts": 4, "tokens": 200, "units": 200, "paid_nano": 1000,
            }  # fmt: skip

    def payout_rows(self) -> Iterator[Row]:
        node = self.workers[0]
        for step in range(self.steps):
            yield {
                "node": node, "idx": step * 40 + 39, "owner": node, "run": RUN, "step": step, "at_ms": START_MS,
                "amount_nano": 1000,
            }  # fmt: skip

    def node_rows(self) -> Iterator[Row]:
        for place, node in enumerate(self.nodes):
            is_worker = place >= len(self.validators)
            yield {
                "node": node, "owner": node, "name": friendly_name(node), "first_idx": place, "first_ms": START_MS,
                "last_ms": START_MS + place, "is_worker": is_worker, "is_validator": not is_worker, "is_relay": False,
                "status": "active" if place % 20 else "banned", "reason": "", "version": 1, "hardware": "a laptop",
                "addresses": "[]", "stake_nano": 10**11, "unbonding_nano": 0, "run_records": "[]",
                "accepted": self.dice.randrange(1000), Outcome.INVALID.value: 1, Outcome.FRAUDULENT.value: 0,
                "faults": 0, "units": self.dice.randrange(10**6), "earned_nano": self.dice.randrange(10**12),
            }  # fmt: skip

    def stake_rows(self) -> Iterator[Row]:
        for node in self.nodes:
            yield {
                "node": node, "idx": 3, "at_ms": START_MS, "kind": "Staked", "stake_nano": 10**11, "unbonding_nano": 0,
            }  # fmt: skip

    def slash_rows(self) -> Iterator[Row]:
        for number in range(0, self.submissions, SLASHED):
            idx, node = number * len(KINDS) + 7, self.worker_of(number)
            yield {
                "submission": identity("submission", number), "idx": idx, "at_ms": START_MS, "run": RUN, "node": node,
                "owner": node, "amount_nano": 60 * 10**9, "evidence": identity("evidence", number),
                "progress": "executed", "appeal_until_ms": START_MS, "slash_to": "burn", "rounds_before": 1,
                "bond_nano": 5 * 10**9, "ended_idx": idx, "ended_ms": START_MS, "outcome": Outcome.FRAUDULENT.value,
            }  # fmt: skip

    def run_row(self) -> Row:
        count = self.submissions
        return {
            "run": RUN, "idx": 1, "at_ms": START_MS, "status": "active", "terms": encode_json(asdict(TERMS)),
            "latest_step": self.steps, "pool_nano": 10**12, "validators": len(self.validators), "leases_open": 3,
            "submissions_open": 2, "slashes_open": 1, "submissions": count, "accepted": count, "audited": count,
            "rollouts": 4 * count, "tokens": 200 * count, "units": 200 * count, "paid_nano": 1000,
            "file_bytes": 9000 * count, "verdicts": 3 * count, "slashes": 2, "executed": 1, "overturned": 1,
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {
            "made_by": INDEX_FORMAT, "size": self.entries, "signed_size": self.entries, "head_size": self.entries,
            "head_ms": START_MS, "at_ms": START_MS, "network": "testnet", "origin": "prime-swarm/testnet",
            "log_key": "key", "problem": "", "nodes": len(self.nodes), "deposited_nano": 1, "staked_nano": 1,
            "burned_nano": 1,
        }  # fmt: skip

    def link_bundles(self) -> None:
        """Every bundle holds the same 256 real leaves, so all of them are one file."""
        world = World.started()
        world.settled("ann", Outcome.ACCEPT)
        by_kind = {decode_leaf(leaf)[1].kind: leaf for leaf in world.leaves}
        one = self.folder / "bundle"
        one.write_bytes(encode_bundle([by_kind[kind] for kind in KINDS] * (TILE_HASHES // len(KINDS))))
        for number in range(-(-self.entries // TILE_HASHES)):
            path = self.folder / "log" / EntryBundle(number, TILE_HASHES).path
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(one, path)
        # The entries are of no real tree, so no head covers them and no proof is made.
        (self.folder / "log" / "checkpoint").write_bytes(signed_head([]))

    def paths(self) -> dict[str, str]:
        """The pages that are asked for, deep ones among them; anew for each round."""
        middle = self.dice.randrange(self.submissions // 2, self.submissions)
        name, busy, node = identity("submission", middle).hex(), self.workers[0], self.dice.choice(self.busy)
        return {
            "overview": "/",
            "run": f"/runs/{RUN}",
            "run, older steps": f"/runs/{RUN}?before={self.steps // 2}",
            "checkpoint": f"/runs/{RUN}/checkpoints/{middle // PER_STEP}",
            "nodes": "/nodes",
            "nodes, banned": "/nodes?status=banned",
            "nodes, validators by stake": "/nodes?role=validator&order=stake",
            "nodes, page in the midst": f"/nodes?after=500000.{node}",
            "node": f"/nodes/{node}",
            "busiest node": f"/nodes/{busy}",
            "validator": f"/nodes/{self.dice.choice(self.validators)}",
            "submissions": "/submissions",
            "submissions, fraudulent": f"/submissions?state={Outcome.FRAUDULENT}",
            "submissions of the busiest": f"/submissions?node={busy}&before={middle * len(KINDS)}",
            "submission": f"/submissions/0x{name}",
            "slashes": f"/slashes?before={middle * len(KINDS)}",
            "slash": f"/slashes/0x{identity('submission', middle // SLASHED * SLASHED).hex()}",
            "log": f"/log?before={middle * len(KINDS)}",
            "log, one kind": f"/log?kind=Settled&run={RUN}&before={middle * len(KINDS)}",
            "log, about a node": f"/log?about={busy}",
            "log, by an author": f"/log?author={self.dice.choice(self.validators)}",
            "entry": f"/log/{middle * len(KINDS) + self.dice.randrange(len(KINDS))}",
            "heads": "/log/heads",
            "network": "/network",
            "search, address": f"/search?q={str(node)[:8]}",
            "search, name": f"/search?q={friendly_name(node)[:6]}",
            "contributions of a node": f"/contributions.csv?node={node}",
            "as JSON": f"/api/v1/nodes/{busy}",
        }


async def serve(stack: AsyncExitStack, filler: Filler) -> str:
    explorer = Explorer(
        mirror=filler.folder / "log",
        folder=filler.folder,
        live=None,
        objects=NoObjects(),
        clock=SystemClock(),
    )
    stack.callback(explorer.close)
    app = web.Application()
    explorer.add_routes(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def measure(fillers: list[Filler], rounds: int) -> Taken:
    taken: Taken = {}
    async with AsyncExitStack() as stack:
        urls = [await serve(stack, filler) for filler in fillers]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for number in range(rounds + 3):
            for place, (url, filler) in enumerate(zip(urls, fillers, strict=True)):
                for name, path in filler.paths().items():
                    began, worked = time.perf_counter(), time.process_time()
                    async with session.get(url + path) as answer:
                        body = await answer.read()
                    spent = ((time.perf_counter() - began) * 1000, (time.process_time() - worked) * 1000)
                    assert answer.status == 200, f"{path}: {answer.status} {body[-500:]!r}"
                    assert len(body) < PAGE_BYTES_MAX or path.startswith("/api"), f"{path} has {len(body)} bytes"
                    if number >= 3:  # the first ones open connections and compile templates
                        taken.setdefault(name, [[] for _ in fillers])[place].append(spent)
            await asyncio.sleep(0.4)  # an address may ask only so often
    return taken


def report(sizes: list[int], taken: Taken) -> None:
    print(f"{'page':<28}" + "".join(f"{f'{size:,}':>18}" for size in sizes) + f"{'growth':>9}")
    print(f"{'':<28}" + "".join(f"{'p50    p99 ms':>18}" for _ in sizes))
    growths = {}
    for name, rows in taken.items():
        waits = [[wait for wait, _ in row] for row in rows]
        cells = [(statistics.median(row), statistics.quantiles(row, n=100)[98]) for row in waits]
        works = [statistics.median(work for _, work in row) for row in rows]
        growths[name] = works[-1] / works[0]
        print(f"{name:<28}" + "".join(f"{low:11.1f}{high:7.1f}" for low, high in cells) + f"{growths[name]:9.2f}")
    worst = max(growths, key=lambda name: growths[name])
    print(f"slowest growing page: {worst}")
    print_result(growth=f"{growths[worst]:.2f}")


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 40, 2)
    parser.add_size("--largest", 1_000_000, 20_000, "entries of the largest index")
    args = parser.parse()
    sizes = [args.largest // 100, args.largest // 10, args.largest]
    with tempfile.TemporaryDirectory(prefix="prime-explorer-bench-") as name:
        fillers = []
        for size in sizes:
            folder = Path(name) / str(size)
            folder.mkdir()
            fillers.append(Filler(folder, size))
            began = time.perf_counter()
            fillers[-1].fill()
            count, seconds = len(fillers[-1].nodes), time.perf_counter() - began
            print(f"{size:,} entries, {count:,} nodes: {seconds:.0f} s to fill", flush=True)
        report(sizes, asyncio.run(measure(fillers, args.rounds)))


if __name__ == "__main__":
    main()
