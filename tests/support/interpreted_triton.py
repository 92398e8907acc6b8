"""Lets vLLM's second model runner work on a CPU without a compiler for Triton: its kernels run in Triton's interpreter.

vLLM looks for a backend of Triton named cpu, which no wheel on PyPI has. The interpreter needs none. The interpreter of
.vllm has no Triton either, so the process gets that of .venv by a folder with a link; see `make_triton_folder`.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

VARIABLES = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
"""Environment of the process."""


def make_triton_folder(folder: Path) -> Path:
    """A folder for PYTHONPATH with this interpreter's Triton, and nothing else of its packages."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    folder.mkdir()
    (folder / "triton").symlink_to(Path(spec.origin).parent)
    return folder


def offer_interpreter() -> None:
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
