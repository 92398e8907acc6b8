"""The C kernels of the torch engine, if the machine that installed it had a C compiler.

The C sources are in this folder; `hatch_build.py` compiles one shared library from each at install time. Where
`library()` returns None, torch computes the same. ctypes.PyDLL keeps the interpreter lock during a call: releasing and
taking it costs more than most of these calls.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any


@cache
def library(name: str) -> ctypes.PyDLL | None:
    """The kernels of `name`.c; None if they were not compiled or do not load on this machine."""
    path = Path(__file__).with_name(f"{name}.so")
    try:
        return ctypes.PyDLL(str(path))
    except OSError:
        return None


def bind(name: str, function: str, *types: Any) -> Any:
    """One function of `name`.c without a return value; None if it was not compiled."""
    kernels = library(name)
    if kernels is None:
        return None
    kernel = getattr(kernels, function)
    kernel.argtypes, kernel.restype = list(types), None
    return kernel
