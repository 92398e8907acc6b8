"""`prime-coordinator explorer`: anyone's own pages over a copy of somebody's log, from a folder or from a URL."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.cli.main import main
from prime_protocol.ledger.entries import Outcome, Role
from support.explorer_index import mirror
from support.ledger_network import RUN, World

WAIT_S = 60.0


@contextmanager
def exploring(log: str | Path, keep: Path, *words: str) -> Iterator[str]:
    """The command, until it serves; its address."""
    command = [sys.executable, "-m", "prime_coordinator.cli.main", "explorer", "--log", str(log), "--keep", str(keep)]
    process = subprocess.Popen([*command, "--port", "0", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, said
        yield found[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def until(url: str, holds: str) -> str:
    """Ask until the page says it."""
    end = time.monotonic() + WAIT_S
    text = ""
    while time.monotonic() < end:
        try:
            text = get(url)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        if holds in text:
            return text
        time.sleep(0.1)
    raise AssertionError(f"{url} never said {holds!r}: {text[-2000:]}")


def page(url: str, path: str) -> Any:
    return json.loads(get(f"{url}/api/v1{path}"))


@pytest.fixture
def world() -> World:
    world = World.started()
    world.settled("ann", Outcome.ACCEPT)
    return world


def test_a_copy_of_a_log_is_explored_from_a_folder_and_from_a_url_and_followed(tmp_path: Path, world: World) -> None:
    log = mirror(tmp_path / "log", world.leaves)
    with exploring(log, tmp_path / "first") as first:
        until(f"{first}/about", f"replayed {len(world.leaves)} of them")
        with exploring(f"{first}/log", tmp_path / "second") as second:
            until(f"{second}/about", f"replayed {len(world.leaves)} of them")
            for path in (f"/nodes/{world.id('ann')}", f"/runs/{RUN}", "/log/3", "/slashes"):
                assert page(first, path) == page(second, path)
            assert "unknown in a copy of the log" in get(f"{second}/nodes")
            assert "cannot show it" in get(f"{second}/network")
            for _ in range(300):
                world.register(f"more-{world.state.size}", Role.RELAY)
            world.convicted("bob", 1)
            mirror(log, world.leaves)
            until(f"{second}/about", f"replayed {len(world.leaves)} of them")
            assert page(second, "/slashes")["slashes"]["rows"][0]["node"] == str(world.id("bob"))
            assert get(f"{second}/log/checkpoint") == get(f"{first}/log/checkpoint")
    # Started again on what it kept, it folds nothing twice and shows the same.
    with exploring(log, tmp_path / "first") as again:
        until(f"{again}/about", f"replayed {len(world.leaves)} of them")
        assert page(again, f"/nodes/{world.id('ann')}")["summary"]["units"] == 20


def test_a_copy_that_does_not_hold_is_said_on_every_page(tmp_path: Path, world: World) -> None:
    log = mirror(tmp_path / "log", world.leaves)
    with exploring(log, tmp_path / "keep") as url:
        until(f"{url}/about", f"replayed {len(world.leaves)} of them")
        good = len(world.leaves)
        world.register("more", Role.RELAY)
        bad = mirror(tmp_path / "bad", world.leaves)
        (tile,) = (bad / "tile/0").rglob(str(len(world.leaves)))
        tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
        shutil.copytree(bad / "tile", log / "tile", dirs_exist_ok=True)
        shutil.copy(bad / "checkpoint", log / "checkpoint")
        for path in ("/", "/nodes", "/log/3"):
            text = until(url + path, "Verification of this log failed.")
            assert "does not hold the hashes" in text
            assert f"end with entry {good - 1}" in text


def test_a_log_that_cannot_be_had_is_said_and_looked_for_again(tmp_path: Path) -> None:
    with exploring("http://127.0.0.1:9/log", tmp_path / "keep") as url:
        text = until(f"{url}/nodes", "cannot be read at the moment")
        assert "is this the URL of a log" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--log", "nowhere"], "nowhere is no log"),
        (["--log", "{log}", "--key", "nonsense"], "--key is not a verifier key"),
        (["--log", "{log}", "--model", "nowhere"], "explorer.models: nowhere has no config.json"),
        (["--log", "{log}", "--host", "192.0.2.1"], "choose another --port"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    log = mirror(tmp_path / "log", world.leaves)
    given = [word.format(log=log) for word in words]
    assert main(["explorer", "--keep", str(tmp_path / "keep"), *given]) == 1
    assert problem in capsys.readouterr().err
