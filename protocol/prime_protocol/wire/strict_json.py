"""Untrusted JSON, read strictly: UTF-8, no repeated names, finite numbers, whole characters, bounded depth.

The depth is counted before the parser runs. Python's own parser recurses in C and relies on the recursion limit, which
libraries raise; beyond the end of the stack the process crashes.
"""

import json
import re
from typing import NoReturn

from prime_protocol.constants import JSON_DEPTH_MAX
from prime_protocol.errors import RemoteError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_json(field: str, data: bytes) -> Json:
    """One JSON value, or RemoteError about `field`."""

    def refuse(text: str) -> NoReturn:
        raise RemoteError(field, f"holds {text}, which is not a JSON number")

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        # Two parsers may choose different values for a repeated name, so repeated names are refused.
        names = dict(pairs)
        if len(names) != len(pairs):
            raise RemoteError(field, "has a name twice")
        return names

    if compute_depth(data) > JSON_DEPTH_MAX:
        raise RemoteError(field, f"nests deeper than {JSON_DEPTH_MAX}")
    try:
        value: Json = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=refuse)
        # JSON text may hold half a surrogate pair, which no encoder takes, and 1e999, which becomes infinity.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise RemoteError(field, f"is not JSON: {type(error).__name__}") from None
    return value


def compute_depth(data: bytes) -> int:
    """How deep the brackets outside of strings nest, whether or not the text is JSON."""
    import numpy as np  # here, because settings reach this module and `--help` must not wait for numpy

    marks = np.frombuffer(STRING.sub(b"", data), np.uint8)
    steps = np.isin(marks, np.frombuffer(b"[{", np.uint8)).astype(np.int64) - np.isin(
        marks, np.frombuffer(b"]}", np.uint8)
    )
    return int(np.cumsum(steps).max(initial=0))
