"""The compiled kernels of the torch engine, if the machine that installed it had a C compiler.

The C sources stand beside this file; `hatch_build.py` makes one shared library of each at install time. Where
`library()` is None, torch computes the same. Calls are short and keep the interpreter to themselves: to let go of it
and get it back costs more than most of them.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any


@cache
def library(name: str) -> ctypes.PyDLL | None:
    """The kernels of `name`.c, or None where they were not built or do not load on this machine."""
    path = Path(__file__).with_name(f"{name}.so")
    try:
        return ctypes.PyDLL(str(path))
    except OSError:
        return None


def bind(name: str, function: str, *types: Any) -> Any:
    """One function of `name`.c that gives nothing back; None where it was not built."""
    kernels = library(name)
    if kernels is None:
        return None
    kernel = getattr(kernels, function)
    kernel.argtypes, kernel.restype = list(types), None
    return kernel
