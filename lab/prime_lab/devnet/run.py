"""The course of a devnet: set it up, start it, watch it until the model has learnt, judge the result, stop it.

Every party is the command that a user types, in its own process. This file holds the order of these steps.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from prime_coordinator.home import CoordinatorHome
from prime_coordinator.log.verify import verify_log
from prime_coordinator.randomness import read_secret
from prime_coordinator.retention.object_names import FileKind, make_key
from prime_lab.attacks.coordinator.grinding import DishonestOperator, find_grinding_position, find_refusal, grind_draw
from prime_lab.cheats.process import write_interpreter
from prime_lab.devnet import recipe
from prime_lab.devnet.chain import STAKED_ROLES, DevnetChain
from prime_lab.devnet.monitor import NetworkMonitor, NetworkSnapshot
from prime_lab.devnet.plan import (
    CLAIMED_ROLES,
    NETWORK,
    NODE_ROLES,
    RUN,
    DevnetPlan,
    DevnetProcess,
    DevnetRole,
    get_attack,
    get_coordinator_folder,
    get_interpreter_path,
    get_password_file,
    list_nodes,
    make_coordinator_argv,
    make_inspector_argv,
    make_origin_argv,
    make_run_argv,
    make_trainer_argv,
)
from prime_lab.devnet.summary import DevnetSummary, LogSummary, summarize_log
from prime_node.cli.context import call_node
from prime_protocol.errors import LocalError
from prime_protocol.ledger.randomness_chain import sign_round
from prime_protocol.ledger.replay import replay
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.weights.manifest import ManifestKind, open_manifest
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_runtime.child_processes import ProcessFailedError, RunningProcess, run_command
from prime_runtime.keys import load_key_file, read_key_address
from prime_runtime.lock import read_lock_info
from prime_runtime.log_files import read_leaves, read_tree_head
from prime_runtime.shardcast.store import ShardStore

POLL_S = 1.0
START_S = 60.0
"""Time limit for a party until it answers requests."""
JOIN_S = 300.0
"""Time limit for a node to join. Its engine is loaded first, and all engines share this machine."""
SETTLE_S = 20.0
"""Time limit for slashes and audits that are open at the end."""

ShowSnapshot = Callable[[NetworkSnapshot, str], None]


@dataclass(slots=True)
class Devnet:
    """One network, from its folder to its end."""

    plan: DevnetPlan
    say: Callable[[str], None]
    show: ShowSnapshot
    variables: Mapping[str, str]
    """Every party inherits it, as from a shell."""
    names: dict[NodeId, str] = field(default_factory=dict)
    """Which node is which party."""
    url: str = ""
    running: list[RunningProcess[DevnetProcess]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    chain: DevnetChain | None = None

    # --- Setting up -------------------------------------------------------------------------------------------------

    async def prepare(self) -> Path:
        """Create keys, the log and a model with some right answers; returns the model's folder."""
        plan = self.plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        if any(plan.folder.iterdir()):
            raise LocalError(f"{plan.folder} is not empty; name another folder")
        get_password_file(plan).write_text(secrets.token_urlsafe(24) + "\n")
        get_password_file(plan).chmod(0o600)
        if plan.settles_on_chain:
            self.chain = DevnetChain(plan, self._do)
            await self.chain.start(self._start)
        on_chain = self.chain.init_words() if self.chain else []
        await self._do("coordinator-init", *make_coordinator_argv(plan), *on_chain)
        key = plan.folder / "trainer.key"
        await self._do("keys", "prime-node", "keys", "new", "--out", str(key), *self._password)
        return plan.model or await self._warm_up()

    async def _warm_up(self) -> Path:
        from prime_trainer.model.tiny import make_recurrent_checkpoint, make_tiny_checkpoint

        plan = self.plan
        self.say("warming a tiny model up, so that some of its answers are right")
        start, model = plan.folder / "model-0", plan.folder / "model"
        make = make_recurrent_checkpoint if plan.is_recurrent else make_tiny_checkpoint
        make(start, seed=plan.seed, spread=0.3)
        steps = recipe.RECURRENT_WARM_STEPS if plan.is_recurrent else recipe.WARM_STEPS
        words = ["--model", str(start), "--out", str(model), "--task-set", recipe.TASK_SET]
        words += ["--steps", str(steps), "--seed", str(plan.seed)]
        await self._do("sft", "prime-trainer", "sft", *words)
        return model

    async def evaluate(self, model: Path, name: str) -> float:
        """Mean reward on held-out problems."""
        words = ["--model", str(model), "--task-set", recipe.HELD_OUT, "--tasks", str(recipe.EVALUATION_TASKS)]
        text = await self._do(
            name, "prime-trainer", "eval", *words, "--tokens-max", str(recipe.OUTPUT_TOKENS), "--json"
        )
        return float(json.loads(text.splitlines()[-1])["reward_mean"])

    # --- Running ----------------------------------------------------------------------------------------------------

    async def start(self, model: Path) -> None:
        """Start all parties, in the order of their dependencies."""
        plan = self.plan
        folder = get_coordinator_folder(plan)
        words = ("prime-coordinator", "start", "--folder", str(folder), "--explorer-models", str(model))
        await self._start(DevnetProcess(name="coordinator", part=DevnetRole.COORDINATOR, words=words, folder=folder))
        self.url = await self._until_listening(folder / "lock")
        await self._do("run-create", *make_run_argv(plan, model, str(self.read_trainer())))
        identity = await self._ask_identity()
        if self.chain:
            await self.chain.fund()
        else:
            await self._operate("deposit", "deposit", "coordinator", "100000", "--reference", "devnet")
            await self._operate("fund", "run", "fund", RUN, "100000")
        for name, part_words in (
            ("origin", make_origin_argv(plan, self.url, identity)),
            ("trainer", make_trainer_argv(plan, self.url, identity, model)),
        ):
            await self._start(
                DevnetProcess(name=name, part=DevnetRole.TRAINER, words=part_words, folder=plan.folder / name)
            )
        for party in list_nodes(plan, self.url):
            if party.part in CLAIMED_ROLES:
                write_interpreter(get_interpreter_path(plan, party.name), get_attack(plan, party.name))
            await self._start(self.chain.equip(party) if self.chain else party)
        await self._name_inspector()
        if self.chain:
            await self._stake_all(self.chain)

    async def _name_inspector(self) -> None:
        inspector = next(each for each in self.running if each.party.part is DevnetRole.VALIDATOR)
        key = inspector.party.folder / "key.json"
        await self._until(inspector, key.exists, "has a key")
        await self._do("run-update", *make_inspector_argv(self.plan, read_key_address(key)))

    async def _stake_all(self, chain: DevnetChain) -> None:
        """Each node's owner puts stake into the vault, once the node has joined."""
        staked = [each for each in self.running if each.party.part in STAKED_ROLES]
        for each in staked:
            folder = each.party.folder
            await self._until(each, lambda folder=folder: (folder / "run.json").exists(), "has joined", JOIN_S)  # type: ignore[misc]
        await chain.give([read_key_address(each.party.folder / "key.json") for each in staked])
        await asyncio.gather(*(chain.stake(each.party) for each in staked))

    async def tell_chain(self) -> tuple[list[str], list[str]]:
        """The result on the chain, and what is missing of it; empty without a chain."""
        return await self.chain.tell(self.running) if self.chain else ([], [])

    async def watch(self) -> NetworkSnapshot:
        """Wait until the trainer has made its last step; PartyFailed if a party exits before."""
        trainer = next(each for each in self.running if each.party.name == "trainer")
        async with aiohttp.ClientSession() as session:
            watch = NetworkMonitor(session, self.url, self.plan.folder / "trainer")
            while True:
                snapshot = await watch.fetch_snapshot()
                self._learn_names()
                self.show(snapshot, "training")
                if trainer.code == 0 or snapshot.step >= self.plan.steps:
                    return snapshot
                for each in self.running:
                    each.check()
                if time.monotonic() - self.began_s > self.plan.limit_s:
                    raise LocalError(f"step {snapshot.step} of {self.plan.steps} after {self.plan.limit_s} s: given up")
                await asyncio.sleep(POLL_S)

    async def settle(self) -> None:
        """Wait until open audits are settled and proposed slashes are decided."""
        async with aiohttp.ClientSession() as session:
            watch = NetworkMonitor(session, self.url, self.plan.folder / "trainer")
            deadline_s = time.monotonic() + SETTLE_S
            while time.monotonic() < deadline_s:
                snapshot = await watch.fetch_snapshot()
                self.show(snapshot, "settling")
                if not snapshot.status["slashes_open"]:
                    return
                await asyncio.sleep(POLL_S)

    async def count_peers(self) -> dict[str, int]:
        """Connections over libp2p of each node that gossips, as it says itself."""
        found: dict[str, int] = {}
        for each in self.running:
            if each.party.part not in NODE_ROLES:
                continue
            try:
                report = await call_node(each.party.folder, "GET", "/status")
            except LocalError:
                continue  # it has stopped: a cheater without stake
            if report.get("p2p", {}).get("is_on"):
                found[each.party.name] = report["p2p"]["connected"]
        return found

    async def stop(self) -> None:
        """Nodes first, the coordinator last: it logs what the others send."""
        for each in reversed(self.running):
            await each.stop()
        self.running.clear()

    def read_story(self) -> LogSummary:
        """Replay the log as a stranger would: signatures, rules, tiles; RemoteError if anything is invalid."""
        mirror = get_coordinator_folder(self.plan) / "mirror"
        checked = verify_log(mirror)
        return summarize_log(read_leaves(mirror, checked.head.size), recipe.SAMPLES)

    def nodes_of(self, part: DevnetRole) -> list[NodeId]:
        return [node for node, name in self.names.items() if name.startswith(part)]

    # --- Small parts ------------------------------------------------------------------------------------------------

    @property
    def _password(self) -> tuple[str, str]:
        return ("--password-file", str(get_password_file(self.plan)))

    async def _do(self, name: str, *words: str) -> str:
        """A short command."""
        party = DevnetProcess(name=name, part=DevnetRole.COORDINATOR, words=words, folder=self.plan.folder / name)
        return await run_command(party, self.variables)

    async def _operate(self, name: str, *words: str) -> None:
        """A command of the operator."""
        await self._do(name, "prime-coordinator", *words, "--folder", str(get_coordinator_folder(self.plan)))

    async def _start(self, party: DevnetProcess) -> None:
        self.running.append(await RunningProcess.start(party, self.variables))

    async def _until_listening(self, lock: Path) -> str:
        def find_url() -> object:
            return read_lock_info(lock).get("url") if lock.exists() else None

        await self._until(self.running[-1], lambda: bool(find_url()), "listens")
        return str(find_url())

    async def _until(
        self, party: RunningProcess[DevnetProcess], is_so: Callable[[], bool], what: str, limit_s: float = START_S
    ) -> None:
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            party.check()
            if is_so():
                return
            await asyncio.sleep(0.05)
        raise ProcessFailedError(f"not so after {limit_s:.0f} s: {party.party.name} {what}; see {party.party.log}")

    async def _ask_identity(self) -> str:
        async with aiohttp.ClientSession() as session:
            snapshot = await NetworkMonitor(session, self.url, self.plan.folder).fetch_snapshot()
            return str(snapshot.status["coordinator"])

    def grind_log(self) -> str:
        """Rewrite this network's own log as its coordinator could, until a draw spares a file, and replay that."""
        home = CoordinatorHome(get_coordinator_folder(self.plan))
        secret = read_secret(home.randomness_key)
        size = TreeHead.parse(SignedNote.parse(read_tree_head(home.mirror)).text).size
        leaves = list(read_leaves(home.mirror, size))
        operator = DishonestOperator(
            key=load_key_file(home.key, get_password_file(self.plan).read_text().strip()),
            network=NetworkId(NETWORK),
            run=RunId(RUN),
            chain=replay(NetworkId(NETWORK), leaves[:1]).state.randomness,
            sign_round=lambda number: sign_round(secret, number),
        )
        position = find_grinding_position(operator, leaves)
        found = grind_draw(operator, position, lambda drawn: not drawn) if position else None
        if found is None:
            return ""
        refusal = find_refusal(operator, found.leaves)
        told = f"a coordinator that rewrites this log until a draw spares a file (try {found.tries})"
        return f"{told} is refused: {refusal}" if refusal else f"{told} IS NOT NOTICED"

    def read_trainer(self) -> NodeId:
        """The address of the trainer's key, which its file contains in plain text."""
        return read_key_address(self.plan.folder / "trainer.key")

    def _learn_names(self) -> None:
        """Each node's key file is in its folder and contains the address in plain text."""
        for each in self.running:
            key = each.party.folder / "key.json"
            is_known = each.party.name in self.names.values()
            if each.party.part in NODE_ROLES and not is_known and key.exists():
                self.names[read_key_address(key)] = each.party.name


async def run_devnet(devnet: Devnet) -> DevnetSummary:
    """Run a devnet up to its summary. The network still runs afterwards; the caller stops it."""
    model = await devnet.prepare()
    before = await devnet.evaluate(model, "eval-before")
    devnet.say(f"right before training: {before:.0%} of held-out problems; starting all parties")
    await devnet.start(model)
    snapshot = await devnet.watch()
    await devnet.settle()
    peers = await devnet.count_peers()
    after = await devnet.evaluate(find_last_model(devnet.plan, devnet.read_trainer()), "eval-after")
    story = devnet.read_story()
    full_bytes, delta_bytes = count_transfer_bytes(devnet.plan, story.manifests, devnet.read_trainer())
    return DevnetSummary(
        before=before,
        after=after,
        story=story,
        names=devnet.names,
        steps=snapshot.step,
        seconds=time.monotonic() - devnet.began_s,
        full_bytes=full_bytes,
        delta_bytes=delta_bytes,
        peers=peers,
        learns=devnet.plan.model is None and not devnet.plan.is_recurrent,
        grinding=await asyncio.to_thread(devnet.grind_log),
    )


def find_last_model(plan: DevnetPlan, trainer: NodeId) -> Path:
    """The newest published weights."""
    store = ShardStore(plan.folder / "store", network=NetworkId(NETWORK), run=RunId(RUN), trainer=trainer)
    signed = max(store.checkpoints().values(), key=lambda each: each.manifest.step, default=None)
    if signed is None:
        raise LocalError("the trainer left no checkpoint")
    return store.checkpoint_path(signed.root)


def count_transfer_bytes(plan: DevnetPlan, manifests: list[Digest], trainer: NodeId) -> tuple[int, int]:
    """Bytes that a node fetches for all checkpoints: with keyframes only, and with deltas where there are any."""
    objects = get_coordinator_folder(plan) / "objects"
    full = moved = whole = 0
    for digest in manifests:
        frame = (objects / make_key(FileKind.MANIFESTS, 0, digest)).read_bytes()
        manifest = open_manifest(frame, network=NetworkId(NETWORK), run=RunId(RUN), trainer=trainer).manifest
        if manifest.kind is ManifestKind.KEYFRAME:
            whole = manifest.transport_bytes
        full += whole
        moved += manifest.transport_bytes
    return full, moved
