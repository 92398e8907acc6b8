"""Does a page of the explorer take longer when the log is longer? Three indexes, ten and a hundred times apart.

Each index is filled directly, with rows of the form that folding a log of such a size gives: 1,000 to 10,000 nodes, so
that every table fills its page, five submissions a step, one node that is in every step. Every page is asked for over
HTTP from all three in turn, so that a busy machine troubles them alike. Growth is that of the page that grows most,
from the smallest index to the largest, by the median of the processor time of a request, asking included.

    python bench/explorer.py [--rounds 40] [--largest 1000000]
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import sqlite3
import statistics
import sys
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from prime_explorer.app import Explorer
from prime_explorer.index.fold import PUT_NODE, encode_json
from prime_explorer.index.schema import SCHEMA_DIGEST, TABLES
from prime_explorer.sources import NoLiveState, NoObjects
from prime_protocol.constants import TILE_HASHES
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.log.tiles import EntryBundle, encode_bundle
from prime_protocol.wire.ids import (
    NodeId,
    friendly_name,
)
from prime_runtime.clock import SystemClock
from support.explorer_index import KeyedWorld
from support.ledger_network import RUN, TERMS

KINDS = ("LeaseGranted", "Submitted", "AuditDrawn", *["VerdictGiven"] * 3, "Settled", "Credited")
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


def insert(table: str, rows: Iterator[tuple[Any, ...]]) -> tuple[str, Iterator[Any]]:
    first = next(rows)
    return f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(first))})", itertools.chain([first], rows)


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
            for statement, rows in self.tables():
                connection.executemany(statement, rows)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        self.link_bundles()

    def tables(self) -> Iterator[tuple[str, Iterator[Any]]]:
        yield insert("entries", self.entry_rows())
        yield insert("mentions", self.mention_rows())
        yield insert("submissions", self.submission_rows())
        yield insert("verdicts", self.verdict_rows())
        yield insert("rounds", self.round_rows())
        yield insert("steps", self.step_rows())
        yield insert("contributions", self.contribution_rows())
        yield insert("payouts", self.payout_rows())
        yield PUT_NODE, self.node_rows()
        yield insert("names", ((friendly_name(node), node) for node in self.nodes))
        yield insert("accounts", ((node, 10**9) for node in self.nodes))
        yield insert("stakes", ((node, 3, START_MS, "Staked", 10**11, 0) for node in self.nodes))
        yield insert("slashes", self.slash_rows())
        yield insert("heads", ((size, START_MS, bytes(32), NOTE) for size in range(1, 2000)))
        yield insert("runs", iter([self.run_row()]))
        yield insert("meta", iter(self.facts().items()))

    def entry_rows(self) -> Iterator[tuple[Any, ...]]:
        coordinator = NodeId(identity("coordinator", 0, 20))
        for idx in range(self.entries):
            number, place = divmod(idx, len(KINDS))
            kind = KINDS[place]
            author = self.worker_of(number) if kind == "Submitted" else coordinator
            author = self.validators[(number + place) % len(self.validators)] if kind == "VerdictGiven" else author
            yield (
                idx,
                START_MS + 10 * idx,
                kind,
                author,
                RUN,
                identity("submission", number),
                "what it says",
            )

    def mention_rows(self) -> Iterator[tuple[bytes, int]]:
        for number in range(self.submissions):
            first = number * len(KINDS)
            yield self.worker_of(number), first
            name = identity("submission", number)
            yield from ((name, first + place) for place in range(1, len(KINDS)))

    def submission_rows(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.submissions):
            idx, node, step = number * len(KINDS) + 1, self.worker_of(number), number // PER_STEP
            progress = ("hard", "soft")[number % 2] if number % 50 < 2 else "accepted"
            yield (
                identity("submission", number), idx, RUN, step, node, node, number, 0, 2, 2, START_MS,
                START_MS + 10 * idx, identity("file", number), 9000, identity("rows", number), step,
                identity("root", step), 200, 900, progress, "a reason", START_MS, 3, 3, idx + 5, START_MS + 10 * idx,
                None, 0.5, 200, idx + 6, 0, idx + 20, step + 1, None,
            )  # fmt: skip

    def verdict_rows(self) -> Iterator[tuple[Any, ...]]:
        metrics = json.dumps({"margin_max": 0.2, "logprob_error_max": 0.1, "reward_mean": 0.5})
        for number, place in itertools.product(range(self.submissions), range(3, 6)):
            idx = number * len(KINDS) + place
            validator = self.validators[(number + place) % len(self.validators)]
            yield (
                idx, START_MS + 10 * idx, RUN, identity("submission", number), validator, 0, "accept", "",
                identity("evidence", number), metrics, 0.5, 1,
            )  # fmt: skip

    def round_rows(self) -> Iterator[tuple[Any, ...]]:
        drawn = json.dumps([str(node) for node in self.validators[:3]])
        for number in range(self.submissions):
            yield identity("submission", number), 0, number * len(KINDS) + 2, START_MS, 5, drawn

    def step_rows(self) -> Iterator[tuple[Any, ...]]:
        for step in range(self.steps + 1):
            at_ms = START_MS + 400 * step
            yield (
                RUN, step, step, at_ms, identity("root", step), identity("manifest", step), bytes(32), at_ms, 10, 2,
                10, 0, 5, 1000, 3, 1, at_ms, at_ms, at_ms + 50, at_ms + 300, at_ms + 60, at_ms + 350, at_ms + 390,
                5000, 5, 0, 5, 5, 0, 0, 5, 20, 1000, 1000, 45_000, 5, 2.5, 5,
            )  # fmt: skip

    def contribution_rows(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.submissions):
            yield self.worker_of(number), RUN, number // PER_STEP, 1, 1, 0, 0, 4, 200, 200, 1000

    def payout_rows(self) -> Iterator[tuple[Any, ...]]:
        for step in range(self.steps):
            yield self.workers[0], step * 40 + 39, self.workers[0], RUN, step, START_MS, 1000

    def node_rows(self) -> Iterator[tuple[Any, ...]]:
        for place, node in enumerate(self.nodes):
            is_worker = place >= len(self.validators)
            yield (
                node, node, friendly_name(node), place, START_MS, START_MS + place, is_worker, not is_worker, False,
                "active" if place % 20 else "banned", "", 1, "a laptop", "[]", None, 10**11, 0, 5,
                self.dice.randrange(1000), 1, 0, 0, self.dice.randrange(10**6), self.dice.randrange(10**12),
            )  # fmt: skip

    def slash_rows(self) -> Iterator[tuple[Any, ...]]:
        for number in range(0, self.submissions, SLASHED):
            idx, node = number * len(KINDS) + 7, self.worker_of(number)
            yield (
                identity("submission", number), idx, START_MS, RUN, node, node, 60 * 10**9,
                identity("evidence", number), "executed", START_MS, "burn", 1, 5 * 10**9, None, None, None, None, idx,
                START_MS, "hard",
            )  # fmt: skip

    def run_row(self) -> tuple[Any, ...]:
        count = self.submissions
        terms = encode_json(asdict(TERMS))
        return (
            RUN, 1, START_MS, "active", terms, self.steps, 10**12, len(self.validators), 3, 2, 1, count, count, 0, 0,
            count, 0, 4 * count, 200 * count, 200 * count, 1000, 9000 * count, 3 * count, 2, 1, 1, 0,
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {
            "made_by": SCHEMA_DIGEST, "size": self.entries, "signed_size": self.entries, "head_size": self.entries,
            "head_ms": START_MS, "at_ms": START_MS, "network": "testnet", "origin": "prime-swarm/testnet",
            "log_key": "key", "problem": "", "nodes": len(self.nodes), "deposited_nano": 1, "staked_nano": 1,
            "burned_nano": 1,
        }  # fmt: skip

    def link_bundles(self) -> None:
        """Every bundle holds the same 256 real leaves, so all of them are one file."""
        world = KeyedWorld.begun()
        world.credit(world.settled("ann", Outcome.ACCEPT))
        by_kind = {decode_leaf(leaf)[1].kind: leaf for leaf in world.leaves}
        one = self.folder / "bundle"
        one.write_bytes(encode_bundle([by_kind[kind] for kind in KINDS] * (TILE_HASHES // len(KINDS))))
        for number in range(-(-self.entries // TILE_HASHES)):
            path = self.folder / "log" / EntryBundle(number, TILE_HASHES).path
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(one, path)

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
            "submissions, hard": "/submissions?state=hard",
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
            "as JSON": f"/api/pages/nodes/{busy}",
        }


async def serve(stack: AsyncExitStack, filler: Filler) -> str:
    explorer = Explorer(
        mirror=filler.folder / "log",
        folder=filler.folder,
        live=NoLiveState(),
        objects=NoObjects(),
        clock=SystemClock(),
        is_live=False,
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
    print(f"RESULT growth={growths[worst]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--largest", type=int, default=1_000_000)
    args = parser.parse_args()
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
