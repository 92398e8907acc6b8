"""The wallet on a real chain: each transaction counts once, whatever stops the process or the chain's miners."""

import asyncio
import sys
from pathlib import Path

import pytest

from prime_protocol.wire.ids import NodeId, checksum_address
from prime_runtime.chain.client import Contract
from prime_runtime.chain.transactions import ChainUnavailable, GasCapExceeded, GasConfig, NonceTaken
from prime_runtime.chain.wallet import GWEI, Wallet
from prime_runtime.clock import SystemClock
from support.processes.anvil import Anvil, anvil, needs_anvil
from support.processes.coordinator import key_of

pytestmark = needs_anvil
KEY, TO = key_of("payer"), checksum_address(key_of("payee").node)
IMPATIENT = GasConfig(patience_ms=1_000, fee_gwei_max=100)
GIFTS = 4
GIVER = """
import asyncio, sys
from pathlib import Path
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.transactions import GasConfig
from prime_runtime.chain.client import ChainClient, Contract
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock

async def give(rpc, secret, book, token, payee, gifts):
    chain = ChainClient(rpc)
    key = WalletKey.from_secret(bytes.fromhex(secret))
    wallet = Wallet(chain, key, SystemClock(), gas=GasConfig(patience_ms=30_000), confirmations=12, path=Path(book))
    for _ in range(int(gifts)):
        gift = Contract("TestToken", NodeId.parse(token)), "transfer", NodeId.parse(payee), 1
        await wallet.send_and_wait("a gift", *gift)
    await chain.close()

asyncio.run(give(*sys.argv[1:]))
"""
"""A process that uses the payer's key."""


class LateClock(SystemClock):
    """Its time is what a test says."""

    late_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.late_ms


def open_wallet(chain: Anvil, folder: Path, clock: SystemClock | None = None) -> Wallet:
    return Wallet(chain.chain, KEY, clock or SystemClock(), gas=IMPATIENT, confirmations=2, path=folder / "book.json")


async def test_what_was_written_down_and_never_sent_is_sent_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        first = open_wallet(chain, tmp_path)

        async def die(raw: str) -> None:
            raise ChainUnavailable("the power is gone")

        with monkeypatch.context() as power, pytest.raises(ChainUnavailable):
            power.setattr(chain.chain, "send_raw", die)
            await first.send_data("a gift", TO, "0x")
        assert await chain.chain.nonce(KEY.node) == 0
        second = open_wallet(chain, tmp_path)
        mined = await second.wait_for("a gift")
        assert mined.has_succeeded
        assert await chain.chain.nonce(KEY.node) == 1


async def test_one_that_no_miner_takes_is_offered_for_more_and_counts_once(tmp_path: Path) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        await chain.chain.ask("evm_setAutomine", False)
        clock = LateClock()
        wallet = open_wallet(chain, tmp_path, clock)
        await wallet.send_data("a gift", TO, "0x")
        fees = []
        for _ in range(3):
            clock.late_ms += IMPATIENT.patience_ms
            await wallet.update_pending(await chain.chain.newest())
            fees.append(wallet.pending[0].last.fee_wei)
        assert fees == sorted(set(fees)) and fees[-1] <= IMPATIENT.fee_gwei_max * GWEI
        again = open_wallet(chain, tmp_path, clock)
        assert len(again.pending[0].attempts) == 4, "every try is remembered: any of them may be the one that counts"
        await chain.mine()
        await again.update_pending(await chain.chain.newest())
        assert not again.is_busy
        assert await chain.chain.nonce(KEY.node) == 1


async def test_one_that_another_process_has_replaced_is_given_up_and_said_so(tmp_path: Path) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        await chain.chain.ask("evm_setAutomine", False)
        wallet = open_wallet(chain, tmp_path)
        await wallet.send_data("a gift", TO, "0x")
        await chain.chain.ask("anvil_dropTransaction", wallet.pending[0].last.hash)
        other = Wallet(chain.chain, KEY, SystemClock(), gas=IMPATIENT)
        await other.send_data("another", checksum_address(KEY.node), "0x")
        await chain.mine()
        with pytest.raises(NonceTaken, match="used the nonce of a gift"):
            await wallet.wait_for("a gift")
        assert wallet.pending == ()


@pytest.mark.parametrize("books", [("one", "one"), ("one", "two")])
async def test_two_processes_with_one_key_lose_and_double_nothing(tmp_path: Path, books: tuple[str, str]) -> None:
    """With one book they take turns. With a book each, one key in two folders, the slower sends again."""
    payee = key_of("payee").node
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        token = await make_token(chain, open_wallet(chain, tmp_path))
        words = [(chain.rpc, KEY.secret().hex(), f"{tmp_path / book}.json", str(token), str(payee)) for book in books]
        both = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", GIVER, *each, str(GIFTS), stderr=-1)
            for each in words
        ]
        for process in both:
            _, complaint = await process.communicate()
            assert process.returncode == 0, complaint.decode()
        at = Contract("TestToken", token)
        assert await chain.chain.read(at, "balanceOf", payee) == 2 * GIFTS
        assert await chain.chain.nonce(KEY.node) == 1 + 2 * GIFTS


async def make_token(chain: Anvil, wallet: Wallet) -> NodeId:
    await wallet.send_data("the token", "", chain.chain.encode_creation("TestToken", "Test token", "TEST", 10**9))
    made = (await wallet.wait_for("the token")).contract
    assert made is not None
    return made


async def test_one_that_the_miners_have_dropped_holds_up_the_next_only_until_it_is_offered_again(
    tmp_path: Path,
) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        await chain.chain.ask("evm_setAutomine", False)
        clock = LateClock()
        wallet = open_wallet(chain, tmp_path, clock)
        first = await wallet.send_data("the first", TO, "0x")
        await wallet.send_data("the second", TO, "0x")
        await chain.chain.ask("anvil_dropTransaction", first.last.hash)
        await chain.mine()
        again = open_wallet(chain, tmp_path, clock)
        assert await chain.chain.nonce(KEY.node) == 0, "there is a gap"
        clock.late_ms += IMPATIENT.patience_ms
        await again.update_pending(await chain.chain.newest())
        await chain.mine()
        assert await chain.chain.nonce(KEY.node) == 2


async def test_fees_above_the_cap_are_waited_out(tmp_path: Path) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        await chain.chain.ask("anvil_setNextBlockBaseFeePerGas", hex(101 * GWEI))
        await chain.mine()
        with pytest.raises(ChainUnavailable, match="the cap is 100"):
            await open_wallet(chain, tmp_path).send_data("a gift", TO, "0x")


async def test_a_transaction_that_needs_more_gas_than_the_cap_is_not_sent(tmp_path: Path) -> None:
    async with anvil(tmp_path) as chain:
        await chain.give(KEY.node)
        wallet = Wallet(chain.chain, KEY, SystemClock(), gas=GasConfig(gas_max=100_000))
        with pytest.raises(GasCapExceeded, match="the cap is 100000"):
            await make_token(chain, wallet)
        assert await chain.chain.nonce(KEY.node) == 0


async def test_what_cannot_be_paid_for_is_not_written_down(tmp_path: Path) -> None:
    """Else it would be sent some day, beside what was typed again in the meantime."""
    async with anvil(tmp_path) as chain:
        wallet = open_wallet(chain, tmp_path)
        with pytest.raises(ChainUnavailable, match="holds 0 wei on the chain, and the gas of a gift"):
            await wallet.send_data("a gift", TO, "0x")
        assert wallet.pending == () and not (tmp_path / "book.json").exists()
