"""Keys, passwords and tokens of running programs: not in what they say, show, hand out or list, and in no open file."""

import tarfile
from contextlib import AsyncExitStack
from pathlib import Path

from prime_coordinator.home import CoordinatorHome
from prime_node.storage.node_folder import read_lock
from prime_runtime.lock import read_lock_info
from prime_runtime.logs import LogLevel
from support.processes.coordinator import key_of, make_folder, running
from support.processes.coordinator_main import PASSWORD
from support.processes.swarm import Swarm, run_command

PUBLIC_MODE = 0o077


def read_process(pid: int) -> bytes:
    """What any user of the machine sees of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def read_bundle(path: Path) -> bytes:
    with tarfile.open(path) as bundle:
        files = [bundle.extractfile(member) for member in bundle.getmembers() if member.isfile()]
        return b"\n".join(file.read() for file in files if file is not None)


async def test_no_secret_leaves_a_running_node_or_coordinator(tmp_path: Path) -> None:
    config = await make_folder(tmp_path / "coordinator")
    async with running(config) as coordinator, AsyncExitStack() as stack:
        swarm = Swarm(tmp_path, coordinator, stack)
        node = await swarm.relay("ann", "--log-level", LogLevel.DEBUG)
        status = await node.until(lambda status: status["coordinator"]["answered_ms_ago"] is not None, "an answer")
        facts = read_lock(node.folder)
        secrets = [PASSWORD, key_of("ann").secret().hex(), str(facts["token"])]
        bundle = tmp_path / "diagnosis.tar.gz"
        code, said = await run_command("prime-node", "diagnose", "--folder", str(node.folder), "--out", str(bundle))
        assert code == 0, said
        processes = [int(facts["pid"]), int(read_lock_info(CoordinatorHome(config.folder).lock)["pid"])]
        shown = {
            "its log": "\n".join(node.command.lines).encode() + (node.folder / "node.log").read_bytes(),
            "the coordinator's log": "\n".join(coordinator.lines).encode(),
            "its status": repr(status).encode(),
            "its diagnosis": read_bundle(bundle) + said.encode(),
            "the list of processes": b"".join(map(read_process, processes)),
        }
        for where, text in shown.items():
            assert len(text) > 50, where
            for secret in secrets:
                assert secret.encode() not in text, f"a secret is in {where}"
        kept = ["key.json", "log.key", "lock", "config.toml", "node.log", "password"]
        for folder in (node.folder, config.folder):
            open_files = [path for path in folder.iterdir() if path.name in kept and path.stat().st_mode & PUBLIC_MODE]
            assert not open_files
