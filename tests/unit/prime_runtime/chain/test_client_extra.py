"""web3 is an extra: asked for by name where it is missing, and imported only where a chain is."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_without_web3_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["web3"] = None
from prime_protocol.errors import LocalError
try:
    import prime_runtime.chain.client
except LocalError as error:
    print(error)
"""
    assert "pip install prime-swarm[evm]" in run(code)


@pytest.mark.parametrize("module", ["prime_coordinator.app", "prime_node.cli.stake", "prime_lab.devnet.run"])
def test_programs_do_not_import_it_before_there_is_a_chain(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('web3', 'eth_account') if name in sys.modules])"
    assert run(code) == "[]\n"
