"""What an operator is told who names a wrong chain, token or contract: before any gas is spent, and what to do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prime_coordinator.cli.main import main as coordinate
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.keystore import encrypt_key
from prime_runtime.chain.contracts import find_contracts
from prime_runtime.chain.transactions import ChainUnavailable
from prime_runtime.files import write_private_file
from support.processes.anvil import Anvil, anvil, needs_anvil
from support.processes.coordinator import NETWORK, key_of
from support.processes.coordinator_main import PASSWORD

pytestmark = needs_anvil
OPERATOR, NOBODY = key_of("operator"), key_of("nobody").node


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Anvil]:
    async with anvil(tmp_path) as made:
        home = tmp_path / "home"
        home.mkdir()
        write_private_file(tmp_path / "password", PASSWORD + "\n")
        cheap = encrypt_key(OPERATOR, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2)
        write_private_file(CoordinatorHome(home).key, cheap)
        yield made


async def operate(folder: Path, *words: str) -> int:
    given = ["--folder", str(folder / "home"), "--network", NETWORK, "--password-file", str(folder / "password")]
    return await asyncio.to_thread(coordinate, [*words, *given])


async def test_contracts_are_made_only_on_a_chain_and_for_a_token_that_are_there(
    tmp_path: Path, chain: Anvil, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*words: str, says: str) -> None:
        assert await operate(tmp_path, "chain", "deploy", *words) == 1
        assert says in capsys.readouterr().err

    there = ("--rpc", chain.rpc)
    await refused("--rpc", "localhost:8545", "--test-token", "5", says="write http://host:port")
    await refused("--rpc", "http://127.0.0.1:1", "--test-token", "5", says="cannot be reached")
    await refused(*there, "--test-token", "5", says=f"{OPERATOR.node} holds 0 wei")
    await chain.give(OPERATOR.node)
    await refused(*there, "--token", checksum_address(NOBODY), says=f"there is no token at {NOBODY}")
    await refused(
        *there,
        "--token",
        checksum_address(NOBODY).swapcase().replace("X", "x"),
        says="fails the checksum of its",
    )
    assert await chain.chain.nonce(OPERATOR.node) == 0, "nothing was spent"

    assert await operate(tmp_path, "chain", "deploy", *there, "--test-token", "5") == 0
    made = ChainFiles(tmp_path / "home").read_deployment()
    await refused(*there, "--token", made["TestToken"], says="was begun with token a test token")
    with pytest.raises(ChainUnavailable, match="is not a court of ours"):
        await find_contracts(chain.chain, NodeId.parse(made["RunRegistry"]))
    capsys.readouterr()
    words = ("init", "--settlement-kind", "evm", "--settlement-rpc", chain.rpc, "--settlement-court", str(NOBODY))
    assert await operate(tmp_path, *words) == 1
    assert "settlement.court differs" in capsys.readouterr().err
