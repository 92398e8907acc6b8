"""A coordinator that speaks TLS itself: nodes that trust its authority, operators on its machine, everybody else."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from prime_protocol.ledger.entries import NodeRegistered, Role
from prime_protocol.wire.messages import ENTRY_ENDPOINTS, HEARTBEAT, Heartbeat, NodeActivity
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import Unreachable, open_client
from prime_runtime.http.config import ClientLimits, ListenConfig
from support.processes.coordinator import NETWORK, RUN, CoordinatorProcess, key_of, make_folder, running
from support.processes.coordinator_main import PASSWORD

BIN = Path(sys.executable).with_name("prime-coordinator")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """PEM file of who vouches for the coordinator; certificate and key lie beside it."""
    made = trustme.CA()
    issued = made.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "chain.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    return tmp_path / "authority.pem"


@pytest.fixture
async def process(authority: Path, tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    listen = ListenConfig(tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem")
    async with running(await make_folder(tmp_path / "coordinator", settings={"listen": listen})) as started:
        assert started.server.url.startswith("https://")
        yield started


def type_command(process: CoordinatorProcess, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PRIME_PASSWORD": PASSWORD}
    command = [str(BIN), *words, "--folder", str(process.config.folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def client_of(authority: Path | None):  # type: ignore[no-untyped-def]
    return open_client(
        key=key_of("worker"),
        network=NETWORK,
        clock=SystemClock(),
        limits=ClientLimits(attempts_max=1),
        authority=authority,
    )


async def test_a_node_that_trusts_the_authority_registers_and_beats(
    process: CoordinatorProcess, authority: Path
) -> None:
    register = next(endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is NodeRegistered)
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=0)
    async with client_of(authority) as client:
        entry = NodeRegistered(roles=(Role.WORKER,), hardware="a laptop")
        await client.call(process.server, register, entry)
        reply = await client.call(process.server, HEARTBEAT, beat, run=RUN)
        assert reply.message.now_ms > 0
    async with client_of(None) as client:
        with pytest.raises(Unreachable, match="its TLS certificate is invalid"):
            await client.call(process.server, HEARTBEAT, beat, run=RUN)
    plain = process.server.url.replace("https://", "http://")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{plain}/healthz")
    assert await process.stop() == 0


async def test_the_operators_commands_need_the_authority_and_say_so(
    process: CoordinatorProcess, authority: Path
) -> None:
    known = type_command(process, "status", "--authority", str(authority))
    assert known.returncode == 0, known.stderr
    assert NETWORK in known.stdout
    by_name = process.server.url.replace("127.0.0.1", "localhost")
    paused = type_command(process, "run", "pause", RUN, "--authority", str(authority), "--url", by_name)
    assert paused.returncode == 0, paused.stderr
    unknown = type_command(process, "status")
    assert unknown.returncode == 4
    assert "its TLS certificate is invalid" in unknown.stderr
    assert "Traceback" not in unknown.stderr
