"""A funder gets its money back without any coordinator, and is told why where it does not."""

import asyncio
from pathlib import Path

import pytest

from prime_coordinator.cli.main import main as coordinate
from prime_coordinator.settlement.actions import make_chain_terms
from prime_coordinator.settlement.config import SettlementConfig
from prime_coordinator.settlement.deployment import Deployer, DeploymentPlan
from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.wire.ids import NetworkId
from prime_protocol.wire.keystore import encrypt_key
from prime_runtime.chain.contracts import run_key
from prime_runtime.chain.payments import approve_and_call
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.files import write_private_file
from support.processes.anvil import GAS, anvil, needs_anvil
from support.processes.coordinator import RUN, key_of, terms
from support.processes.coordinator_main import PASSWORD

pytestmark = needs_anvil
UNBONDING_S = 1_300_000
UNITS = 700


async def test_a_funder_of_an_abandoned_run_takes_its_money_back_by_the_chain_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = key_of("operator and sponsor")
    cheap = encrypt_key(key, PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2)
    write_private_file(tmp_path / "key.json", cheap)
    write_private_file(tmp_path / "password", PASSWORD + "\n")
    async with anvil(tmp_path) as chain:
        await chain.give(key.node)
        wallet = Wallet(chain.chain, key, SystemClock(), gas=GAS)
        wanted = DeploymentPlan(NetworkId("testnet"), UNBONDING_S, None, 10**6)
        at = await Deployer(chain.chain, wallet, ChainFiles(tmp_path), wanted, lambda line: None).deploy()
        where = ["--rpc", chain.rpc, "--court", str(at.court.address)]
        whose = ["--key", str(tmp_path / "key.json"), "--key-password-file", str(tmp_path / "password")]

        async def reclaim() -> tuple[int, str]:
            code = await asyncio.to_thread(coordinate, ["chain", "reclaim", RUN, *where, *whose])
            told = capsys.readouterr()
            return code, told.out + told.err

        assert "the chain has no such run" in (await reclaim())[1]
        words = make_chain_terms(terms(), SettlementConfig(), at.scale).words()
        await wallet.send_and_wait("the run", at.registry, "createRun", RUN, key.node, words)
        await approve_and_call(chain.chain, wallet, at, "the funding", at.pool, UNITS, ("fund", run_key(RUN), UNITS))
        code, text = await reclaim()
        assert code == 1
        assert "the run is not over" in text
        await chain.pass_time(4 * UNBONDING_S)
        code, text = await reclaim()
        assert (code, int(await chain.chain.read(at.pool, "held"))) == (0, 0)
        assert f"of {RUN} are back in the wallet {key.node}" in text
        code, text = await reclaim()
        assert (code, "has nothing in the run's pool" in text) == (1, True)
