"""Hostile JSON, read strictly: UTF-8, no name twice, finite numbers, whole characters, and not deep.

The depth is counted before the parser runs. Python's own parser recurses in C and trusts the recursion limit, which
libraries raise; past the end of the stack it takes the process with it.
"""

import json
import re
from typing import NoReturn

import numpy as np

from prime_protocol.constants import JSON_DEPTH_MAX
from prime_protocol.errors import RemoteError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
OPENING, CLOSING = np.frombuffer(b"[{", np.uint8), np.frombuffer(b"]}", np.uint8)


def parse_json(field: str, data: bytes) -> Json:
    """One JSON value, or RemoteError about `field`."""

    def refuse(text: str) -> NoReturn:
        raise RemoteError(field, f"holds {text}, which is not a JSON number")

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        # Two readers of a repeated name may take different values, so there is none.
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
    marks = np.frombuffer(STRING.sub(b"", data), np.uint8)
    steps = np.isin(marks, OPENING).astype(np.int64) - np.isin(marks, CLOSING)
    return int(np.cumsum(steps).max(initial=0))
