"""An operator's day, typed: real coordinator processes, real folders, and what a new user does wrong."""

import asyncio
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from prime_coordinator.cli.main import main
from prime_coordinator.home import CoordinatorHome, read_lock
from prime_protocol.ledger.entries import NodeRegistered, Role
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_protocol.wire.keystore import decrypt_key, encrypt_key
from prime_protocol.wire.messages import ENTRY_ENDPOINTS
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import open_client
from prime_runtime.http.config import ClientLimits, ServerAddress
from prime_runtime.log_files import read_leaves, read_tree_head
from support.processes.postgres import create_database, running_postgres

BIN = Path(sys.executable).parent / "prime-coordinator"
PASSWORD = "correct horse"
TRAINER = "0x" + "11" * 20
TERMS = ["--trainer", TRAINER, "--model", "tiny", "--task-set", "arithmetic", "--vocabulary", "64"]
TERMS += ["--units-per-token", "1000"]
START_S = 60.0
NODE_KEY = WalletKey.from_secret(b"\x33" * 32)


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Operator:
    """Types commands. The program is the same as in a shell; only its process is shared with the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def type(self, *words: str | Path, folder: Path | None = None) -> Said:
        self._capsys.readouterr()
        try:
            code = main([*map(str, words), "--folder", str(folder or self.folder)])
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = self._capsys.readouterr()
        return Said(code, out, err)

    def do(self, *words: str | Path, folder: Path | None = None) -> Said:
        said = self.type(*words, folder=folder)
        assert said.code == 0, f"{words}: {said.err}"
        return said

    def init(self, *words: str) -> None:
        password = self.folder.with_name("password")
        password.write_text(PASSWORD + "\n")
        port = () if "--listen-port" in words else ("--listen-port", "0")
        self.do("init", "--password-file", str(password), *port, *words)
        open_fast(self.folder)

    def have(self, made: Path) -> None:
        """A copy of a coordinator that was made before, with a password file of its own."""
        shutil.copytree(made, self.folder)
        password, config = self.folder.with_name("password"), CoordinatorHome(self.folder).config
        password.write_text(PASSWORD + "\n")
        config.write_text(f'network = "devnet"\npassword_file = "{password}"\n')


def open_fast(folder: Path) -> None:
    """The same key behind a cheap password: its real cost is not what is tested here."""
    home = CoordinatorHome(folder)
    key = decrypt_key(home.key.read_text(), PASSWORD)
    home.key.write_text(encrypt_key(key, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `init` makes it."""
    folder = tmp_path_factory.mktemp("made") / "home"
    password = folder.with_name("password")
    password.write_text(PASSWORD + "\n")
    assert main(["init", "--folder", str(folder), "--password-file", str(password)]) == 0
    open_fast(folder)
    return folder


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    for name in [name for name in os.environ if name.startswith("PRIME_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Operator(capsys, tmp_path / "home")


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`prime-coordinator start` as a process, from its first answer until it is told to stop."""
    command = [str(BIN), "start", "--folder", str(folder), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_line(process, "listening on")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 0, err


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    end_s, seen = time.monotonic() + START_S, []
    while time.monotonic() < end_s:
        if not select.select([process.stderr], [], [], 1)[0]:
            continue
        line = process.stderr.readline()
        seen.append(line)
        if text in line:
            return
        if not line:
            break
    raise AssertionError(f"the coordinator did not say {text!r}:\n" + "".join(seen))


def register(folder: Path) -> NodeId:
    """A node joins, over the network."""
    endpoint = next(each for each in ENTRY_ENDPOINTS if each.request is NodeRegistered)
    coordinator = NodeId(bytes.fromhex(json.loads(CoordinatorHome(folder).key.read_text())["address"]))

    async def call() -> None:
        async with open_client(
            key=NODE_KEY,
            network=NetworkId("devnet"),
            clock=SystemClock(),
            limits=ClientLimits(),
        ) as client:
            entry = NodeRegistered(roles=(Role.WORKER,), hardware="[red]a laptop[/red]")
            await client.call(ServerAddress(str(read_lock(folder)["url"]), coordinator), endpoint, entry)

    asyncio.run(call())
    return NODE_KEY.node


# --- The day that goes well -----------------------------------------------------------------------------------------


def test_a_day_from_init_to_a_restore_elsewhere(operator: Operator, tmp_path: Path) -> None:
    operator.init()
    with started(operator.folder):
        assert "runs: none yet" in operator.do("status").out
        operator.do("run", "create", "demo", *TERMS)
        node = register(operator.folder)
        check_listings(operator, node)
        check_orders(operator, node)
        check_log(operator, tmp_path)
        url = read_lock(operator.folder)["url"]
        with urlopen(f"{url}/api/v1/status") as response:
            assert json.load(response)["network"] == "devnet"
        operator.do("backup", tmp_path / "copy", "--keys")
        before = operator.do("status", "--json").json
    moved = tmp_path / "moved"
    said = operator.do("restore", tmp_path / "copy", folder=moved)
    assert "start it only if the old coordinator is gone" in said.err
    with started(moved):
        after = operator.do("status", "--json", folder=moved).json
        assert operator.do("nodes", "--json", folder=moved).json[0]["node"] == str(node)
        restored = get_newest_entry(operator, moved)
    for name in ("coordinator", "log_key", "value"):
        assert after[name] == before[name]
    assert (restored["idx"], after["entries"]) == (before["entries"], before["entries"] + 1)
    assert restored["kind"] == "LogRestored"
    assert compute_root_after(moved, before["entries"]) == before["root"]


def test_a_run_outside_a_devnet_needs_validators_or_force(operator: Operator) -> None:
    operator.init("--network", "swarm", "--randomness", "own")
    terms = [*TERMS, "--model-files", "0x" + "11" * 32, "--calibration", "two machines", "--calibrated-at-ms", "1"]
    with started(operator.folder):
        refused(operator.type("run", "create", "demo", *terms), "9 different owners", "0 have", "--force", "run pause")
        refused(operator.type("run", "create", "demo", *terms, "--quorum", "2"), "6 different owners")
        bounds = operator.folder / "bounds.toml"
        bounds.write_text('class_bounds = ["gpu-a/x > gpu-b/x: margin_max=0.25"]\nclass_bounds_closed = true\n')
        created = operator.do("run", "create", "demo", *terms, "--terms", str(bounds), "--force")
        assert "warning: run demo needs" in created.err
        assert "bounds: two machines;" in created.out
        assert "class 2: gpu-b/x" in created.out
        assert "0.25" in created.out
        assert "the run takes work of these classes only" in created.out
        operator.do("run", "pause", "demo")
        assert "validators of 0 owners joined run demo, it should have 9" in operator.do("run", "resume", "demo").err


def test_check_says_what_a_network_lacks_and_status_the_worst_of_it(operator: Operator) -> None:
    operator.init("--network", "swarm", "--randomness", "own", "--public-url", "http://127.0.0.1:9")
    terms = [*TERMS, "--model-files", "0x" + "11" * 32, "--calibration", "two machines", "--calibrated-at-ms", "1"]
    with started(operator.folder):
        assert list_missing(operator) == {"address", "stake for nodes", "runs"}
        assert "MISSING: address: cannot reach http://127.0.0.1:9" in operator.do("status").out
        operator.do("run", "create", "demo", *terms, "--force")
        of_run = {"demo: trainer", "demo: pool", "demo: validators", "demo: inspector"}
        assert list_missing(operator) == {"address", "stake for nodes", *of_run}
        operator.do("deposit", "coordinator", "1000", "--reference", "invoice 1")
        operator.do("run", "fund", "demo", "999")
        operator.do("run", "update", "demo", "--inspectors", str(NODE_KEY.node))
        assert list_missing(operator) == {"address", "demo: trainer", "demo: validators"}
        said = operator.type("check")
        assert said.code == 3
        assert "prime-node start --coordinator http://127.0.0.1:9" in said.out
        assert "prime-node start --role validator --run demo" in said.out


def list_missing(operator: Operator) -> set[str]:
    said = operator.type("check", "--json")
    assert said.code == 3, said.err
    return {line["what"] for line in said.json if line["grade"] == "missing"}


def check_listings(operator: Operator, node: NodeId) -> None:
    for words in ("leases", "submissions", "verdicts", "appeals", "checkpoints"):
        assert operator.do(words).out == "none\n"
        assert operator.do(words, "--json").json == []
    assert operator.do("slash", "list", "--json").json == []
    assert operator.do("submissions", "refused", "--json").json == []
    (row,) = operator.do("nodes", "--json").json
    assert (row["node"], row["status"], row["roles"]) == (str(node), "active", ["worker"])
    shown = operator.do("nodes", "show", str(node))
    assert "[red]a laptop[/red]" in shown.out
    lines = operator.do("nodes").out.splitlines()
    assert lines[0].split()[:2] == ["node", "status"]
    assert lines[1].split()[:2] == [str(node), "active"]
    assert "demo" in operator.do("status").out
    (run,) = operator.do("run", "list", "--json").json
    assert (run["run"], run["status"]) == ("demo", "active")
    assert operator.do("run", "show", "demo", "--json").json["terms"]["quorum"] == 1
    assert operator.do("nodes", "--status", "banned", "--json").json == []


def check_orders(operator: Operator, node: NodeId) -> None:
    operator.do("run", "pause", "demo", "--reason", "a new disk")
    assert operator.do("run", "list", "--json").json[0]["status"] == "paused"
    operator.do("run", "resume", "demo")
    operator.do("run", "update", "demo", "--lag-max", "4")
    assert operator.do("run", "show", "demo", "--json").json["terms"]["lag_max"] == 4
    for action, status in (("drain", "drained"), ("ban", "banned"), ("unban", "active")):
        operator.do("nodes", action, str(node), "--reason", "a test")
        detail = operator.do("nodes", "show", str(node), "--json").json
        assert (detail["summary"]["status"], detail["reason"]) == (status, "a test")
    operator.do("deposit", str(node), "12.5", "--reference", "invoice 7")
    assert operator.do("nodes", "show", str(node), "--json").json["owner_balance_nano"] == 12_500_000_000
    operator.do("deposit", "coordinator", "1000", "--reference", "invoice 8")
    operator.do("run", "fund", "demo", "999.5")
    refused(operator.type("run", "fund", "demo", "1"), "balance")
    assert operator.do("run", "list", "--json").json[0]["pool_nano"] == 999_500_000_000
    operator.do("run", "create", "other", *TERMS)
    operator.do("run", "close", "other", "--yes")
    assert [row["status"] for row in operator.do("run", "list", "--json").json] == ["closed", "active"]


def get_newest_entry(operator: Operator, folder: Path) -> Any:
    return json.loads(operator.do("log", "tail", "--json", "--limit", "1", folder=folder).out)


def compute_root_after(folder: Path, size: int) -> str:
    """The root over the first entries of a coordinator's mirror."""
    frontier, mirror = Frontier(), CoordinatorHome(folder).mirror
    head = TreeHead.parse(SignedNote.parse(read_tree_head(mirror)).text)
    for leaf in islice(read_leaves(mirror, head.size), size):
        frontier = frontier.append(compute_leaf_hash(leaf))
    return str(frontier.root())


def check_log(operator: Operator, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in operator.do("log", "tail", "--json", "--limit", "3").out.splitlines()]
    assert [row["kind"] for row in rows] == ["RunFunded", "RunCreated", "RunStatusSet"]
    assert rows[0]["idx"] + 2 == rows[2]["idx"]
    only = operator.do("log", "tail", "--kind", "NodeStatusSet").out.splitlines()
    assert len(only) == 3
    operator.do("log", "export", tmp_path / "mirror")
    assert verify(operator, tmp_path / "mirror").code == 0


def verify(operator: Operator, mirror: Path, *words: str) -> Said:
    operator._capsys.readouterr()
    code = main(["log", "verify", str(mirror), *words])
    return Said(code, *operator._capsys.readouterr())


def test_commands_work_as_processes_of_their_own(operator: Operator, made: Path) -> None:
    """What the other tests type inside this process, once for real: pipes, exit codes, an interrupt."""
    operator.have(made)
    flags = ["--folder", str(operator.folder)]
    with started(operator.folder):
        shown = subprocess.run([BIN, "status", *flags], capture_output=True, text=True, check=True)
        assert "\x1b" not in shown.stdout
        follow = subprocess.Popen([BIN, "log", "tail", "--follow", "--json", *flags], stdout=subprocess.PIPE, text=True)
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["kind"] == "NetworkCreated"
        operator.do("run", "create", "demo", *TERMS)
        assert json.loads(follow.stdout.readline())["kind"] == "RunCreated"
        follow.send_signal(signal.SIGINT)
        follow.communicate(timeout=20)
        assert follow.returncode == 130
    done = subprocess.run([BIN, "status", *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_on_the_terminal_ends_a_coordinator_and_its_helpers_without_a_traceback(
    operator: Operator, made: Path
) -> None:
    operator.have(made)
    command = [str(BIN), "start", "--folder", str(operator.folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_line(process, "listening on")
    operator.do("run", "list")  # its helpers run: the index is there
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=START_S)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_log_goes_from_sqlite_to_postgresql_by_backup_and_restore(
    operator: Operator, made: Path, tmp_path: Path
) -> None:
    operator.have(made)
    with started(operator.folder):
        operator.do("run", "create", "demo", *TERMS)
        before = operator.do("status", "--json").json
    operator.do("backup", tmp_path / "copy", "--keys")
    with running_postgres() as server:
        url, moved = create_database(server, "books"), tmp_path / "moved"
        operator.do("restore", tmp_path / "copy", "--database", url, folder=moved)
        again = operator.type("restore", tmp_path / "copy", "--database", url, folder=tmp_path / "again")
        with started(moved):
            after = operator.do("status", "--json", folder=moved).json
            restored = get_newest_entry(operator, moved)
            operator.do("run", "pause", "demo", folder=moved)
            operator.do("backup", tmp_path / "back", "--keys", folder=moved)
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    assert manifest["entries"] == before["entries"] + 1, "a clean stop notes a snapshot"
    assert (restored["idx"], after["entries"]) == (manifest["entries"], manifest["entries"] + 1)
    assert restored["kind"] == "LogRestored"
    assert compute_root_after(moved, manifest["entries"]) == manifest["root"]
    assert again.code == 1
    assert "already holds a log" in again.err
    operator.do("restore", tmp_path / "back", folder=tmp_path / "home-again")
    with started(tmp_path / "home-again"):
        assert operator.do("run", "list", "--json", folder=tmp_path / "home-again").json[0]["status"] == "paused"


# --- The day that does not ------------------------------------------------------------------------------------------


def refused(said: Said, *words: str, code: int = 1) -> None:
    """One clear line, the right exit code, no traceback."""
    assert said.code == code, said
    assert said.out == ""
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def test_wrong_folder_is_told_how_to_make_one(operator: Operator) -> None:
    for words in (["status"], ["start"], ["backup", "x"], ["log", "export", "x"], ["run", "list"]):
        refused(operator.type(*words), "there is no coordinator in", "prime-coordinator init")
    assert not operator.folder.exists()


def test_coordinator_that_does_not_run_is_one_clear_line(operator: Operator, made: Path) -> None:
    operator.have(made)
    said = operator.type("nodes")
    refused(said, "is not running", f"prime-coordinator start --folder {operator.folder}", code=4)
    assert len(said.err.splitlines()) == 1
    CoordinatorHome(operator.folder).lock.write_text('{"pid": 1, "url": "http://127.0.0.1:1"}')  # as a crash leaves it
    refused(operator.type("nodes"), "is the coordinator running?", code=4)


def test_second_start_and_second_init_leave_the_first_alone(operator: Operator, made: Path) -> None:
    operator.have(made)
    refused(operator.type("init", "--password-file", str(operator.folder.with_name("password"))), "already")
    with started(operator.folder):
        second = subprocess.run(
            [BIN, "start", "--folder", operator.folder], capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        assert "another coordinator runs in" in second.stderr
        operator.do("status")


def test_init_chooses_a_port_that_stays_and_says_where_it_will_listen(operator: Operator) -> None:
    password = operator.folder.with_name("password")
    password.write_text(PASSWORD + "\n")
    assert "port 8440" in operator.do("init", "--password-file", str(password)).out
    assert "port = 8440" in CoordinatorHome(operator.folder).config.read_text()


def test_lost_database_is_not_replaced_by_an_empty_one(operator: Operator, made: Path) -> None:
    operator.have(made)
    database = CoordinatorHome(operator.folder).database
    for path in operator.folder.glob("log.db*"):
        path.unlink()
    done = subprocess.run([BIN, "start", "--folder", operator.folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "prime-coordinator restore" in done.stderr
    assert "Traceback" not in done.stderr
    refused(operator.type("backup", operator.folder.with_name("copy")), "prime-coordinator restore")
    refused(operator.type("log", "export", operator.folder.with_name("copy")), "prime-coordinator restore")
    assert not database.exists()


def test_port_that_is_taken_is_named(operator: Operator) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        operator.init("--listen-port", str(other.getsockname()[1]))
        done = subprocess.run([BIN, "start", "--folder", operator.folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the port is in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("network = 5\n", "network"),
        ("network = \n", "config.toml"),
        ("netwrok = 'x'\n", "did you mean network"),
        ("[listen]\nport = 70000\n", "listen.port"),
        ("database = 'mysql://x'\n", "sqlite and postgresql"),
        ("password = 'in a file'\n", "chmod 600"),
    ],
)
def test_corrupted_settings_are_named(operator: Operator, made: Path, text: str, words: str) -> None:
    operator.have(made)
    CoordinatorHome(operator.folder).config.chmod(0o644)
    CoordinatorHome(operator.folder).config.write_text(text)
    refused(operator.type("status"), words)
    refused(operator.type("start"), words)


def test_wrong_password_and_damaged_keys_are_told_apart_from_the_rest(operator: Operator, made: Path) -> None:
    operator.have(made)
    password = operator.folder.with_name("password")
    CoordinatorHome(operator.folder).lock.write_text('{"pid": 1, "url": "http://127.0.0.1:1"}')
    password.write_text("another horse\n")
    refused(operator.type("status"), "wrong password")
    password.unlink()
    refused(operator.type("status"), "password file")
    password.write_text(PASSWORD)
    CoordinatorHome(operator.folder).key.write_text("{}")
    refused(operator.type("status"), "keystore file is damaged")
    CoordinatorHome(operator.folder).log_key.chmod(0o644)
    refused(operator.type("backup", operator.folder.with_name("copy")), "chmod 600")


def test_wrong_orders_are_refused_by_name_and_change_nothing(operator: Operator, made: Path) -> None:
    operator.have(made)
    with started(operator.folder):
        operator.do("run", "create", "demo", *TERMS)
        size = operator.do("status", "--json").json["entries"]
        refused(operator.type("run", "create", "demo", *TERMS), "demo exists already")
        refused(operator.type("run", "create", "Demo", *TERMS), "not the name of a run")
        refused(operator.type("run", "create", "two"), "trainer is missing", "units_per_token is missing")
        refused(operator.type("run", "create", "two", *TERMS, "--slash-nano", "999999999999"), "slash_nano")
        refused(operator.type("run", "create", "two", *TERMS, "--verdict-ms", "86400000"), "verdict_ms")
        refused(operator.type("run", "create", "two", *TERMS, "--terms", "nowhere.toml"), "nowhere.toml")
        refused(operator.type("run", "update", "demo"), "already has these terms")
        refused(operator.type("run", "pause", "nope"), "nope was not created")
        refused(operator.type("run", "show", "nope"), "no such run")
        refused(operator.type("run", "close", "demo"), "--yes")
        refused(operator.type("nodes", "ban", "bob"), "not an address")
        refused(operator.type("nodes", "ban", TRAINER), "is not registered")
        refused(operator.type("nodes", "show", "0x" + "00" * 20), "is not in the log")
        refused(operator.type("nodes", "--phase", "gone"), "phase", "online")
        refused(operator.type("nodes", "--limit", "0"), "--limit")
        refused(operator.type("submissions", "show", "0x12"), "submission")
        refused(operator.type("slash", "show", "0x" + "00" * 32), "was not slashed")
        refused(operator.type("deposit", TRAINER, "ten", "--reference", "x"), "not an amount")
        refused(operator.type("status", "--url", "not a url"), "not the URL")
        refused(operator.type("status", "--url", "http://127.0.0.1:1"), "is the coordinator running", code=4)
        assert operator.type("nodes", "--colour", "red").code == 2
        assert operator.do("status", "--json").json["entries"] == size


def test_backup_that_was_damaged_or_is_none_is_not_restored(operator: Operator, made: Path, tmp_path: Path) -> None:
    operator.have(made)
    operator.do("backup", tmp_path / "copy")
    moved = tmp_path / "moved"
    refused(operator.type("restore", tmp_path / "nothing", folder=moved), "a backup that was finished?")
    refused(operator.type("restore", tmp_path / "copy", folder=moved), "holds no keys")
    refused(operator.type("restore", tmp_path / "copy", folder=operator.folder), "is not empty")
    bundle = tmp_path / "copy/log/tile/entries/000.p/1"
    bundle.write_bytes(bundle.read_bytes()[:-1])
    said = operator.type("restore", tmp_path / "copy", "--keys", operator.folder, folder=moved)
    refused(said, "is not valid", code=3)
    assert not moved.exists()


def test_mirror_that_was_changed_does_not_verify(operator: Operator, made: Path, tmp_path: Path) -> None:
    operator.have(made)
    with started(operator.folder):
        key = operator.do("status", "--json").json["log_key"]
    operator.do("log", "export", tmp_path / "mirror")
    refused(operator.type("log", "export", tmp_path / "mirror"), "not an empty folder")
    assert verify(operator, tmp_path / "mirror", "--key", key).code == 0
    refused(verify(operator, tmp_path / "mirror", "--key", "nonsense"), "not a verifier key")
    head = tmp_path / "mirror/checkpoint"
    head.write_bytes(head.read_bytes().replace(b"devnet", b"mainet"))
    refused(verify(operator, tmp_path / "mirror"), "is not valid", code=3)


# --- At a terminal --------------------------------------------------------------------------------------------------


def at_terminal(answers: list[str], *words: str | Path) -> tuple[int, str]:
    """Type on a real terminal, each answer when it is asked for; what stood on the screen."""
    leader, follower = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(follower, termios.TIOCSCTTY, 0)

    command = [str(BIN), *map(str, words)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, preexec_fn=take_terminal)
    os.close(follower)
    seen = b""
    while True:
        try:
            data = os.read(leader, 65_536)
        except OSError:  # the other end is closed
            break
        seen += data
        if data.endswith(b": ") and answers:
            os.write(leader, answers.pop(0).encode() + b"\n")
    os.close(leader)
    return process.wait(timeout=START_S), seen.decode()


def test_password_is_asked_for_twice_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for answers, problem in (
        (["correct horse", "correct house"], "the two passwords differ"),
        (["short", "short"], "needs at least 8"),
        (["\x04"], "no password was typed"),
    ):
        code, seen = at_terminal(answers, "init", "--folder", tmp_path / "home")
        assert (code, problem in seen) == (1, True), seen
        assert not (tmp_path / "home").exists()
    code, seen = at_terminal(["correct horse", "correct horse"], "init", "--folder", tmp_path / "home")
    assert code == 0, seen
    assert "correct horse" not in seen
    assert decrypt_key(CoordinatorHome(tmp_path / "home").key.read_text(), "correct horse")


def test_simulator_gets_its_own_flags(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    assert "--seed" in capfd.readouterr().out
