"""The compiled kernels of this package, if a C compiler was available when it was installed.

The C sources are in this folder; `hatch_build.py` builds one shared library from each. Every caller has a numpy version
of the same computation, equal bit by bit, and uses it if `library()` is None.
"""

import ctypes
from functools import cache
from pathlib import Path


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The kernels of `name`.c, or None where they were not built or do not load on this machine."""
    path = Path(__file__).with_name(f"{name}.so")
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None
