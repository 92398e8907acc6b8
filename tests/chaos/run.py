"""One run: a network of real processes is set up, broken by the schedule, brought to rest, and looked through."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp

from chaos import parties as cast
from chaos.chain import ChaosChain
from chaos.checkers import list_faults, list_forks, list_missing, read
from chaos.faults import Breaker
from chaos.hosts import Site
from chaos.observer import Looker, read_address, until
from chaos.parties import Stage
from chaos.report import Outcome, Survived
from chaos.restoring import MirrorCopy
from chaos.schedule import COORDINATOR, ORIGIN, TRAINER, Ability, Arena, Fault, Kind, draw_faults
from chaos.service_manager import Keeper
from chaos.services import Bucket, Postgres
from chaos.stopwatch import Stopwatch
from prime_coordinator.log.verify import verify_log
from prime_lab.devnet import recipe
from prime_node.storage.journal import JobState, Journal
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.log_files import read_leaves
from prime_trainer.model.tiny import make_tiny_checkpoint

UP_S = 240.0
RECOVER_S = 90.0
"""A network that has not recovered by then counts as lost."""
REST_S = 120.0
BACK_S = 30.0
"""A node tries again at a coordinator that was away after 15 s at most."""
WEIGH_S = 2.0
UNHEARD = (JobState.PRODUCED, JobState.RETURNED, JobState.REFUSED, JobState.LOST)
"""States of a piece of work that the coordinator has not acknowledged, or has lost and said so."""

Say = Callable[[str], None]


class Play:
    """Everything that is alive during one run."""

    def __init__(self, site: Site, arena: Arena, say: Say) -> None:
        self.stage = Stage(site, arena)
        self.arena = arena
        self.say = say
        self.keepers: dict[str, Keeper] = {}
        self.postgres: Postgres | None = None
        self.bucket: Bucket | None = None
        self.chain: ChaosChain | None = None
        self.copy: MirrorCopy | None = None
        self.lost_heads: set[bytes] = set()
        """Shown before a restore, over more entries than came back."""
        self.survived: list[Survived] = []
        self.trouble: list[str] = []
        self.watch = Stopwatch()

    # --- Setting up -------------------------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack) -> Looker:
        self.stage.site.open()
        stack.callback(self.stage.site.close)
        cast.make_hosts(self.stage.site, self.arena)
        cast.write_password(self.stage)
        if Ability.SERVICES in self.arena.abilities:
            await self._open_services(stack)
        if Ability.CHAIN in self.arena.abilities:
            self.chain = await self._open_chain(stack)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        looker = Looker(self.stage, session)
        self._make_model()
        self._command(*cast.init_words(self.stage), *(self.chain.init_words() if self.chain else ()))
        key = self.stage.folder / "trainer.key"
        self._command("prime-node", "keys", "new", "--out", str(key), "--password-file", str(self.stage.password_file))
        self._keep(COORDINATOR, "")
        stack.push_async_callback(self._close)
        await self._need(lambda: looker.is_back(COORDINATOR, 0, 0), "the coordinator listens")
        self._command(*cast.run_words(self.stage, read_address(key)), host=COORDINATOR)
        for words in [self.chain.fund_words(cast.RUN)] if self.chain else cast.fund_words(self.stage):
            self._command(*words, host=COORDINATOR)
        if Kind.DISK_LOST in self.arena.kinds:
            self.copy = MirrorCopy(self.stage)
            self.copy.begin(self._variables)
            stack.callback(self.copy.close)
        identity = read_address(self.stage.home / "key.json")
        for name in self.arena.parties("all")[1:]:
            self._keep(name, identity)
        if self.chain:
            await self._stake_all(self.chain)
        await self._need(lambda: self._is_at_work(looker, 1), "the first steps are made")
        return looker

    @property
    def _outside(self) -> str:
        """Address of what is not one of the hosts."""
        return "10.78.255.254" if self.stage.site.has_links else "127.0.0.1"

    async def _open_chain(self, stack: AsyncExitStack) -> ChaosChain:
        folder = self.stage.folder / "chain"
        chain = ChaosChain(self._outside, folder, self.stage.home, self.stage.password_file)
        stack.push_async_callback(chain.close)
        await chain.open()
        self._command(*chain.deploy_words())
        return chain

    async def _stake_all(self, chain: ChaosChain) -> None:
        """Each node's owner, once the node has joined."""
        homes = [self.stage.site.hosts[name].folder / "home" for name in self.arena.parties("staked")]
        for home in homes:
            await self._need(partial(exists, home / "run.json"), f"{home} has joined")
        await chain.give([NodeId.parse(read_address(home / "key.json")) for home in homes])
        for home in homes:
            self._command(*chain.stake_words(home))

    async def _open_services(self, stack: AsyncExitStack) -> None:
        self.postgres, self.bucket = Postgres(self._outside), Bucket(self._outside)
        stack.callback(self.postgres.close)
        stack.push_async_callback(self.bucket.close)
        database, bucket = await self.postgres.open(), await self.bucket.open()
        self.stage = Stage(self.stage.site, self.arena, database, bucket)

    def _make_model(self) -> None:
        start, model = self.stage.folder / "model-0", self.stage.folder / cast.MODEL
        make_tiny_checkpoint(start, seed=0, spread=0.3)
        words = ["--model", str(start), "--out", str(model), "--task-set", recipe.TASK_SET]
        self._command("prime-trainer", "sft", *words, "--steps", str(recipe.WARM_STEPS))

    def _command(self, *words: str, host: str | None = None) -> None:
        """A short command to its end."""
        prefix = self.stage.site.hosts[host].prefix if host else []
        command = [*prefix, sys.executable, "-m", f"{words[0].replace('-', '_')}.cli", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, env=self._variables)
        if done.returncode:
            raise LocalError(f"{' '.join(words[:3])}: {done.stdout}{done.stderr}")

    @property
    def _variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PRIME_LOG_FORMAT": "json",
            "PRIME_S3_SECRET_ACCESS_KEY": "not a secret",
        }

    def _keep(self, name: str, identity: str) -> None:
        host, variables = self.stage.site.hosts[name], self._variables
        if host.has_clock and name in self.arena.parties("clocked"):
            variables |= host.clock_variables()
        words = cast.party_words(self.stage, name, identity)
        keeper = Keeper(name, host, words, variables, self.stage.folder / f"{name}.log")
        self.keepers[name] = keeper
        keeper.begin()

    async def _close(self) -> None:
        """Nodes first, the coordinator last: it writes down what the others say."""
        for keeper in reversed(self.keepers.values()):
            await keeper.close()

    async def _need(self, holds: Callable[[], object], what: str) -> None:
        if await until(holds, UP_S, self.watch) is None:  # type: ignore[arg-type]
            tails = "\n".join(f"{name}:\n{keeper.tail()}" for name, keeper in self.keepers.items())
            raise LocalError(f"{what}: not within {UP_S:.0f} s\n{tails}")

    async def _is_at_work(self, looker: Looker, step: int) -> bool:
        return await looker.step() >= step

    # --- Breaking ---------------------------------------------------------------------------------------------------

    async def suffer(self, looker: Looker, seed: int, *, seconds: float, faults_max: int) -> None:
        """One fault after the other until time or count is up."""
        breaker = Breaker(self.stage, self.keepers, self.postgres, self.bucket, self.chain, self.copy)
        deadline_s = self.watch.awake_s + seconds
        for fault in draw_faults(seed, self.arena):
            if self.watch.awake_s > deadline_s or fault.number > faults_max:
                return
            await asyncio.sleep(fault.pause_s)
            self.survived.append(await self._suffer_one(looker, breaker, fault))

    async def _suffer_one(self, looker: Looker, breaker: Breaker, fault: Fault) -> Survived:
        step = await looker.step()
        await breaker.inject(fault)
        if fault.kind is Kind.DISK_LOST and self.copy is not None:
            self.lost_heads |= {head for head in looker.heads if read_size(head) > self.copy.restored[-1]}
        await asyncio.sleep(fault.lasts_s)
        human = await breaker.cure(fault)
        # All clocks are the machine's; those that were set apart are set right by now.
        began_s, since_ms = self.watch.awake_s, time.time_ns() // 1_000_000
        party_s = await until(lambda: looker.is_back(fault.party, since_ms, step), RECOVER_S, self.watch)
        settled = await looker.newest_outcome()
        work_s = (
            await until(lambda: self._settles(looker, settled), RECOVER_S, self.watch) if party_s is not None else None
        )
        took_s = self.watch.awake_s - began_s if work_s is not None else None
        self.say(f"{self.watch.awake_s:6.0f} s {fault}: {describe(party_s, took_s, human)}")
        if took_s is None:
            self.trouble.append(f"{fault}: not recovered after {RECOVER_S:.0f} s\n{self.keepers[fault.party].tail()}")
        return Survived(fault, party_s, took_s, human)

    async def _beats(self, looker: Looker, name: str) -> bool:
        """It was heard in the last ten seconds."""
        return await looker.is_back(name, time.time_ns() // 1_000_000 - 10_000, 0)

    async def _settles(self, looker: Looker, settled: int) -> bool:
        return await looker.newest_outcome() > settled

    async def weigh(self) -> None:
        """For ever."""
        while True:
            for keeper in self.keepers.values():
                keeper.weigh()
            await asyncio.sleep(WEIGH_S)

    # --- Coming to rest ---------------------------------------------------------------------------------------------

    async def rest(self, looker: Looker) -> None:
        """Two more steps by everybody, then no more leases, and everything open is settled."""
        step = await looker.step()
        if await until(lambda: self._is_at_work(looker, step + 2), REST_S, self.watch) is None:
            self.trouble.append(f"training stands still at step {step} after the last fault\n{self._tails()}")
        names = [name for name in self.arena.parties("all") if name not in (TRAINER, ORIGIN)]
        for name in names:
            # Two steps may take less than the pause before a node's next try at a coordinator that was away.
            if await until(partial(self._beats, looker, name), BACK_S, self.watch) is None:
                self.trouble.append(f"{name} is not back at the end\n{self.keepers[name].tail()}")
        pause = ("prime-coordinator", "run", "pause", cast.RUN, "--reason", "the end", "--folder", str(self.stage.home))
        self._command(*pause, host=COORDINATOR)
        if await until(lambda: self._is_quiet(looker), REST_S, self.watch) is None:
            self.trouble.append(f"work is open {REST_S:.0f} s after the last lease: {await looker.ask('/status')}")
        if self.chain:
            await self._settle(self.chain, await looker.newest_outcome())

    async def _settle(self, chain: ChaosChain, last: int) -> None:
        """The chain has seen all that was settled, and promised pay for it."""

        async def has_seen() -> bool:
            return await chain.anchored(cast.RUN) > last

        if await until(has_seen, REST_S, self.watch) is None:
            self.trouble.append(f"the chain has {await chain.anchored(cast.RUN)} entries anchored, not all of {last}")
        if not await chain.promised(cast.RUN):
            self.trouble.append("the chain promises no pay")

    async def _is_quiet(self, looker: Looker) -> bool:
        status = await looker.ask("/status")
        if status is None or status["leases_open"]:
            return False
        return status["submissions"]["waiting"] + status["submissions"]["auditing"] == 0

    def _tails(self) -> str:
        return "\n".join(f"{name}:\n{keeper.tail(4)}" for name, keeper in self.keepers.items())

    # --- Looking through --------------------------------------------------------------------------------------------

    def look_through(self, looker: Looker) -> Outcome:
        """When all have stopped."""
        mirror = self.stage.home / "mirror"
        checked = verify_log(mirror)
        leaves = list(read_leaves(mirror, checked.head.size))
        told = read(leaves)
        self.trouble += list_forks(leaves, looker.heads - self.lost_heads, checked.keys.open_head)
        if self.copy is not None:
            self.trouble += list_missing(leaves, self.copy.kept)
            lost = self._list_submissions(lambda state: state is JobState.LOST)
            wrong = sorted(lost & told.submitted.keys())
            self.trouble += [f"submission {name} is in the log, and its worker holds it for lost" for name in wrong]
            self.say(f"restored {self.copy.restored} entries; {len(lost)} submissions lost and named to their senders")
        self.trouble += list_faults(told, self._acknowledged(), steps_min=3)
        return Outcome(
            survived=self.survived,
            trouble=self.trouble,
            keepers=list(self.keepers.values()),
            told=told,
            heads=len(looker.heads),
            entries=len(leaves),
            seconds=self.watch.awake_s,
            stood_s=self.watch.stood_s,
        )

    def _acknowledged(self) -> set[Digest]:
        """What workers' own journals say the coordinator has received."""
        return self._list_submissions(is_acknowledged)

    def _list_submissions(self, is_wanted: Callable[[JobState], bool]) -> set[Digest]:
        """From the journals of all workers."""
        found = set[Digest]()
        for name in self.arena.parties("workers"):
            for path in (self.stage.site.hosts[name].folder / "home").glob("journal.db"):
                journal = Journal(path)
                found |= {
                    each.submission
                    for each in journal.list_newest(100_000)
                    if is_wanted(each.state) and each.submission
                }
                journal.close()
        return found


def read_size(note: bytes) -> int:
    return TreeHead.parse(SignedNote.parse(note).text).size


async def exists(path: Path) -> bool:
    return path.exists()


def is_acknowledged(state: JobState) -> bool:
    return state not in UNHEARD


def describe(party_s: float | None, took_s: float | None, human: str) -> str:
    if took_s is None:
        return "NOT RECOVERED"
    return f"back after {party_s:.1f} s, work settled after {took_s:.1f} s{f' ({human})' if human else ''}"


async def play(folder: Path, arena: Arena, seed: int, *, seconds: float, faults_max: int, say: Say) -> Outcome:
    site = Site(folder, arena.abilities)
    game = Play(site, arena, say)
    async with AsyncExitStack() as stack:
        ticking = asyncio.create_task(game.watch.run())
        stack.callback(ticking.cancel)
        looker = await game.open(stack)
        say(f"{game.watch.awake_s:6.0f} s everybody is at work")
        beside = [asyncio.create_task(work) for work in (looker.gather_heads(), game.weigh())]
        try:
            await game.suffer(looker, seed, seconds=seconds, faults_max=faults_max)
            await game.rest(looker)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        await game._close()
        try:
            return game.look_through(looker)
        except (LocalError, RemoteError) as error:
            raise AssertionError(f"the log does not hold: {error}") from error
