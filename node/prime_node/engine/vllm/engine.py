"""The vLLM engine: in this process, with our sampling, our record of hidden states, and weights swapped in place.

vLLM schedules, keeps the cache and runs the model; worker.py draws the tokens and records the hidden states. It runs in
one process on one device, without asynchronous scheduling or speculative decoding: then each step produces at most one
token per request, and the worker sees it. Chunked prefill, preemption and prefix caching are allowed. Requests are
submitted a batch at a time, so that a machine which runs out of memory can continue with a smaller batch.
"""

import gc
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from vllm import EngineArgs, SamplingParams, envs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from prime_node.engine.interface import (
    Completion,
    EngineFacts,
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


Item = TypeVar("Item", GenerateRequest, TokenSequence)


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

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
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
        self._check_loaded()
        yield from self._generate(requests, sampling, is_wanted)

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        self._check_loaded()
        facts = self.facts
        verify_sequences(sequences, vocabulary=facts.vocabulary, context_max=facts.context_max)
        self._call_worker("prime_begin", sampling)
        # vLLM does not compute hidden states of tokens that are in the prefix cache, as after generating them.
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=True,
        )

        def submit(sequence: TokenSequence, name: str) -> str:
            inner: str = self._get_llm().add_request(name, {"prompt_token_ids": ForwardRecord(sequence).fed}, params)
            self._call_worker("prime_read", inner, sequence)
            return inner

        for _, inner, _ in self._run(sequences, submit, lambda: True):
            yield self._call_worker("prime_take_reading", inner)

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
            list(self._generate([request], Sampling(temperature=0.0, eos=frozenset(), tokens_max=1), lambda: True))
        except (RuntimeError, ValueError) as error:
            raise LocalError(f"vLLM cannot run the model in {checkpoint}: {error}") from error

    def _swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        # vLLM does not report missing tensors.
        tensors.check(self._shapes)
        self._call_worker("prime_load", tensors, None if changed is None else expand_to_layers(changed, self._shapes))
        if not self._get_llm().reset_prefix_cache():
            raise LocalError("vLLM did not reset the prefix cache of the old weights: restart the engine")

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool]
    ) -> Iterator[Completion]:
        facts = self.facts
        verify_requests(requests, sampling, vocabulary=facts.vocabulary, context_max=facts.context_max)
        self._call_worker("prime_begin", sampling)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=sampling.tokens_max,
            stop_token_ids=sorted(sampling.eos),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

        def submit(request: GenerateRequest, name: str) -> str:
            inner: str = self._get_llm().add_request(name, {"prompt_token_ids": request.prompt.tolist()}, params)
            self._call_worker("prime_write", inner, request.seed)
            return inner

        for request, inner, tokens in self._run(requests, submit, is_wanted):
            yield build_completion(request, tokens, self._call_worker("prime_take", inner), sampling)

    def _run(
        self, items: Sequence[Item], submit: Callable[[Item, str], str], is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[Item, str, list[int]]]:
        """Items with vLLM's internal request id and the tokens it generated, in the order in which they finish."""
        llm, waiting = self._get_llm(), deque(items)
        running: dict[str, tuple[Item, str]] = {}
        try:
            while (waiting or running) and is_wanted():
                while waiting and len(running) < self._batch_limit:
                    name, item = str(next(self._numbers)), waiting.popleft()
                    running[name] = item, submit(item, name)
                try:
                    outputs = llm.step()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    self._shrink(len(running))
                    llm.abort_request(list(running))
                    waiting.extendleft(item for item, _ in reversed(running.values()))
                    running.clear()
                    continue
                for output in outputs:
                    item, inner = running.pop(output.request_id)
                    yield item, inner, list(output.outputs[0].token_ids)
        finally:
            llm.abort_request(list(running))

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
