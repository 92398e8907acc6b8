"""What a job on a step needs: terms, beacon, tasks, the model's files and its checkpoint.

`StepContext` is one frozen value. `StepContexts` fetches its parts from the coordinator and the swarm, and caches the
last few. Generating and auditing are in generate.py and audit.py.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.interface import Sampling
from prime_node.engine.lifecycle import EngineSession
from prime_node.engine.pool import EnginePool
from prime_node.jobs.file_checks import FileRules
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import ANY_MODEL_FILES, RunTerms
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.rollouts.rollout import RolloutFile, RolloutHeader, RolloutLimits
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import STEP, StepReply, StepRequest
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.model_files import ModelFiles
from prime_runtime.task_sets import TaskSetCache
from prime_runtime.tokenizer_process import TokenizerProcess

CACHE_ENTRIES = 4
"""Steps and models in memory: those of the current step, and of steps that are still audited."""

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

    @property
    def precision(self) -> Precision:
        return self.terms.tolerance.precision

    def lend(self, engine: EnginePool) -> AbstractAsyncContextManager[EngineSession]:
        """Use of an engine with this checkpoint."""
        longest = self.terms.row_tokens_max
        return engine.acquire(self.root, self.folder, self.precision, self.run, sequence_tokens=longest)

    def make_header(self, lease: int, node: NodeId) -> RolloutHeader:
        return RolloutHeader(run=self.run, step=self.step, checkpoint_root=self.root, lease=lease, node=node)

    def get_limits(self, first_slot: int, slots: int) -> RolloutLimits:
        return self.terms.rollout_limits(first_slot, slots)

    def encode_prompts(self, tasks: Iterable[int]) -> dict[int, NDArray[np.int32]]:
        """The prompt of each task. It waits for the tokenizer's process: use a thread."""
        wanted = sorted(set(tasks))
        tokens = self.model.encode_prompts([self.family.make(task).prompt for task in wanted])
        return {task: np.array(each, np.int32) for task, each in zip(wanted, tokens, strict=True)}

    def make_rules(self, file: RolloutFile) -> FileRules:
        return FileRules(
            prompts=self.encode_prompts(row.task for row in file.rows),
            eos=self.model.eos,
            tokens_max=self.terms.output_tokens_max,
            context_max=self.model.context_max,
            vocabulary=self.model.vocabulary,
        )


class LruCache(Generic[K, V]):
    """Keeps the values that were used last."""

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
    """The contexts of one node's jobs."""

    def __init__(
        self, client: HttpClient, server: ServerAddress, run: RunId, fetcher: CheckpointFetcher, datasets: Path
    ) -> None:
        self._client = client
        self._server = server
        self._run = run
        self._fetcher = fetcher
        self._task_sets = TaskSetCache(client, server, datasets)
        self._facts: LruCache[tuple[Step, Digest], StepReply] = LruCache(CACHE_ENTRIES)
        self._models: LruCache[Digest, ModelFiles] = LruCache(CACHE_ENTRIES)
        self._models_by_files: LruCache[Digest, ModelFiles] = LruCache(CACHE_ENTRIES)
        """By the digest of the files: all checkpoints of a run share one tokenizer process."""
        self._tokenizer: TokenizerProcess | None = None

    @asynccontextmanager
    async def open(self, step: Step, root: Digest) -> AsyncIterator[StepContext]:
        """For a job on `step` with the checkpoint `root`, which stays on disk meanwhile. LocalError, RemoteError."""
        facts = await self.get_facts(step, root)
        if facts.beacon is None:
            raise LocalError(f"step {step} has no beacon yet")
        family = await self._task_sets.open(facts.terms.task_set)
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
        """LocalError: they differ from what the manifest signs."""
        await self._fetcher.check(root)

    def forget_facts(self) -> None:
        """After a restore of the coordinator: a step whose beacon is lost gets another one."""
        self._facts = LruCache(CACHE_ENTRIES)

    async def get_facts(self, step: Step, root: Digest) -> StepReply:
        """What the coordinator says about a step and a checkpoint."""
        known = self._facts.get((step, root))
        if known is None:
            wanted = StepRequest(step=step, root=root)
            known = (await self._client.call(self._server, STEP, wanted, run=self._run)).message
            if known.weights.root != root:
                raise RemoteError("StepReply.weights.root", f"is {known.weights.root}, asked for was {root}")
            # The terms of a step are final once its first lease is granted, and this node asks after that.
            if known.beacon is not None:
                self._facts.put((step, root), known)
        return known

    async def _open_model(self, root: Digest, folder: Path) -> ModelFiles:
        model = self._models.get(root)
        if model is None:
            model = await asyncio.to_thread(ModelFiles.open, folder)
            model = self._models_by_files.get(model.digest) or model
            self._models.put(root, model)
            self._models_by_files.put(model.digest, model)
        self._tokenizer = model.tokenizer
        return model

    @property
    def tokenizer_problem(self) -> str:
        """Why the tokenizer of the last job cannot be used; empty if it can."""
        return self._tokenizer.problem if self._tokenizer else ""

    def close(self) -> None:
        """End the tokenizer's process, even in the middle of a job."""
        if self._tokenizer:
            self._tokenizer.close()
