"""Foundry's own tests of the contracts, with few runs each (`make contracts`: 10,000); what ships is what compiles."""

import fcntl
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

CONTRACTS = Path(__file__).parents[2] / "contracts"
FORGE = CONTRACTS / "node_modules" / ".bin" / "forge"


def load_export() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export", CONTRACTS / "tools" / "export.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXPORT = load_export()


def run(*command: str) -> str:
    # One at a time, whichever process of the test run it is: two would compile into the same folder.
    with (CONTRACTS / "foundry.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=CONTRACTS, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def forge() -> str:
    """The forge of the lock file, installed if it is not there."""
    if not FORGE.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed; the contracts' toolchain comes from it")
        run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    return str(FORGE)


@pytest.mark.timeout(600)
def test_contracts_keep_their_own_tests(forge: str) -> None:
    suites = json.loads(run(forge, "test", "--json"))
    results = {name: result["status"] for suite in suites.values() for name, result in suite["test_results"].items()}
    assert len(results) > 80, sorted(results)
    assert set(results.values()) == {"Success"}, results


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXPORT.NAMES)
def test_shipped_json_is_what_the_sources_compile_to(forge: str, name: str) -> None:
    run(forge, "build")
    shipped = (EXPORT.SHIPPED / f"{name}.json").read_text()
    assert shipped == EXPORT.text_of(EXPORT.compiled(name)), "run `make contracts` and commit prime_protocol/abi"


def test_nothing_but_the_listed_contracts_ships() -> None:
    assert sorted(path.stem for path in EXPORT.SHIPPED.glob("*.json")) == sorted(EXPORT.NAMES)
