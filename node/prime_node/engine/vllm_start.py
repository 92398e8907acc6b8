"""How vLLM is started: which of its ways are taken, and which are shut because they would spoil the record.

One process, one device, no asynchronous scheduling, no guessing ahead: then each step gives at most one token to each
request, and vllm_worker.py sees it. Prompts read in parts, requests put aside and a shared cache of prefixes are fine.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import EngineArgs, envs
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from prime_node.engine import vllm_sampling, vllm_worker
from prime_protocol.errors import LocalError

BATCH_MAX = 256
"""Requests at once, where nobody says otherwise."""
CPU_STEP_TOKENS = 4096
"""Tokens of one step on a CPU. More is not faster there, and takes memory."""
CPU_CACHE_BYTES_MAX = 4 * 2**30
CPU_CACHE_SHARE = 4
"""The cache of keys and values takes at most a quarter of the free memory: the machine has other work."""
GPU_MEMORY_SHARE = 0.85
"""Of a GPU's memory. vLLM's own 0.9 leaves too little for the logits of a text that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What vLLM may use. None: as much as it likes, or for a CPU what is worth having."""

    batch_max: int | None = None
    step_tokens: int | None = None
    """Tokens of one step. A longer prompt is read in parts."""
    cache_bytes: int | None = None
    """For keys and values. Where they do not fit, requests are put aside and taken up later."""


def start(checkpoint: Path, *, device: torch.device, dtype: torch.dtype, limits: Limits) -> LLMEngine:
    """vLLM with the model of a checkpoint folder. LocalError where it does not start."""
    settle()
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
            worker_extension_cls=vllm_worker.NAME,
            logits_processors=[vllm_sampling.NAME],
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
    hush()
    return engine


def settle() -> None:
    """vLLM reads these from the environment; set here, they hold however this process was started."""
    envs.VLLM_USE_V2_MODEL_RUNNER = False
    envs.VLLM_ENABLE_V1_MULTIPROCESSING = False
    # It would tell its makers about this machine.
    envs.VLLM_NO_USAGE_STATS = True
    hush()


def hush() -> None:
    """Warnings only. vLLM sets its own levels while it starts, so this is said twice."""
    logging.getLogger("vllm").setLevel(logging.WARNING)
    # One warning for each layer that is left as it is, which is what was asked for.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


def choose_vllm_device(name: str) -> torch.device:
    """A build of vLLM is for one kind of device. A GPU's number counts among those that the process sees."""
    kind, built_for = name.partition(":")[0], current_platform.device_type
    if kind not in ("auto", built_for) or not built_for:
        raise LocalError(
            f"this vLLM runs on {built_for or 'no device here'}, not on {kind}: "
            "install the build for it, or use the torch engine"
        )
    return torch.device(built_for if kind == "auto" else name)


def get_cpu_cache_bytes(model: Any, batch_max: int) -> int:
    """Room for a full batch at full length, or what can be spared. vLLM fills all of it with zeros when it starts."""
    heads, head_bytes = model.get_total_num_kv_heads(), model.get_head_size() * model.dtype.itemsize
    token_bytes = 2 * model.hf_text_config.num_hidden_layers * heads * head_bytes
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return int(min(token_bytes * model.max_model_len * (batch_max + 1), free // CPU_CACHE_SHARE, CPU_CACHE_BYTES_MAX))
