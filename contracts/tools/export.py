"""Put what forge compiled into the Python package: whoever runs a network needs no compiler.

cd contracts && forge build && python tools/export.py
"""

import json
from pathlib import Path
from typing import Any

CONTRACTS = Path(__file__).parent.parent
SHIPPED = CONTRACTS.parent / "protocol" / "prime_protocol" / "abi"
NAMES = ("Court", "LogAnchor", "RewardPool", "RunRegistry", "StakeVault", "TestToken")


def compiled(name: str) -> dict[str, Any]:
    """What ships of one contract, from forge's own output."""
    artifact = json.loads((CONTRACTS / "out" / f"{name}.sol" / f"{name}.json").read_text())
    compiler = artifact["metadata"]["compiler"]["version"]
    return {
        "contract": name,
        "compiler": compiler,
        "abi": artifact["abi"],
        "bytecode": artifact["bytecode"]["object"],
    }


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for name in NAMES:
        (SHIPPED / f"{name}.json").write_text(text_of(compiled(name)))
