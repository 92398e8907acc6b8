"""Compile the C kernels while the package is built. Without a compiler numpy, or torch, computes the same."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = ("protocol/prime_protocol/native", "node/prime_node/engine/native")
# No -march=native: the wheel must run elsewhere. Wide instructions are chosen at run time, inside the sources.
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


class KernelsHook(BuildHookInterface[Any]):
    """Adds a shared library per C file to the wheel, or leaves them out and says so."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or not sys.platform.startswith("linux"):
            self.app.display_warning("no C compiler: the slower kernels of numpy and torch will be used")
            return
        for source in sorted(path for folder in NATIVE for path in (Path(self.root) / folder).glob("*.c")):
            library = source.with_suffix(".so")
            subprocess.run([compiler, *FLAGS, "-o", str(library), str(source), "-lm"], check=True)
            build_data["artifacts"].append(f"/{library.relative_to(self.root)}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
