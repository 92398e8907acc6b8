"""The vLLM engine: in this process, with our sampling, our record of hidden states, and weights swapped in place.

vLLM schedules, keeps the cache and runs the model; worker.py draws the tokens and records the hidden states. It runs in
one process on one device, without asynchronous scheduling or speculative decoding: then each step produces at most one
token per request, and the worker sees it. Chunked prefill, preemption and prefix caching are allowed. Requests are
submitted as earlier ones finish, so that a machine which runs out of memory can continue with a smaller batch. A
sequence to be read shares its steps with the completions in progress.
"""

import gc
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import EngineArgs, SamplingParams, envs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.uniproc_executor import UniProcExecutor

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
from prime_node.engine.torch.device import choose_precision, is_out_of_memory
from prime_node.engine.torch.forward import verify_sequences
from prime_node.engine.torch.model import FolderTensors
from prime_node.engine.vllm import worker as vllm_sampling
from prime_node.engine.vllm import worker as vllm_worker
from prime_node.engine.vllm.records import ForwardRecord, GenerationRecord, expand_to_layers
from prime_protocol.errors import LocalError
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.ids import Digest
from prime_runtime.model_files import ModelFiles

log = logging.getLogger(__name__)


BATCH_MAX = 256
"""Default of requests at once."""
CPU_STEP_TOKENS = 4096
"""Tokens per step on a CPU. More is not faster there, and takes memory."""
CPU_CACHE_BYTES_MAX = 4 * 2**30
CPU_CACHE_SHARE = 4
"""The KV cache takes at most a quarter of the free memory: the machine has other work."""
GPU_MEMORY_SHARE = 0.85
"""Share of a GPU's memory. vLLM's default of 0.9 leaves too little for the logits of a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLimits:
    """What vLLM may use. None: vLLM's default, or on a CPU ours."""

    batch_max: int | None = None
    step_tokens: int | None = None
    """Tokens per step. A longer prompt is prefilled in parts."""
    cache_bytes: int | None = None
    """Size of the KV cache. When it is full, vLLM preempts requests."""


def start_vllm(checkpoint: Path, *, device: torch.device, dtype: torch.dtype, limits: VllmLimits) -> LLMEngine:
    """Start vLLM with the model of a checkpoint folder. LocalError if it does not start."""
    set_vllm_options()
    is_cpu = current_platform.is_cpu()
    batch_max = limits.batch_max or BATCH_MAX
    step_tokens = limits.step_tokens or (max(CPU_STEP_TOKENS, batch_max) if is_cpu else None)
    try:
        args = EngineArgs(
            model=str(checkpoint),
            dtype=dtype,
            load_format="safetensors",
            skip_tokenizer_init=True,
            generation_config="vllm",
            max_model_len=-1,
            max_num_seqs=batch_max,
            max_num_batched_tokens=step_tokens,
            kv_cache_memory_bytes=limits.cache_bytes,
            enforce_eager=is_cpu,
            async_scheduling=False,
            enable_prefix_caching=True,
            disable_log_stats=True,
            gpu_memory_utilization=GPU_MEMORY_SHARE,
            worker_extension_cls=vllm_worker.WORKER_CLASS,
            logits_processors=[vllm_sampling.PROCESSOR_CLASS],
            distributed_executor_backend=UniProcExecutor,
        )
        config = args.create_engine_config()
        if is_cpu and limits.cache_bytes is None:
            config.cache_config.kv_cache_memory_bytes = get_cpu_cache_bytes(config.model_config, batch_max)
        if device.index is not None:
            config.device_config.device = device
        engine = LLMEngine(config, UniProcExecutor, log_stats=False, multiprocess_mode=False)
    except (ValueError, RuntimeError, OSError) as error:
        raise LocalError(f"vLLM does not start with the model in {checkpoint}: {error}") from error
    quiet_vllm_logs()
    return engine


def set_vllm_options() -> None:
    """vLLM reads these options from the environment; setting them here is independent of how this process started."""
    envs.VLLM_USE_V2_MODEL_RUNNER = False
    envs.VLLM_ENABLE_V1_MULTIPROCESSING = False
    # Otherwise vLLM would send usage statistics to its developers.
    envs.VLLM_NO_USAGE_STATS = True
    quiet_vllm_logs()


def quiet_vllm_logs() -> None:
    """Warnings only. vLLM sets its own levels while it starts, so this is called before and after."""
    logging.getLogger("vllm").setLevel(logging.WARNING)
    # It warns for each layer that is left unchanged, which is intended.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


def choose_vllm_device(name: str) -> torch.device:
    """A build of vLLM supports one kind of device. A GPU's number is relative to those that the process sees."""
    kind, built_for = name.partition(":")[0], current_platform.device_type
    if kind not in ("auto", built_for) or not built_for:
        raise LocalError(
            f"this vLLM runs on {built_for or 'no device here'}, not on {kind}: "
            "install the build for it, or use the torch engine"
        )
    return torch.device(built_for if kind == "auto" else name)


def get_cpu_cache_bytes(model: Any, batch_max: int) -> int:
    """Enough for a full batch at full length, within our limits: vLLM writes zeros to all of it when it starts."""
    heads, head_bytes = model.get_total_num_kv_heads(), model.get_head_size() * model.dtype.itemsize
    token_bytes = 2 * model.hf_text_config.num_hidden_layers * heads * head_bytes
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return int(min(token_bytes * model.max_model_len * (batch_max + 1), free // CPU_CACHE_SHARE, CPU_CACHE_BYTES_MAX))


Readings = dict[str, tuple[TokenSequence, str]]
"""Sequences in vLLM by the name that they were submitted under, with vLLM's internal request id."""


class VllmEngine:
    """One model in vLLM on one device."""

    def __init__(
        self,
        *,
        device: str = "auto",
        precision: str = "float32",
        threads: int = 1,
        batch_max: int | None = None,
        step_tokens: int | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._device = choose_vllm_device(device)
        self._dtype = choose_precision(precision, self._device)
        self._limits = VllmLimits(batch_max=batch_max, step_tokens=step_tokens, cache_bytes=cache_bytes)
        self._batch_limit = batch_max or BATCH_MAX
        """Requests at once. It shrinks when memory runs out, and does not grow again."""
        self._llm: LLMEngine | None = None
        self._files: Digest | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._numbers = count()
        self._sampling = Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)
        """Of the queued completions."""
        self._waiting: deque[GenerateRequest] = deque()
        self._writing: dict[str, tuple[GenerateRequest, str]] = {}
        """Completions in vLLM, as in Readings."""
        self._finished: list[Completion] = []

    @property
    def facts(self) -> EngineFacts:
        config = self._get_llm().model_config
        return EngineFacts(
            engine="vllm",
            device=str(self._device),
            precision=str(self._dtype).removeprefix("torch."),
            hidden=config.get_hidden_size(),
            vocabulary=config.get_vocab_size(),
            context_max=config.max_model_len,
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
        is_swap = self._llm is not None and files.digest == self._files
        # If loading fails, no job runs until a checkpoint has been loaded completely.
        self._files = None
        if is_swap:
            self._swap(tensors, changed)
        else:
            self._start(checkpoint, tensors)
        self._files = files.digest

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
            self._step_llm({}, deque())
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
        self._call_worker("prime_begin_reading", sampling)
        waiting, reading = deque(sequences), Readings()
        try:
            while waiting or reading:
                while waiting and (not reading or len(reading) + len(self._writing) < self._batch_limit):
                    self._submit_reading(waiting.popleft(), reading)
                for inner in self._step_llm(reading, waiting):
                    yield self._call_worker("prime_take_reading", inner)
        finally:
            self._get_llm().abort_request(list(reading))

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
            self._call_worker("prime_install", self.facts.hidden)
            self._files = ModelFiles.open(checkpoint).digest
            list(self.generate([request], Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)))
        except (RuntimeError, ValueError) as error:
            self._files = None
            raise LocalError(f"vLLM cannot run the model in {checkpoint}: {error}") from error

    def _swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        # vLLM does not report missing tensors.
        tensors.check(self._shapes)
        self._call_worker("prime_load", tensors, None if changed is None else expand_to_layers(changed, self._shapes))
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
        self._call_worker("prime_write", inner, request.seed)
        self._writing[name] = request, inner

    def _submit_reading(self, sequence: TokenSequence, reading: Readings) -> None:
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
        reading[name] = sequence, inner

    def _step_llm(self, reading: Readings, waiting: deque[TokenSequence]) -> list[str]:
        """One step of everything in vLLM. Finished completions are kept; returns the finished readings."""
        llm = self._get_llm()
        try:
            outputs = llm.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._shrink(len(self._writing) + len(reading))
            llm.abort_request([*self._writing, *reading])
            self._waiting.extendleft(request for request, _ in reversed(self._writing.values()))
            waiting.extendleft(sequence for sequence, _ in reversed(reading.values()))
            self._call_worker("prime_forget", [inner for _, inner in (*self._writing.values(), *reading.values())])
            self._writing.clear()
            reading.clear()
            return []
        read = []
        for output in outputs:
            if output.request_id in reading:
                read.append(reading.pop(output.request_id)[1])
            else:
                request, inner = self._writing.pop(output.request_id)
                tokens, seen = list(output.outputs[0].token_ids), self._call_worker("prime_take", inner)
                self._finished.append(build_completion(request, tokens, seen, self._sampling))
        return read

    def _shrink(self, running: int) -> None:
        if running == 1:
            raise LocalError("not enough memory for one completion: use a smaller model, or a device with more memory")
        self._batch_limit = max(1, running // 2)
        log.warning("out of memory with %d requests at once; going on with %d", running, self._batch_limit)
        free_memory()

    def _call_worker(self, method: str, *args: Any) -> Any:
        """Call a method of worker.PrimeWorker."""
        return self._get_llm().collective_rpc(method, args=args)[0]

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
