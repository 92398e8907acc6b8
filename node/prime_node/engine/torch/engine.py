"""The torch engine on a CPU or one GPU: continuous batching, seeded sampling, proofs, weights swapped in place.

This module decides what runs next and what happens when memory runs out. dense.py computes the dense family,
generic_model.py every other architecture.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from prime_node.engine.batches import generate_batch
from prime_node.engine.interface import (
    Completion,
    EngineCapacity,
    EngineFacts,
    EngineQueue,
    ForwardResult,
    GenerateRequest,
    Sampling,
    TokenSequence,
    verify_requests,
)
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.dense_shape import UnsupportedShape, parse_dense_shape
from prime_node.engine.torch.device import (
    EMULATED_BF16,
    choose_device,
    choose_precision,
    describe_device,
    get_cache_bytes,
    is_out_of_memory,
)
from prime_node.engine.torch.forward import (
    forward_group,
    get_length,
    open_cross_precision,
    plan_groups,
    verify_sequences,
)
from prime_node.engine.torch.generation import GenerationScheduler, ProofBuilder, choose_executor
from prime_node.engine.torch.model import DecodeBatch, FolderTensors, TorchModel
from prime_protocol.errors import LocalError
from prime_runtime.model_files import ModelFiles

log = logging.getLogger(__name__)

ATTENTION = {"cpu": "prime", "cuda": "sdpa"}
"""What computes attention: our kernels, or torch's."""
BATCH_MAX = {"cpu": 64, "cuda": 256}
"""Default of sequences at once. Beyond it a CPU gains nothing, and a GPU little."""
READ_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens of sequences checked in one forward pass."""


class TorchEngine:
    """One model on one device."""

    def __init__(
        self,
        *,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 1,
        batch_max: int | None = None,
        cache_bytes: int | None = None,
        proofs: type[ProofBuilder] = ProofBuilder,
    ) -> None:
        torch.set_num_threads(threads)
        self._device = choose_device(device)
        self._dtype = choose_precision(precision, self._device)
        self._uses_cross_precision = precision in ("bfloat16", EMULATED_BF16)
        """In bfloat16 runs a sequence is also computed in the other precision: see forward.py."""
        self._description = describe_device(self._device)
        self._batch_limit = batch_max or BATCH_MAX[self._device.type]
        """Sequences at once. It shrinks when memory runs out, and does not grow again."""
        self._read_tokens = READ_TOKENS[self._device.type]
        """The same for tokens of one forward pass."""
        self._cache_bytes = cache_bytes
        self._proofs = proofs
        self._builder = choose_executor(self._device)
        self._model: TorchModel | None = None
        self._files: ModelFiles | None = None
        self._scheduler: GenerationScheduler | None = None
        """None while nothing is queued."""
        self._batch: DecodeBatch | None = None
        self._rows = 0
        """Rows that the batch has room for."""

    @property
    def facts(self) -> EngineFacts:
        files = self._get_files()
        model, driver = self._description
        return EngineFacts(
            engine="torch",
            device=str(self._device),
            precision=str(self._dtype).removeprefix("torch."),
            hidden=files.hidden,
            vocabulary=files.vocabulary,
            context_max=files.context_max,
            version=str(torch.__version__),
            attention=ATTENTION[self._device.type],
            device_model=model,
            driver=driver,
        )

    @property
    def capacity(self) -> EngineCapacity:
        """Tokens that fit into the memory that is free now, and what the running batch already has."""
        token_bytes = self._get_model().kv_token_bytes
        cache_bytes = self._cache_bytes or get_cache_bytes(self._device) or 0
        tokens = cache_bytes // token_bytes if token_bytes else 0
        return EngineCapacity(sequences_max=self._batch_limit, kv_tokens=tokens)

    @property
    def queue(self) -> EngineQueue:
        scheduler = self._scheduler
        if scheduler is None:
            return EngineQueue()
        return EngineQueue(running=len(scheduler.running) + len(scheduler.ending), waiting=len(scheduler.waiting))

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        assert self._scheduler is None, "a completion comes from one checkpoint"
        files, tensors = ModelFiles.open(checkpoint), FolderTensors.open(checkpoint)
        try:
            with torch.inference_mode():
                self._load_weights(files, tensors, changed)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise LocalError(f"the weights in {checkpoint} do not fit into the memory of {self._device}") from None

    def _load_weights(self, files: ModelFiles, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        """Swap the weights in place if the configuration is the same; else build a new model."""
        if self._model is not None and self._files is not None and files.config == self._files.config:
            self._model.swap_weights(tensors, changed)
        else:
            make = plan_model(files, tensors, device=self._device, dtype=self._dtype)
            # plan_model has checked what it can. Free the old model first, as two rarely fit.
            self._model = None
            self._model = make()
        self._files = files

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        return generate_batch(self, requests, sampling, is_wanted)

    def add(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> None:
        facts = self.facts
        self._get_model()
        verify_requests(requests, sampling, vocabulary=facts.vocabulary, context_max=facts.context_max)
        if not requests:
            return
        if self._scheduler is None:
            proofs = self._proofs(
                rows=self._batch_limit, hidden=facts.hidden, device=self._device, builder=self._builder
            )
            self._scheduler = GenerationScheduler(sampling, proofs)
        assert self._scheduler.sampling == sampling, "the caller waits until other samplings are done"
        self._scheduler.add(requests)

    def step(self) -> list[Completion]:
        scheduler = self._scheduler
        assert scheduler is not None, "something is queued"
        if scheduler.is_busy and not self._try_step(scheduler, self._get_model()):
            scheduler.requeue()
            self._batch = None
        completions = list(scheduler.take_ready())
        self._close_if_idle()
        return completions

    def cancel(self, numbers: Collection[int]) -> None:
        if self._scheduler is not None:
            with torch.inference_mode():
                self._scheduler.cancel(numbers, self._batch)
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Free the cache when nothing is queued."""
        scheduler = self._scheduler
        if scheduler is not None and not scheduler.is_busy:
            self._batch = None
            if not scheduler.ending:
                self._scheduler = None

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        model, facts = self._get_model(), self.facts
        verify_sequences(sequences, vocabulary=facts.vocabulary, context_max=facts.context_max)
        groups = deque(plan_groups(sequences, self._read_tokens))
        while groups:
            group = groups.popleft()
            results = self._try_read(model, group, sampling)
            if results is None:
                groups.extendleft(reversed(plan_groups(group, self._read_tokens)))
            else:
                yield from results

    # --- Out-of-memory handling -------------------------------------------------------------------------------------

    def _prepare_batch(self, scheduler: GenerationScheduler, model: TorchModel) -> DecodeBatch:
        """The running batch, with room for what has been added, or a new one."""
        queued = min(self._batch_limit, len(scheduler.running) + len(scheduler.waiting))
        if self._batch is None:
            self._free()
            self._rows = queued
            cache_bytes = self._cache_bytes or get_cache_bytes(self._device)
            self._batch = model.open_batch(rows=queued, length_max=scheduler.length_max, cache_bytes=cache_bytes)
        elif scheduler.waiting:
            if queued > self._rows:
                # Doubled, so that requests which come one by one copy the cache few times.
                self._rows = min(self._batch_limit, max(queued, 2 * self._rows))
            self._batch.resize(self._rows, scheduler.length_max)
        return self._batch

    def _try_step(self, scheduler: GenerationScheduler, model: TorchModel) -> bool:
        """False if memory ran out; the batch limit is halved then."""
        try:
            with torch.inference_mode():
                scheduler.step(model, self._prepare_batch(scheduler, model), self._batch_limit)
        except (RuntimeError, MemoryError) as error:
            running = len(scheduler.running)
            if not is_out_of_memory(error):
                raise
            if running <= 1 and self._rows <= 1:
                raise LocalError(
                    f"out of memory on {self._device} with a single sequence: {error}; "
                    "free some memory, use another device, or leave this run to larger machines"
                ) from None
            self._batch_limit = max(1, (running if running > 1 else self._rows) // 2)
            log.warning(
                "out of memory with %d sequences at once, going on with %d: %s", running, self._batch_limit, error
            )
            return False
        return True

    def _try_read(
        self, model: TorchModel, group: list[TokenSequence], sampling: Sampling
    ) -> list[ForwardResult] | None:
        """None if memory ran out; the token limit is halved then."""
        try:
            with torch.inference_mode():
                cross = open_cross_precision(model) if self._uses_cross_precision else None
                return list(forward_group(model, group, sampling, vocabulary=self.facts.vocabulary, cross=cross))
        except (RuntimeError, MemoryError) as error:
            tokens = sum(map(get_length, group))
            if not is_out_of_memory(error):
                raise
            if len(group) == 1:
                raise LocalError(
                    f"out of memory on {self._device} reading one text of {tokens} tokens: {error}; "
                    "free some memory, or use another device"
                ) from None
            self._read_tokens = tokens // 2
            log.warning("out of memory reading %d tokens at once, going on with %d", tokens, self._read_tokens)
        self._free()
        return None

    def _free(self) -> None:
        """Release GPU memory that torch has cached: it may be too fragmented to be reused."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # --- The loaded model -------------------------------------------------------------------------------------------

    def _get_files(self) -> ModelFiles:
        if self._files is None:
            raise LocalError("no checkpoint is loaded yet")
        return self._files

    def _get_model(self) -> TorchModel:
        if self._model is None or not self._model.is_whole:
            raise LocalError("no checkpoint is loaded whole: load one")
        return self._model


def plan_model(
    files: ModelFiles, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype
) -> Callable[[], TorchModel]:
    """A function that builds the model: DenseModel for the dense family, else GenericModel."""
    try:
        shape = parse_dense_shape(files)
    except UnsupportedShape as reason:
        log.info("%s runs through transformers: %s", files.architecture, reason)
        # Importing transformers takes seconds, and most models do not need it.
        from prime_node.engine.torch.generic_model import GenericModel, plan_generic

        return partial(GenericModel, plan_generic(files, tensors), tensors, device=device, dtype=dtype)
    tensors.check(shape.get_tensors())
    return partial(DenseModel, shape, tensors, device=device, dtype=dtype)
