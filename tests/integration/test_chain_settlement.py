"""EVM settlement on a real anvil, with a real log: deposits, anchors, payouts, slashes and appeals."""

from pathlib import Path

from integration.chain_parts import needs_anvil
from integration.chain_rig import rig
from ledger_world import STAKE

from prime_protocol.entries import Role

pytestmark = needs_anvil


async def test_a_deposit_comes_into_the_log_once_and_the_log_is_anchored(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.join("ann", role=Role.WORKER)
        assert made.world.stake_of("ann") == STAKE
        made.world.create_run(appeal_bond_nano=0)
        await made.settle()
        size = await made.anchored()
        assert size > 0
        made.restart()
        await made.settle()
        assert made.world.state.books.deposited_nano == STAKE
        assert await made.anchored() == size, "one anchor an epoch"
        made.world.note_head()
        await made.next_epoch()
        assert await made.anchored() == len(made.world.leaves)
