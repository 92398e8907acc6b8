"""An owner's day, typed: a real coordinator, a real node, and every command that an owner has for it."""

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prime_node.app import run
from prime_node.cli.context import call_node
from prime_node.cli.main import main
from prime_node.config import NodeConfig, NodeRole, PageConfig
from prime_node.joining import CoordinatorDiscovery
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError
from prime_protocol.wire.keystore import decrypt_key, encrypt_key
from prime_runtime import keys
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import open_client
from prime_runtime.http.config import ListenConfig
from support.processes.coordinator import RUN, key_of
from support.processes.swarm import Command, Swarm, running_swarm, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
BIN = Path(sys.executable).parent / "prime-node"
PASSWORD = "an owner's own password"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Owner:
    """Types commands for one node. The program is the same as in a shell; only its process is shared with the test."""

    swarm: Swarm
    node: Command
    folder: Path

    async def type(self, *words: str | Path) -> Said:
        return await type_(*words, "--folder", self.folder)

    async def do(self, *words: str | Path) -> Said:
        said = await self.type(*words)
        assert said.code == 0, f"{words}: {said.err}"
        return said

    async def status(self) -> dict[str, Any]:
        return await call_node(self.folder, "GET", "/status")


async def type_(*words: str | Path, stdin: str = "") -> Said:
    out, err = io.StringIO(), io.StringIO()

    def run() -> int:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                return main([str(word) for word in words])
            except SystemExit as left:
                return int(left.code or 0)

    return Said(await asyncio.to_thread(run), out.getvalue(), err.getvalue())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Owner]:
    """A relay that was started with a URL alone, in a network with one run."""
    tmp_path = tmp_path_factory.mktemp("owner")
    for name in [name for name in os.environ if name.startswith("PRIME_")]:
        del os.environ[name]
    async with running_swarm(tmp_path) as swarm:
        folder = tmp_path / "node"
        words = ("prime-node", "start", "--folder", str(folder), "--role", "relay")
        url = swarm.coordinator.server.url
        node = Command((*words, "--coordinator", url), variables={"PRIME_PASSWORD": ""})
        await node.start()
        await until(lambda: any("joined" in line for line in node.lines), "a start", lambda: node.tail)
        open_fast(NodeFolder(folder))
        yield Owner(swarm, node, folder)
        await node.kill()


def open_fast(home: NodeFolder) -> None:
    """The same key behind a cheap password: its real cost is not what is tested here."""
    password = home.password.read_text().strip()
    key = decrypt_key(home.key.read_text(), password)
    home.key.write_text(encrypt_key(key, password, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2))


@pytest.fixture(autouse=True)
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that tests make cost nothing to open either."""
    monkeypatch.setattr(keys, "KEYSTORE_SCRYPT_N", 2)


# --- Looking --------------------------------------------------------------------------------------------------------


async def test_status_says_the_same_in_words_and_in_json(owner: Owner) -> None:
    report = (await owner.do("status", "--json")).json
    assert (report["state"], report["role"], report["run"]) == ("running", "relay", RUN)
    text = (await owner.do("status")).out
    assert report["name"] in text
    assert report["page"] in text
    assert "\x1b" not in text


async def test_the_full_screen_is_drawn_left_and_given_back(owner: Owner) -> None:
    terminal, its_end = pty.openpty()
    command = [str(BIN), "status", "--watch", "--folder", str(owner.folder)]
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end, env=variables)
    os.close(its_end)
    name = (await owner.status())["name"].encode()
    seen = b""
    os.set_blocking(terminal, False)
    end_s = time.monotonic() + 30
    while name not in seen and time.monotonic() < end_s:
        await asyncio.sleep(0.05)
        try:
            seen += os.read(terminal, 65_536)
        except BlockingIOError:
            continue
    assert name in seen, seen[-500:]
    assert b"\x1b[?1049h" in seen, "the terminal's second screen is used"
    process.send_signal(signal.SIGINT)
    while process.poll() is None and time.monotonic() < end_s:
        await asyncio.sleep(0.05)
        try:
            seen += os.read(terminal, 65_536)
        except OSError:
            continue
    assert process.wait(timeout=10) == 130
    assert b"\x1b[?1049l" in seen, "and left again"
    os.close(terminal)


async def test_settings_and_their_sources_are_shown(owner: Owner) -> None:
    rows = {row["setting"]: row for row in (await owner.do("config", "show", "--json")).json}
    assert rows["run"]["value"] == f"'{RUN}'"
    assert "config.toml line" in rows["coordinator_id"]["source"]
    assert rows["role"]["value"] == "'relay'"
    assert rows["policy.idle_only"]["source"] == "default"
    changed = (await owner.do("config", "show", "--changed", "--role", "worker")).out
    assert "--role" in changed
    assert "idle_only" not in changed


async def test_the_log_is_read_back_and_followed(owner: Owner, tmp_path: Path) -> None:
    shown = (await owner.do("logs")).out
    assert "INFO    node 0x" in shown
    assert json.loads((await owner.do("logs", "--json", "--lines", "1")).out)["level"]
    followed = tmp_path / "followed"
    command = [str(BIN), "logs", "--follow", "--lines", "0", "--folder", str(owner.folder)]
    with followed.open("w") as file:
        follower = subprocess.Popen(command, stdout=file)
    while "owner's policy" not in followed.read_text():
        assert follower.poll() is None
        await owner.do("pause")
        await owner.do("resume")
    follower.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(follower.wait, 20) == 130


async def test_the_doctor_finds_this_machine_fit_for_a_relay(owner: Owner) -> None:
    lines = {line["what"]: line for line in (await owner.do("doctor", "--json")).json}
    assert {line["grade"] for line in lines.values()} <= {"good", "note"}
    assert "the coordinator's" in lines["clock"]["found"]
    assert "no node serves" in lines["weights"]["found"]
    said = await owner.type("doctor", "--coordinator", "http://127.0.0.1:1")
    assert said.code == 3
    assert "MISSING" in said.out
    assert "check the URL" in said.out


async def test_the_doctor_lets_the_coordinator_connect_to_the_announced_port(owner: Owner, tmp_path: Path) -> None:
    words = ("--json", "--role", "relay", "--coordinator", owner.swarm.coordinator.server.url)
    for announce, found in (("127.0.0.1:0", "the coordinator connected"), ("127.0.0.1:1", "cannot connect")):
        said = await type_("doctor", *words, "--announce", f"http://{announce}", "--folder", tmp_path / "fresh")
        lines = {line["what"]: line for line in json.loads(said.out)}
        assert found in lines["reached from outside"]["found"]


# --- Steering -------------------------------------------------------------------------------------------------------


async def test_a_pause_is_at_work_until_it_is_taken_back(owner: Owner) -> None:
    assert "prime-node resume" in (await owner.do("pause")).out
    assert (await owner.status())["owner"]["hold"].startswith("paused by the owner")
    assert "takes work again" in (await owner.do("resume")).out
    assert (await owner.status())["owner"]["hold"] == ""
    said = await owner.type("pause", "--gpu", "the big one")
    assert (said.code, "there is no GPU" in said.err) == (1, True)


async def test_a_second_start_in_the_folder_names_the_first(owner: Owner) -> None:
    said = await owner.type("start")
    assert said.code == 1
    assert "another node runs in" in said.err
    assert f"process {json.loads(NodeFolder(owner.folder).lock.read_text())['pid']}" in said.err


# --- Keys and stake -------------------------------------------------------------------------------------------------


async def test_a_key_is_backed_up_and_recovered_elsewhere(owner: Owner, tmp_path: Path) -> None:
    node = (await owner.do("keys", "show", "--json")).json["node"]
    copy, password = tmp_path / "copy.json", tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    said = await owner.do("keys", "backup", copy, "--new-password-file", password)
    assert "it was opened again to make sure" in said.out
    assert copy.stat().st_mode & 0o077 == 0
    assert (await owner.type("keys", "backup", copy)).code == 1, "never over another file"
    elsewhere = tmp_path / "elsewhere"
    said = await type_("keys", "recover", copy, "--password-file", password, "--folder", elsewhere)
    assert said.code == 0, said.err
    assert (await type_("keys", "show", "--json", "--folder", elsewhere)).json["node"] == node
    again = await type_("keys", "recover", copy, "--password-file", password, "--folder", elsewhere)
    assert (again.code, "--replace renames it" in again.err) == (1, True)
    private = tmp_path / "private"
    private.write_text("0x" + "17" * 32 + "\n")
    said = await type_("keys", "recover", private, "--replace", "--folder", elsewhere)
    assert said.code == 0, said.err
    assert "the previous key is now" in said.out
    assert (await type_("keys", "show", "--json", "--folder", elsewhere)).json["node"] != node
    running = await owner.type("keys", "recover", copy, "--password-file", password)
    assert "stop it first" in running.err


async def test_an_owner_delegates_to_a_node(owner: Owner, tmp_path: Path) -> None:
    node = (await owner.do("keys", "show", "--json")).json["node"]
    key, password, out = tmp_path / "owner.json", tmp_path / "password", tmp_path / "delegation.json"
    password.write_text(PASSWORD + "\n")
    assert (await type_("keys", "new", "--out", key, "--password-file", password)).code == 0
    words = ("keys", "delegate", node, "--key", key, "--password-file", password, "--out", out)
    said = await owner.do(*words)
    assert f"prime-node start --delegation {out}" in said.out
    assert json.loads(out.read_text())["node"] == node
    assert "allowed is 1 to 366" in (await owner.type(*words[:-1], tmp_path / "x", "--days", "400")).err
    assert "give the node's address" in (await owner.type("keys", "delegate", "0x1", *words[3:])).err


async def test_stake_is_shown_and_moved(owner: Owner) -> None:
    async def staked() -> dict[str, Any]:
        return (await owner.do("stake", "--json")).json

    before = await staked()
    assert (before["stake_nano"], before["owner"]) == (0, before["node"])
    assert before["balance_nano"] > 2 * 10**9, "the faucet's gift"
    assert "below the minimum: prime-node stake add" in (await owner.do("stake")).out
    assert "staked 1.5 (entry" in (await owner.do("stake", "add", "1.5")).out
    assert "unbonding" in (await owner.do("stake", "remove", "0.5")).out
    after = await staked()
    assert (after["stake_nano"], after["unbonding_nano"]) == (10**9, 5 * 10**8)
    assert after["balance_nano"] == before["balance_nano"] - 15 * 10**8
    for words, problem in (
        (("add", "1000000"), "the balance is"),
        (("add", "nothing"), "is not an amount"),
        (("release",), "refused: node has no unbonding"),
    ):
        said = await owner.type("stake", *words)
        assert (said.code, problem in said.err) == (1, True), said.err


# --- Upkeep ---------------------------------------------------------------------------------------------------------


async def test_a_diagnosis_holds_what_helps_and_no_secret(owner: Owner, tmp_path: Path) -> None:
    out = tmp_path / "diagnosis.tar.gz"
    said = await owner.do("diagnose", "--out", out)
    assert "no keys or passwords" in said.out
    with tarfile.open(out) as bundle:
        files = {Path(each.name).name: bundle.extractfile(each).read() for each in bundle.getmembers()}  # type: ignore[union-attr]
    assert json.loads(files["status.json"])["state"] == "running"
    assert json.loads(files["doctor.json"])
    assert b"joined" in files["log.jsonl"] or b"node 0x" in files["log.jsonl"]
    assert b"prime-swarm" in files["versions.txt"]
    everything = b"".join(files.values())
    assert NodeFolder(owner.folder).password.read_text().strip().encode() not in everything
    assert json.loads(NodeFolder(owner.folder).lock.read_text())["token"].encode() not in everything
    assert json.loads(NodeFolder(owner.folder).key.read_text())["crypto"]["ciphertext"].encode() not in everything


async def test_a_service_is_installed_where_systemd_answers(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, tool = tmp_path / "called", tmp_path / "systemctl"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unit = tmp_path / "config/systemd/user/prime-node.service"
    assert str(unit) in (await owner.do("service", "install")).out
    assert f"start --folder {owner.folder}\n" in unit.read_text()
    assert notes.read_text().splitlines()[1:] == ["--user daemon-reload", "--user enable --now prime-node.service"]
    await owner.do("service", "uninstall")
    assert not unit.exists()
    assert (await owner.type("service", "uninstall")).code == 1
    tool.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    said = await owner.type("service", "install")
    assert said.code == 1
    assert "Failed to connect to bus" in said.err
    assert "ExecStart=" in said.err, "what it would have been"
    assert not unit.exists()


async def test_a_verdict_that_nobody_gave_is_told_where_names_are_found(owner: Owner) -> None:
    said = await owner.type("audit", "0x" + "11" * 32)
    assert said.code == 1
    assert "has no submission or evidence 0x1111" in said.err
    assert "`prime-node rollouts ID` shows the ids of yours" in said.err


async def test_completion_knows_the_commands(owner: Owner) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = (await type_("completion", shell)).out
        assert "rollouts" in script
        assert "--policy-idle-only" in script or "policy-idle-only" in script


# --- What a new user does wrong ---------------------------------------------------------------------------------------


async def test_a_wrong_first_start_is_told_what_to_do(owner: Owner, tmp_path: Path) -> None:
    for flags, problem in (((), "no coordinator is set"), (("--coordinator", "127.0.0.1:1"), "write http://host:port")):
        said = await type_("start", "--role", "relay", "--folder", tmp_path / "node", *flags)
        assert (said.code, problem in said.err) == (1, True), said.err
    url = owner.swarm.coordinator.server.url
    taken = int(url.rpartition(":")[2])
    listen = {"announce": ("http://a.example:1",), "listen": ListenConfig(port=taken)}
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"run": "nope"}, f"there is no run nope on testnet; there are: {RUN} (active)"),
        ({"network": "mainnet"}, "belongs to the network testnet"),
        ({"coordinator_id": "0x" + "22" * 20}, "That is another coordinator"),
        ({"page": PageConfig(port=taken)}, "the port is in use; choose another --page-port"),
        (listen, "choose another --listen-port"),
        ({"coordinator": f"{url}/elsewhere"}, "is no coordinator (HTTP 404, text/plain); is the URL right?"),
        ({"coordinator_id": str(owner.swarm.coordinator.node), "network": "mainnet", "run": RUN}, "Payload.network"),
    )
    for changes, problem in wrong:
        config = NodeConfig(**{"folder": tmp_path / "node", "coordinator": url, "role": NodeRole.RELAY} | changes)
        with pytest.raises(LocalError) as caught:
            await run(config, lambda text: None)
        assert problem in str(caught.value)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
    assert not NodeFolder(tmp_path / "node").config.exists(), "nothing wrong was written down"


class AnHourAhead(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


async def test_a_clock_that_is_an_hour_off_is_named_and_waited_for(owner: Owner, tmp_path: Path) -> None:
    config = NodeConfig(
        folder=tmp_path,
        coordinator=owner.swarm.coordinator.server.url,
        coordinator_id=str(owner.swarm.coordinator.node),
        network="testnet",
        run=RUN,
    )
    clock, stop, said = AnHourAhead(), asyncio.Event(), list[str]()
    contact = CoordinatorDiscovery(config, stop, clock, said.append)
    async with open_client(key=key_of("late"), network=config.network_id, clock=clock, limits=config.client) as client:
        asking = asyncio.create_task(contact.resolve_trainers(config, client))
        await until(lambda: bool(said), "a first answer")
        stop.set()
        assert await asking is None
    assert "this machine's clock is 1 h 0 min ahead of the coordinator's; set it" in said[0]
    assert contact.problem in said[0], "and `status` shows it"


async def test_a_damaged_key_and_a_wrong_password_are_told_apart(owner: Owner, tmp_path: Path) -> None:
    url, folder = owner.swarm.coordinator.server.url, tmp_path / "node"
    assert (await type_("keys", "new", "--folder", folder)).code == 0
    start = ("start", "--role", "relay", "--folder", folder, "--coordinator", url)
    key = NodeFolder(folder).key
    whole = key.read_text()
    key.write_text(whole[: len(whole) // 2])
    said = await type_(*start)
    assert (said.code, "key.json cannot be decrypted: the keystore file is damaged" in said.err) == (1, True), said.err
    assert "keys recover COPY --replace" in said.err
    key.write_text(whole)
    NodeFolder(folder).password.write_text("not the one it was\n")
    said = await type_(*start)
    assert "wrong password" in said.err
    assert f"the one in {NodeFolder(folder).password}" in said.err


async def test_commands_for_a_node_that_does_not_run_exit_with_4(tmp_path: Path) -> None:
    for words in (("status",), ("stop",), ("pause",), ("drain",)):
        said = await type_(*words, "--folder", tmp_path)
        assert said.code == 4
        assert "is not running; start it with" in said.err
    assert (await type_("rollouts", "--folder", tmp_path)).code == 1
    assert (await type_("logs", "--folder", tmp_path)).code == 1
    assert (await type_("stake", "--folder", tmp_path)).code == 1


# --- The end, after everything else -----------------------------------------------------------------------------------


async def test_a_node_whose_coordinator_is_gone_says_since_when_and_drains_all_the_same(owner: Owner) -> None:
    await owner.swarm.coordinator.kill()
    end_s = time.monotonic() + 60
    while (await owner.status())["coordinator"]["is_reachable"]:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.2)
    assert (await owner.do("status")).out.startswith("!!! the coordinator has not answered for ")
    assert "then stops" in (await owner.do("drain")).out
    assert await owner.node.finish() == 0, owner.node.tail
