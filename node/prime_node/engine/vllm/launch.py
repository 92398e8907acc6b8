"""Starts vLLM with our worker and our options, on one device or with the model split over several.

vLLM and its ranks read some options from the environment: process.py has them.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from vllm import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from prime_node.engine.placement import GPU_MEMORY_SHARE
from prime_node.engine.vllm import worker as vllm_worker
from prime_protocol.errors import LocalError

log = logging.getLogger(__name__)

BATCH_MAX = 256
"""Default of requests at once."""
CPU_STEP_TOKENS = 4096
"""Tokens per step on a CPU. More is not faster there, and takes memory."""
CPU_CACHE_BYTES_MAX = 4 * 2**30
CPU_CACHE_SHARE = 4
"""The KV cache takes at most a quarter of the free memory: the machine has other work."""
RANK_DIED_EXIT = 70
"""Exit code of this process when a rank of a split model has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLimits:
    """What vLLM may use. None: vLLM's default, or on a CPU ours."""

    batch_max: int | None = None
    step_tokens: int | None = None
    """Tokens per step. A longer prompt is prefilled in parts."""
    cache_bytes: int | None = None
    """Size of the KV cache on each device. When it is full, vLLM preempts requests."""
    memory_share: float = GPU_MEMORY_SHARE
    kv_dtype: str = "auto"
    """Type of cached keys and values; auto is that of the model."""
    tensor_parallel: int = 1
    """Devices that the model is split over; on a CPU, processes."""


NO_LIMITS = VllmLimits()


def start_vllm(checkpoint: Path, *, device: torch.device, dtype: torch.dtype, limits: VllmLimits) -> LLMEngine:
    """Start vLLM with the model of a checkpoint folder. LocalError if it does not start."""
    quiet_vllm_logs()
    is_cpu = current_platform.is_cpu()
    batch_max = limits.batch_max or BATCH_MAX
    step_tokens = limits.step_tokens or (max(CPU_STEP_TOKENS, batch_max) if is_cpu else None)
    executor: type[Executor] = UniProcExecutor if limits.tensor_parallel == 1 else MultiprocExecutor
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
            kv_cache_dtype=limits.kv_dtype,
            enforce_eager=is_cpu,
            async_scheduling=False,
            enable_prefix_caching=True,
            disable_log_stats=True,
            gpu_memory_utilization=limits.memory_share,
            tensor_parallel_size=limits.tensor_parallel,
            worker_extension_cls=vllm_worker.WORKER_CLASS,
            enable_batch_sharded_sampling=False,
            distributed_executor_backend=executor,
        )
        config = args.create_engine_config()
        if not config.use_v2_model_runner:
            config.model_config.logits_processors = [vllm_worker.PROCESSOR_CLASS]
        if is_cpu and limits.cache_bytes is None:
            cache_bytes = get_cpu_cache_bytes(config.model_config, batch_max)
            config.cache_config.kv_cache_memory_bytes = cache_bytes // limits.tensor_parallel
        if device.index is not None:
            config.device_config.device = device
        engine = LLMEngine(config, executor, log_stats=False, multiprocess_mode=False)
    except (ValueError, RuntimeError, OSError, AssertionError) as error:
        raise LocalError(f"vLLM does not start with the model in {checkpoint}: {error}") from error
    if isinstance(engine.model_executor, MultiprocExecutor):
        engine.model_executor.register_failure_callback(leave)
    quiet_vllm_logs()
    return engine


def leave() -> NoReturn:
    """End this process: a rank has died, and the others wait for it in a collective operation for ever."""
    log.error("a rank of the split model has died: the engine ends, and the node starts it again")
    os._exit(RANK_DIED_EXIT)


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
