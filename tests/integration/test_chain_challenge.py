"""The attack false-payout-root: an operator promises itself the pool, and staked owners stop it in time."""

import os
from pathlib import Path
from typing import Any

import pytest

from prime_node.cli.context import with_pins
from prime_node.config import resolve_node_config
from prime_node.settlement.challenges import parse_size
from prime_node.settlement.payout_watch import PayoutWatch
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.payout_tree import PayoutTree
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.ids import NodeId
from prime_runtime.chain.contracts import run_key
from prime_runtime.chain.transactions import ContractReverted
from prime_runtime.clock import SystemClock
from prime_runtime.http.coordinator_api import open_json_client
from prime_runtime.log_files import read_leaves, read_tree_head
from support.ledger_network import TOKEN
from support.processes.anvil import Holder, needs_anvil
from support.processes.chain_network import JUDGES, Network, network, until, work
from support.processes.coordinator import NETWORK, RUN, key_of, publish

pytestmark = needs_anvil
DELAY_S = 3_600
LOOT = 300 * TOKEN
EXIT_WRONG = 3


async def fetch_paid(made: Network, epoch: int) -> dict[NodeId, int]:
    async with open_json_client(made.process.server.url) as client:
        rows = (await client.get(f"/payouts/{RUN}/{epoch}"))["paid"]
    return {NodeId.parse(row["account"]): row["paid_nano"] for row in rows}


async def list_promises(made: Network) -> list[dict[str, Any]]:
    async with open_json_client(made.process.server.url) as client:
        return list((await client.get("/settlement"))["promises"])


async def post_as_operator(made: Network, table: dict[NodeId, int]) -> PayoutTree:
    """The operator's key outside of its program: it posts what it likes on the newest head."""
    tree = PayoutTree(table)
    liar = await Holder.open(made.chain, made.contracts, key_of("operator"))

    async def is_posted() -> bool:
        epoch = int((await made.pool())["epoch"]) + 1
        size = await made.read("anchor", "latestSize", run_key(RUN))
        values = (run_key(RUN), epoch, size, tree.root, tree.total)
        try:
            await liar.wallet.send_and_wait("loot", made.contracts.pool, "postRoot", *values)
        except ContractReverted as error:
            assert error.name in ("HeadNotNewest", "EpochTooSoon", ""), error
            return False
        return True

    await until("a false root", is_posted)
    return tree


class ReplayedMirror:
    """The ledger of a node that follows the log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.size = 0

    async def query(self, function: Any, /, *args: Any) -> Any:
        leaves = read_leaves(self._folder, parse_size(read_tree_head(self._folder)))
        state = replay(NETWORK, leaves).state
        self.size = state.size
        return function(state, *args)


def open_watch(made: Network, name: str) -> PayoutWatch:
    config = with_pins(resolve_node_config(made.folder / name, {"rpc": made.chain.rpc}, {}).config)
    return PayoutWatch(
        config, made.people[name].key, ReplayedMirror(made.process.config.folder / "mirror"), SystemClock()
    )


async def is_epoch(made: Network, epoch: int) -> bool:
    return int((await made.pool())["epoch"]) == epoch


async def is_shown_void(made: Network) -> bool:
    return any(row["void"] for row in await list_promises(made))


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes a minute: SLOW_TESTS=1")
async def test_a_root_that_pays_its_operator_is_voided_by_validators_and_a_right_one_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with network(tmp_path, payout_delay_s=DELAY_S, quorum=2) as (made, _):
        ann = await made.join("ann", Role.WORKER)
        for name in JUDGES:
            await made.join(name, Role.VALIDATOR)
        trainer = await made.meet("trainer")
        await publish(trainer, 0)
        await work(made, ann, Outcome.ACCEPT)
        await publish(trainer, 1)
        await until("a payout root", lambda: is_epoch(made, 1))
        capsys.readouterr()

        # The honest root: everyone who replays the log gets the same.
        assert await made.command("val-1", "challenge") == 0
        assert "the log gives the same root" in capsys.readouterr().out

        watch = open_watch(made, "val-2")
        await watch.sample()

        # The false one, while the program is running and knows nothing of it.
        honest = await fetch_paid(made, 1)
        false = await post_as_operator(made, {**honest, key_of("operator").node: LOOT})
        assert await made.command("val-1", "challenge", "--dry-run") == EXIT_WRONG
        shown = capsys.readouterr().out
        assert "WRONG ROOT" in shown and str(false.root) in shown
        assert await is_epoch(made, 2), "a look changes nothing"
        mirror = str(made.process.config.folder / "mirror")
        assert await made.command("val-1", "challenge", "--mirror", mirror) == 0
        assert "1 owners so far; 2 make it void" in capsys.readouterr().out
        assert await made.command("val-1", "challenge") == 1, "an owner counts once"
        await watch.sample()
        await watch.check_chain()
        assert await is_epoch(made, 1), "the second owner's node voted by itself"

        # What was promised before stays; the accused's own program says what happened, loudly.
        pool = await made.pool()
        assert (pool["epoch"], pool["promised"]) == (1, sum(honest.values()))
        await until("the void root in its status", lambda: is_shown_void(made))
        assert await made.operate("chain", "status") == 0
        assert "VOID" in capsys.readouterr().out

        # More work is paid, by a right root in its place, after twice the delay.
        await work(made, ann, Outcome.ACCEPT)
        await publish(trainer, 2)
        await until("a right root", lambda: is_epoch(made, 2))
        assert await made.command("val-2", "challenge") == 0
        assert "WRONG" not in capsys.readouterr().out
        promise = await made.read("pool", "promiseOf", run_key(RUN), 2)
        assert promise["voids"] == 1
        await made.chain.pass_time(2 * DELAY_S + 60)
        paid = await fetch_paid(made, 2)
        assert await made.command("ann", "claim") == 0
        assert await made.read("pool", "claimedBy", run_key(RUN), ann.node) == paid[ann.node]
        assert key_of("operator").node not in paid
