"""Both keys of a log are rotated while nodes, a trainer and an explorer follow it: real processes that keep running."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.config import CoordinatorConfig, LogWriterConfig
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_node.log.key_follower import read_saved_chain
from prime_protocol.errors import RemoteError
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.log.tree_head import VerifierKey
from prime_runtime.http.config import ListenConfig
from support.processes.coordinator import NETWORK, ROOT, make_folder, running
from support.processes.coordinator_main import PASSWORD
from support.processes.postgres import free_port
from support.processes.swarm import Command, Relay, make_checkpoint, run_command, running_swarm, until


async def rotate(folder: Path, which: str) -> str:
    code, text = await run_command("prime-coordinator", "keys", "rotate", which, "--folder", str(folder))
    assert code == 0, text
    return text


def read_chain(folder: Path) -> KeyChain:
    """As the coordinator serves it."""
    raw = (CoordinatorHome(folder).mirror / "keys").read_bytes()
    return KeyChain.of_leaves(KeyFile.parse(raw).leaves, NETWORK)


async def read_page(url: str, path: str) -> Any:
    def read() -> Any:
        with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    return await asyncio.to_thread(read)


async def start_explorer(log: str, folder: Path, key: VerifierKey) -> tuple[Command, str]:
    words = ("--log", log, "--keep", str(folder), "--port", str(free_port()), "--key", str(key))
    command = Command(("prime-coordinator", "explorer", *words))
    await command.start()
    await until(lambda: any(line.startswith("open http") for line in command.lines), "a page", lambda: command.tail)
    return command, next(line.split()[1] for line in command.lines if line.startswith("open http"))


async def until_followed(relay: Relay, chain: KeyChain) -> None:
    """It takes heads and replies of the new keys."""

    def holds(status: dict[str, Any]) -> bool:
        return bool(status["heads"]["size"] > chain.newest_index + 1 and status["coordinator"]["is_reachable"])

    status = await relay.until(holds, "a head after the rotation")
    assert (status["heads"]["forks"], status["heads"]["stolen"], status["accusations"]["kept"]) == ([], [], [])
    await until(
        lambda: read_saved_chain(relay.folder / "heads", NETWORK) == chain, "the new keys", lambda: relay.command.tail
    )


async def test_everyone_goes_on_through_a_rotation_of_both_keys(tmp_path: Path) -> None:
    async with running_swarm(tmp_path, listen=ListenConfig(port=free_port())) as swarm:
        process, folder = swarm.coordinator, swarm.coordinator.config.folder
        relays = [await swarm.relay(name) for name in ("relay-1", "relay-2")]
        for relay in relays:
            await relay.until(lambda status: status["heads"]["size"] > 0, "a head")
        before = read_chain(folder)
        explorer, page = await start_explorer(f"{process.server.url}/log", tmp_path / "explorer", before.log_key)
        try:
            code, text = await run_command("prime-coordinator", "keys", "rotate", "--log", "--folder", str(folder))
            assert (code, "another coordinator runs" in text) == (1, True), text
            assert await process.stop() == 0
            assert str(before.log_key) in await rotate(folder, "--log")
            assert str(before.coordinator) in await rotate(folder, "--coordinator")
            code, text = await run_command("prime-coordinator", "keys", "rotate", "--log", "--folder", str(folder))
            assert (code, "try again in" in text) == (1, True), text
            await process.start()

            after = read_chain(folder)
            assert before.is_continued_by(after)
            assert before.log_key != after.log_key
            assert before.coordinator != after.coordinator
            # Its trainer and the third relay have the first key of the coordinator in their settings.
            published = await swarm.publish(make_checkpoint(tmp_path / "step-0", seed=0), 0)
            origin = await swarm.origin()
            relays.append(await swarm.relay("relay-3"))
            for relay in relays:
                await relay.until_held(published.root)
                await until_followed(relay, after)
            assert origin.is_running

            async def is_indexed() -> bool:
                about = await read_page(page, "about")
                return bool(about["size"] > after.newest_index and about["head_size"] == about["size"])

            while not await is_indexed():
                assert explorer.is_running, explorer.tail
                await asyncio.sleep(0.2)
            about = await read_page(page, "about")
            assert [each["kind"] for each in about["rotations"]] == ["coordinator", "log"]
            assert about["log_key"] == str(after.log_key)
            code, text = await run_command("prime-coordinator", "status", "--json", "--folder", str(folder))
            assert [each["old"] for each in json.loads(text)["rotations"]] == [
                str(before.coordinator),
                str(before.log_key),
            ]
        finally:
            await explorer.kill()
        assert await process.stop() == 0
        check_copies(tmp_path, process.config, before)


def check_copies(folder: Path, config: CoordinatorConfig, before: KeyChain) -> None:
    """The mirror verifies with either key; from it, or a backup, and the new keys the coordinator comes back."""
    home = CoordinatorHome(config.folder)
    for key in (None, before.log_key, read_chain(config.folder).log_key):
        verified = verify_log(home.mirror, VerifyOptions(key=key))
        assert len(verified.ledger.state.key_rotations) == 2
    stranger = VerifierKey(before.log_key.name, before.log_key.kind, bytes(32))
    with pytest.raises(RemoteError, match="never had the key"):
        verify_log(home.mirror, VerifyOptions(key=stranger))
    (old_log_key,), (old_key,) = home.folder.glob("log.key.until-*"), home.folder.glob("key.json.until-*")
    keys, old = folder / "new keys", folder / "old keys"
    for target, key_file, log_key in ((keys, home.key, home.log_key), (old, old_key, old_log_key)):
        target.mkdir()
        for name, path in (("key.json", key_file), ("log.key", log_key), ("randomness.key", home.randomness_key)):
            (target / name).write_bytes(path.read_bytes())
            (target / name).chmod(0o600)
    done = call("restore", "--from-mirror", str(home.mirror), "--keys", str(old), "--folder", str(folder / "refused"))
    assert (done.returncode, "rotated it" in done.stderr) == (1, True), done.stderr
    done = call("restore", "--from-mirror", str(home.mirror), "--keys", str(keys), "--folder", str(folder / "again"))
    assert done.returncode == 0, done.stderr
    done = call("backup", str(folder / "backup"), "--keys", "--folder", str(home.folder))
    assert done.returncode == 0, done.stderr
    done = call("restore", str(folder / "backup"), "--folder", str(folder / "back"))
    assert done.returncode == 0, done.stderr


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prime_coordinator.cli", *words]
    environment = {**os.environ, "PRIME_PASSWORD": PASSWORD}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


KILLED = """
import os, signal, sys
from prime_coordinator.admin import rotation
from prime_coordinator.cli.main import main
from prime_coordinator.log.store import LogStore

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

append, link, point = LogStore.append, os.link, sys.argv.pop(1)

async def append_and_die(*words):
    await append(*words)
    die()

def link_and_die(source, target, **how):
    link(source, target, **how)
    if ".until-" in str(target):
        die()

if point == "the new key is staged":
    LogStore.append = die
elif point == "the entry is on disk":
    LogStore.append = append_and_die
elif point == "the old key is kept":
    rotation.os.link = link_and_die
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("which", "point", "is_rotated"),
    [
        ("--log", "the new key is staged", False),
        ("--log", "the entry is on disk", True),
        ("--coordinator", "the entry is on disk", True),
        ("--log", "the old key is kept", True),
    ],
)
async def test_a_rotation_that_is_killed_leaves_one_usable_key(
    tmp_path: Path, which: str, point: str, is_rotated: bool
) -> None:
    config = await make_folder(tmp_path / "coordinator", books=LogWriterConfig(head_ms=50))
    async with running(config) as process:
        assert await process.stop() == 0
    before = read_chain(config.folder)
    words = [sys.executable, "-c", KILLED, point, "keys", "rotate", which, "--folder", str(config.folder)]
    environment = {**os.environ, "PRIME_PASSWORD": PASSWORD, "PYTHONPATH": str(ROOT / "tests")}
    killed = await asyncio.create_subprocess_exec(*words, env=environment)
    assert await killed.wait() == -signal.SIGKILL

    async with running(config) as process:
        assert await process.stop() == 0
    after = read_chain(config.folder)
    assert (after != before) is is_rotated
    assert verify_log(CoordinatorHome(config.folder).mirror).keys == after
    if not is_rotated:
        await rotate(config.folder, which)
        async with running(config) as process:
            assert await process.stop() == 0
        assert read_chain(config.folder) != before
