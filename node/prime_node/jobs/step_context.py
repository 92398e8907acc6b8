"""What the work of a step, or an audit of it, goes by: terms, beacon, tasks, the model's files and its checkpoint.

`Briefing` is what the pure parts need, put together; `Briefings` gets it from the coordinator and the swarm, and
remembers the last few.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.interface import Sampling
from prime_node.jobs.file_checks import FileRules
from prime_node.storage.node_folder import write_atomic
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_protocol.constants import DATASET_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import ANY_MODEL_FILES, RunTerms
from prime_protocol.rollouts.rollout import RolloutFile, RolloutHeader, RolloutLimits
from prime_protocol.tasks.family import TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import STEP, StepReply, StepRequest
from prime_runtime.http.client import HttpClient, ServerAddress
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.model_files import ModelFiles

log = logging.getLogger(__name__)

CACHE_ENTRIES = 4
"""Steps, task sets and models remembered: the present one, and those that are still judged."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Everything about one step and one checkpoint."""

    run: RunId
    step: Step
    terms: RunTerms
    beacon: Digest
    root: Digest
    folder: Path
    """The checkpoint's."""
    family: TaskFamily
    model: ModelFiles

    def __post_init__(self) -> None:
        if self.terms.model_files not in (ANY_MODEL_FILES, self.model.digest):
            raise LocalError(f"the files beside the tensors of {self.root} are not those that the run names")
        if self.model.vocabulary > self.terms.vocabulary:
            raise LocalError(f"the model has {self.model.vocabulary} tokens, the run says {self.terms.vocabulary}")

    @property
    def sampling(self) -> Sampling:
        terms = self.terms
        return Sampling(temperature=terms.temperature, eos=self.model.eos, tokens_max=terms.output_tokens_max)

    def make_header(self, lease: int, node: NodeId) -> RolloutHeader:
        return RolloutHeader(run=self.run, step=self.step, checkpoint_root=self.root, lease=lease, node=node)

    def get_limits(self, first_slot: int, slots: int) -> RolloutLimits:
        return self.terms.rollout_limits(first_slot, slots)

    def encode_prompt(self, task: int) -> NDArray[np.int32]:
        return np.array(self.model.encode_prompt(self.family.make(task).prompt), np.int32)

    def make_rules(self, file: RolloutFile) -> FileRules:
        return FileRules(
            prompts={task: self.encode_prompt(task) for task in {row.task for row in file.rows}},
            eos=self.model.eos,
            tokens_max=self.terms.output_tokens_max,
            vocabulary=self.model.vocabulary,
            tolerance=self.terms.tolerance,
        )


class LruCache(Generic[K, V]):
    """The last few values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        if len(self._values) > self._most:
            self._values.popitem(last=False)


class StepContexts:
    """One node's."""

    def __init__(
        self, client: HttpClient, server: ServerAddress, run: RunId, fetcher: CheckpointFetcher, datasets: Path
    ) -> None:
        self._client = client
        self._server = server
        self._run = run
        self._fetcher = fetcher
        self._datasets = datasets
        self._facts: LruCache[tuple[Step, Digest], StepReply] = LruCache(CACHE_ENTRIES)
        self._families: LruCache[str, TaskFamily] = LruCache(CACHE_ENTRIES)
        self._models: LruCache[Digest, ModelFiles] = LruCache(CACHE_ENTRIES)

    @asynccontextmanager
    async def open(self, step: Step, root: Digest) -> AsyncIterator[StepContext]:
        """For work on `step` with the checkpoint `root`, which stays on disk meanwhile. LocalError, RemoteError."""
        facts = await self.get_facts(step, root)
        if facts.beacon is None:
            raise LocalError(f"step {step} has no beacon yet")
        family = await self._open_family(facts.terms.task_set)
        async with self._fetcher.hold_checkpoint(root, facts.weights.manifest) as folder:
            yield StepContext(
                run=self._run,
                step=step,
                terms=facts.terms,
                beacon=facts.beacon,
                root=root,
                folder=folder,
                family=family,
                model=await self._open_model(root, folder),
            )

    async def check_weights(self, root: Digest) -> None:
        """LocalError where they are not what was signed any more."""
        await self._fetcher.check(root)

    async def get_facts(self, step: Step, root: Digest) -> StepReply:
        """What the coordinator says of a step and a checkpoint."""
        known = self._facts.get((step, root))
        if known is None:
            wanted = StepRequest(step=step, root=root)
            known = (await self._client.call(self._server, STEP, wanted, run=self._run)).message
            if known.weights.root != root:
                raise RemoteError("StepFacts.weights.root", f"is {known.weights.root}, asked for was {root}")
            # The terms of a step are settled with its first lease, and this node asks when it has one.
            if known.beacon is not None:
                self._facts.put((step, root), known)
        return known

    async def _open_family(self, task_set: str) -> TaskFamily:
        family = self._families.get(task_set)
        if family is None:
            spec = TaskSetSpec.parse(task_set)
            data = await self._read_dataset(spec.problem_file) if spec.problem_file else b""
            family = await asyncio.to_thread(open_family, spec, data)
            self._families.put(task_set, family)
        return family

    async def _read_dataset(self, digest: Digest) -> bytes:
        """From this disk, else from the coordinator."""
        path = self._datasets / digest.hex()
        if path.exists():
            data = await asyncio.to_thread(path.read_bytes)
            if sha256(data).digest() == digest:
                return data
            log.warning("the problem file %s on this disk is damaged and is fetched again", digest)
        data = await fetch_file(self._client, self._server, f"/datasets/{digest}", digest, bytes_max=DATASET_BYTES_MAX)
        await asyncio.to_thread(write_atomic, path, data)
        return data

    async def _open_model(self, root: Digest, folder: Path) -> ModelFiles:
        model = self._models.get(root)
        if model is None:
            model = await asyncio.to_thread(ModelFiles.open, folder)
            self._models.put(root, model)
        return model
