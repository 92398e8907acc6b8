"""The vLLM engine: our sampling, our record of hidden states, and weights swapped in place.

vLLM schedules, keeps the cache and runs the model; worker.py draws the tokens and records the hidden states. On one
device all of this is in this process; a model that is split over several has a process for each, and the first of them
keeps the records. There is no asynchronous scheduling or speculative decoding: then each step produces at most one
token per request, and the worker sees it. Chunked prefill, preemption and prefix caching are allowed. Requests are
submitted as earlier ones finish, so that a machine which runs out of memory can continue with a smaller batch. A
sequence to be read shares its steps with the completions in progress.
"""

import gc
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

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
from prime_node.engine.torch.device import EMULATED_BF16, choose_precision, describe_device, is_out_of_memory
from prime_node.engine.torch.forward import forward_group, verify_sequences
from prime_node.engine.torch.model import FolderTensors
from prime_node.engine.torch.streamed import StreamedModel, open_streamed_model
from prime_node.engine.vllm.launch import BATCH_MAX, NO_LIMITS, VllmLimits, choose_vllm_device, leave, start_vllm
from prime_node.engine.vllm.records import (
    ForwardRecord,
    GenerationRecord,
    expand_to_layers,
    is_mixture,
)
from prime_protocol.errors import LocalError
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.ids import Digest
from prime_runtime.model_files import ModelFiles

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReadingJob:
    """The sequences of one forward pass. A step of the completions beside it may finish some of them."""

    waiting: deque[TokenSequence] = field(default_factory=deque)
    running: dict[str, tuple[TokenSequence, str]] = field(default_factory=dict)
    """Sequences in vLLM by the name that they were submitted under, with vLLM's internal request id."""
    done: deque[tuple[TokenSequence, str]] = field(default_factory=deque)
    """Finished, and not yet taken from the worker."""


class VllmEngine:
    """One model in vLLM."""

    def __init__(
        self, *, device: str = "auto", precision: str = "float32", threads: int = 1, limits: VllmLimits = NO_LIMITS
    ) -> None:
        torch.set_num_threads(threads)
        self._device = choose_vllm_device(device)
        self._dtype = choose_precision(precision, self._device)
        self._description = describe_device(self._device)
        self._attention = ""
        """Name of the attention backend, once a model is loaded."""
        self._uses_both_precisions = precision in ("bfloat16", EMULATED_BF16)
        """In bfloat16 runs some sequences are also computed in the other precision: see torch/streamed.py."""
        self._other: StreamedModel | None = None
        self._limits = limits
        self._batch_limit = limits.batch_max or BATCH_MAX
        """Requests at once. It shrinks when memory runs out, and does not grow again."""
        self._llm: LLMEngine | None = None
        self._files: Digest | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._numbers = count()
        self._sampling = Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)
        """Of the queued completions."""
        self._waiting: deque[GenerateRequest] = deque()
        self._writing: dict[str, tuple[GenerateRequest, str]] = {}
        """Completions in vLLM, by name as in ReadingJob."""
        self._finished: list[Completion] = []
        self._reading = ReadingJob()

    @property
    def facts(self) -> EngineFacts:
        config = self._get_llm().model_config
        model, driver = self._description
        return EngineFacts(
            engine="vllm",
            device=str(self._device),
            precision=str(self._dtype).removeprefix("torch."),
            hidden=config.get_hidden_size(),
            vocabulary=config.get_vocab_size(),
            context_max=config.max_model_len,
            version=vllm.__version__,
            attention=self._attention,
            tensor_parallel=self._limits.tensor_parallel,
            device_model=model,
            driver=driver,
        )

    @property
    def capacity(self) -> EngineCapacity:
        cache = self._get_llm().vllm_config.cache_config
        return EngineCapacity(
            sequences_max=self._batch_limit, kv_tokens=(cache.num_gpu_blocks or 0) * (cache.block_size or 0)
        )

    @property
    def queue(self) -> EngineQueue:
        return EngineQueue(running=len(self._writing) + len(self._finished), waiting=len(self._waiting))

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        assert self.queue == EngineQueue(), "a completion comes from one checkpoint"
        files, tensors = ModelFiles.open(checkpoint), FolderTensors.open(checkpoint)
        # vLLM packs the experts for its kernels, and on CPUs goes on with the packed old ones after a swap.
        is_swap = self._llm is not None and files.digest == self._files and not is_mixture(tensors.tensors)
        # If loading fails, no job runs until a checkpoint has been loaded completely.
        self._files = None
        if is_swap:
            self._swap(tensors, changed)
        else:
            self._start(checkpoint, tensors)
        self._files = files.digest
        self._other = None
        if self._uses_both_precisions:
            self._other = open_streamed_model(files, tensors, device=self._device, dtype=self._dtype)

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        return generate_batch(self, requests, sampling, is_wanted)

    def add(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> None:
        self._check_loaded()
        facts = self.facts
        verify_requests(requests, sampling, vocabulary=facts.vocabulary, context_max=facts.context_max)
        if self.queue == EngineQueue():
            self._sampling = sampling
            self._call_worker("prime_begin_writing", sampling)
        assert self._sampling == sampling, "the caller waits until other samplings are done"
        self._waiting += requests

    def step(self) -> list[Completion]:
        while self._waiting and len(self._writing) < self._batch_limit:
            self._submit(self._waiting.popleft())
        if self._writing:
            self._step_llm()
        done, self._finished = self._finished, []
        return done

    def cancel(self, numbers: Collection[int]) -> None:
        self._waiting = deque(request for request in self._waiting if request.number not in numbers)
        self._finished = [done for done in self._finished if done.number not in numbers]
        gone = [name for name, (request, _) in self._writing.items() if request.number in numbers]
        if gone:
            records = [self._writing.pop(name)[1] for name in gone]
            self._get_llm().abort_request(gone)
            self._call_worker("prime_forget", records)

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        self._check_loaded()
        facts = self.facts
        verify_sequences(sequences, vocabulary=facts.vocabulary, context_max=facts.context_max)
        self._drop_reading()
        self._call_worker("prime_begin_reading", sampling)
        job = self._reading = ReadingJob(deque(sequences))
        try:
            while job.waiting or job.running or job.done:
                while job.waiting and (not job.running or len(job.running) + len(self._writing) < self._batch_limit):
                    self._submit_reading(job.waiting.popleft())
                if job.running:
                    self._step_llm()
                while job.done:
                    sequence, inner = job.done.popleft()
                    yield self._read_twice(sequence, self._call_worker("prime_take_reading", inner), sampling)
        finally:
            if job is self._reading:
                self._drop_reading()

    def _drop_reading(self) -> None:
        """End the forward pass: whoever reads it is done, or has given it up."""
        job, self._reading = self._reading, ReadingJob()
        if job.running:
            self._get_llm().abort_request(list(job.running))
        if records := [inner for _, inner in (*job.running.values(), *job.done)]:
            self._call_worker("prime_forget", records)

    def _read_twice(self, sequence: TokenSequence, found: ForwardResult, sampling: Sampling) -> ForwardResult:
        """With the values of both precisions, if those of this sequence are wanted and the model is known."""
        if self._other is None or not sequence.is_read_twice:
            return found
        try:
            with torch.inference_mode():
                (other,) = forward_group(self._other, [sequence], sampling, vocabulary=self.facts.vocabulary)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("no memory to read a text in both precisions, so its noise is not judged: %s", error)
            free_memory()
            return found
        exact, rounded = (found, other) if self._other.rounds_to_bf16 else (other, found)
        return replace(exact, bf16_hidden_bits=rounded.hidden_bits, bf16_logprobs=rounded.logprobs)

    def generate_plainly(self, prompts: Sequence[list[int]], tokens_max: int) -> None:
        """vLLM's own greedy completions: what our draws, records and proofs cost is measured against them."""
        self._check_loaded()
        assert self.queue == EngineQueue(), "nothing else is generated"
        llm = self._get_llm()
        params = SamplingParams(temperature=0.0, max_tokens=tokens_max, ignore_eos=True, detokenize=False)
        for prompt in prompts:
            llm.add_request(str(next(self._numbers)), {"prompt_token_ids": prompt}, params)
        while llm.has_unfinished_requests():
            llm.step()

    # --- Weights ----------------------------------------------------------------------------------------------------

    def _start(self, checkpoint: Path, tensors: FolderTensors) -> None:
        """Start vLLM with this model, after shutting down the previous one."""
        if self._llm is not None:
            self._llm.engine_core.shutdown()
            self._llm = None
            gc.collect()
            free_memory()
        self._llm = start_vllm(checkpoint, device=self._device, dtype=self._dtype, limits=self._limits)
        self._shapes = {name: span.shape for name, (span, _) in tensors.tensors.items()}
        # Generate one token, because vLLM finds out only at the first step what its kernels cannot run.
        request = GenerateRequest(number=0, prompt=np.zeros(1, np.int32), seed=0)
        try:
            self._call_workers("prime_install", self.facts.hidden)
            self._files = ModelFiles.open(checkpoint).digest
            self._attention = str(self._call_worker("prime_get_attention"))
            list(self.generate([request], Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)))
        except (RuntimeError, ValueError) as error:
            self._files = None
            raise LocalError(f"vLLM cannot run the model in {checkpoint}: {error}") from error

    def _swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        # vLLM does not report missing tensors.
        tensors.check(self._shapes)
        # By path: the ranks of a split model are processes of their own, and each maps the files itself.
        names = None if changed is None else expand_to_layers(changed, self._shapes)
        self._call_workers("prime_load", str(tensors.folder), names)
        if not self._get_llm().reset_prefix_cache():
            raise LocalError("vLLM did not reset the prefix cache of the old weights: restart the engine")

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _submit(self, request: GenerateRequest) -> None:
        sampling, name = self._sampling, str(next(self._numbers))
        params = SamplingParams(
            temperature=0.0,
            max_tokens=sampling.tokens_max,
            stop_token_ids=sorted(sampling.eos),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        inner: str = self._get_llm().add_request(name, {"prompt_token_ids": request.prompt.tolist()}, params)
        self._call_worker("prime_write", inner, request.seed, len(request.prompt))
        self._writing[name] = request, inner

    def _submit_reading(self, sequence: TokenSequence) -> None:
        # vLLM does not compute hidden states of tokens that are in the prefix cache, as after generating them.
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=True,
        )
        name = str(next(self._numbers))
        inner: str = self._get_llm().add_request(name, {"prompt_token_ids": ForwardRecord(sequence).fed}, params)
        self._call_worker("prime_read", inner, sequence)
        self._reading.running[name] = sequence, inner

    def _step_llm(self) -> None:
        """One step of everything in vLLM. What it finishes is kept until the caller takes it."""
        llm, job = self._get_llm(), self._reading
        reading = job.running
        try:
            outputs = llm.step()
        except (RuntimeError, MemoryError) as error:
            self._leave_if_rank_died()
            # The ranks of a split model do not run out of memory at the same point, so they cannot go on.
            if self._limits.tensor_parallel > 1 or not is_out_of_memory(error):
                raise
            self._shrink(len(self._writing) + len(reading))
            llm.abort_request([*self._writing, *reading])
            self._waiting.extendleft(request for request, _ in reversed(self._writing.values()))
            job.waiting.extendleft(sequence for sequence, _ in reversed(reading.values()))
            self._call_worker("prime_forget", [inner for _, inner in (*self._writing.values(), *reading.values())])
            self._writing.clear()
            reading.clear()
            return
        for output in outputs:
            if output.request_id in reading:
                job.done.append(reading.pop(output.request_id))
            else:
                request, inner = self._writing.pop(output.request_id)
                tokens, seen = list(output.outputs[0].token_ids), self._call_worker("prime_take", inner)
                self._finished.append(build_completion(request, tokens, seen, self._sampling))

    def _shrink(self, running: int) -> None:
        if running == 1:
            raise LocalError("not enough memory for one completion: use a smaller model, or a device with more memory")
        self._batch_limit = max(1, running // 2)
        log.warning("out of memory with %d requests at once; going on with %d", running, self._batch_limit)
        free_memory()

    def _call_workers(self, method: str, *args: Any) -> None:
        """Call a method of worker.PrimeWorker on every rank, and wait for all: an error of any rank is raised."""
        self._get_llm().collective_rpc(method, args=args)

    def _call_worker(self, method: str, *args: Any) -> Any:
        """The same, with the reply of the first rank alone: it keeps the records, and replies may be large."""
        if self._limits.tensor_parallel == 1:
            return self._get_llm().collective_rpc(method, args=args)[0]
        try:
            return self._get_llm().model_executor.collective_rpc(method, args=args, unique_reply_rank=0)
        except RuntimeError:
            self._leave_if_rank_died()
            raise

    def _leave_if_rank_died(self) -> None:
        """Else the death would look like an error of the job, which would not be tried again."""
        executor = self._get_llm().model_executor
        if isinstance(executor, MultiprocExecutor) and executor.is_failed:
            leave()

    def _get_llm(self) -> LLMEngine:
        assert self._llm is not None, "load comes first"
        return self._llm

    def _check_loaded(self) -> None:
        if self._files is None:
            raise LocalError("no checkpoint is loaded whole: load one")


def build_completion(
    request: GenerateRequest, tokens: list[int], seen: GenerationRecord, sampling: Sampling
) -> Completion:
    """Combine vLLM's output with our record of it. The two must agree."""
    if tokens != seen.tokens:
        raise LocalError(
            f"vLLM wrote {len(tokens)} tokens and {len(seen.tokens)} were drawn: this version of vLLM is not supported"
        )
    is_ended = tokens[-1] in sampling.eos
    assert is_ended or len(tokens) == sampling.tokens_max
    return Completion(
        number=request.number,
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(seen.logprobs, np.float32),
        finish=FinishReason.EOS if is_ended else FinishReason.LENGTH,
        proofs=seen.finish(),
    )


def free_memory() -> None:
    """Release GPU memory that torch has cached: it may be too fragmented to be reused."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
