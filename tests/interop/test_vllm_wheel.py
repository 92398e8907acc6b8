"""Whether the newest vLLM for GPUs still has what our hooks need. Its wheel is downloaded and read, never run.

    SLOW_TESTS=1 python -m pytest tests/interop/test_vllm_wheel.py

The names come from the code that uses them, and a failure says which hook is missing where. vllm/runners.py names the
versions that were checked: a newer one that passes can be entered there.
"""

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_node.engine.vllm.runners import VLLM_TESTED, FirstRunner, SecondRunner

slow = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="downloads 340 MB: SLOW_TESTS=1")
ENGINE = Path(__file__).parents[2] / "node" / "prime_node" / "engine" / "vllm"
FIRST, SECOND = "vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py"
HOOKS = (
    (FIRST, "GPUModelRunner", (*FirstRunner.NEEDS, "get_model", "reload_weights")),
    (FIRST, "ExecuteModelState", ("hidden_states", "sample_hidden_states")),
    ("vllm/v1/worker/gpu_input_batch.py", "InputBatch", ("num_computed_tokens_cpu", "logitsprocs", "req_ids")),
    (SECOND, "GPUModelRunner", (*SecondRunner.NEEDS, "get_model", "reload_weights")),
    (SECOND, "ExecuteModelState", SecondRunner.STATE_NEEDS),
    ("vllm/v1/worker/gpu/input_batch.py", "InputBatch", SecondRunner.BATCH_NEEDS),
    ("vllm/v1/worker/gpu/sample/sampler.py", "Sampler", ("sample",)),
    ("vllm/v1/worker/gpu_worker.py", "Worker", ("reload_weights", "model_runner")),
    ("vllm/v1/engine/llm_engine.py", "LLMEngine", ("add_request", "abort_request", "step", "reset_prefix_cache")),
    ("vllm/v1/engine/llm_engine.py", "LLMEngine", ("collective_rpc", "model_executor", "engine_core")),
    ("vllm/v1/executor/multiproc_executor.py", "MultiprocExecutor", ("is_failed", "register_failure_callback")),
    ("vllm/config/vllm.py", "VllmConfig", ("use_v2_model_runner", "device_config", "cache_config", "model_config")),
    ("vllm/config/model.py", "ModelConfig", ("logits_processors", "head_dtype", "max_model_len")),
    ("vllm/config/cache.py", "CacheConfig", ("kv_cache_memory_bytes", "num_gpu_blocks", "block_size")),
)
"""File, class, and what our code takes from it."""


def find_calls(module: str, name: str) -> Iterator[str]:
    """Keywords that one of our modules passes to a class of vLLM."""
    for node in ast.walk(ast.parse((ENGINE / module).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def list_members(source: str, name: str) -> set[str]:
    """Methods, fields and attributes of a class, also those that its methods set."""
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    members = {node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute)}
    for node in found.body:
        if isinstance(node, ast.FunctionDef):
            members.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members.add(node.target.id)
    return members


def find_missing(sources: zipfile.ZipFile) -> Iterator[str]:
    given = {
        ("vllm/engine/arg_utils.py", "EngineArgs"): set(find_calls("launch.py", "EngineArgs")),
        ("vllm/sampling_params.py", "SamplingParams"): set(find_calls("engine.py", "SamplingParams")),
    }
    assert all(given.values())
    for file, name, wanted in (*HOOKS, *((*place, tuple(names)) for place, names in given.items())):
        try:
            members = list_members(sources.read(file).decode(), name)
        except (KeyError, ValueError):
            yield f"{file} has no class {name}"
            continue
        yield from (f"{name} in {file} has no {each}" for each in sorted(set(wanted) - members))
    if "self.sampler(logits, input_batch)" not in sources.read(SECOND).decode():
        yield f"{SECOND} does not sample by self.sampler(logits, input_batch)"


@slow
@pytest.mark.timeout(900)
def test_the_newest_vllm_for_gpus_has_all_hooks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "vllm", "--no-deps", "--only-binary", ":all:", "--quiet"]
    platforms = [word for tag in ("2_28", "2_31", "2_35") for word in ("--platform", f"manylinux_{tag}_x86_64")]
    subprocess.run([*command, "--dest", str(tmp_path), *platforms], check=True, timeout=800)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as sources:
        missing = list(find_missing(sources))
    assert not missing, f"{wheel.name}: {'; '.join(missing)}"
    version = wheel.name.split("-")[1]
    assert version == VLLM_TESTED[1], f"vLLM {version} has all hooks: enter it in VLLM_TESTED of vllm/runners.py"


def test_a_missing_hook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr(SECOND, "class GPUModelRunner:\n    sampler: int\n")
    with zipfile.ZipFile(path) as sources:
        missing = list(find_missing(sources))
    assert f"GPUModelRunner in {SECOND} has no execute_model_state" in missing
    assert f"{FIRST} has no class GPUModelRunner" in missing
    assert f"{SECOND} does not sample by self.sampler(logits, input_batch)" in missing
