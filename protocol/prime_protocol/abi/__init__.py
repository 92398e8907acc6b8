"""The contracts as compiled: ABI and creation bytecode, one JSON file each, made by contracts/tools/export.py."""

import json
from importlib.resources import files
from typing import Any


def load(name: str) -> dict[str, Any]:
    """`contract`, `compiler`, `abi` and `bytecode` of one contract."""
    document: dict[str, Any] = json.loads(files(__name__).joinpath(f"{name}.json").read_text())
    return document
