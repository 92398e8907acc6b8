"""Stake, work, cheat, slash, appeal, pay, claim, withdraw, over a real chain. In the middle of it the coordinator is
killed, and the chain restarts and changes its mind.
"""

import asyncio
import os
from pathlib import Path

import pytest

from prime_coordinator.settlement.actions import SlashPhase
from prime_protocol.ledger.entries import Outcome, Role, RunFunded
from prime_protocol.wire.ids import Digest
from prime_runtime.http.client import CallRefused
from prime_runtime.http.coordinator_api import open_json_client
from support.ledger_network import SLASH, STAKE
from support.processes.anvil import needs_anvil
from support.processes.chain_network import FUND, JUDGES, UNBONDING_S, Network, judge, network, until, work
from support.processes.coordinator import RUN, Party, publish

pytestmark = needs_anvil
BOND = 10**9


class PowerCut(Exception):
    """The command ends here."""


async def cut_off(*_: object) -> int:
    raise PowerCut


async def list_withdrawn(made: Network, who: Party) -> list[int]:
    """What the log knows to have gone out."""
    async with open_json_client(made.process.server.url) as client:
        await client.wait_for_index()
        page = await client.get("/log", kind="Withdrawn", author=str(who.node))
        bodies = [(await client.get(f"/log/{row['idx']}"))["body"] for row in page["entries"]["rows"]]
    return [body["amount_nano"] for body in bodies]


async def is_slash(made: Network, name: Digest, phase: SlashPhase) -> bool:
    return await made.slash_status(name) == phase


async def tokens(made: Network, who: Party) -> int:
    return int(await made.read("token", "balanceOf", who.node))


async def test_a_run_is_funded_over_the_chain_once_and_from_no_balance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with network(tmp_path) as (made, _):
        assert await pool_nano(made) == FUND
        with monkeypatch.context() as cut:
            cut.setattr("prime_coordinator.cli.chain.wait_until_logged", cut_off)
            with pytest.raises(PowerCut):
                await made.fund()
        await made.fund()
        assert (await made.pool())["held"] == await pool_nano(made) == 2 * FUND, "the second was not made twice"
        eve = await made.join("eve", Role.WORKER)
        with pytest.raises(CallRefused, match="prime-coordinator chain fund"):
            await eve.write(RunFunded(amount_nano=1))
        assert await made.operate("run", "fund", RUN, "1") == 1
        assert await pool_nano(made) == 2 * FUND


async def pool_nano(made: Network) -> int:
    """In the log."""
    async with open_json_client(made.process.server.url) as client:
        return int((await client.get("/status"))["runs"][0]["pool_nano"])


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes a minute: SLOW_TESTS=1")
async def test_a_whole_story_on_a_chain_whatever_is_killed_restarted_or_reorganised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with network(tmp_path) as (made, is_up):
        ann = await made.join("ann", Role.WORKER)
        for name in JUDGES:
            await made.join(name, Role.VALIDATOR)
        trainer = await made.meet("trainer")
        await publish(trainer, 0)

        # Honest work, then a file that is found to be a cheat; the slash is brought before the court after a kill.
        await work(made, ann, Outcome.ACCEPT)
        cheat = await work(made, ann, Outcome.FRAUDULENT)
        await made.process.kill()
        await made.process.start()
        await until("the slash before the court", lambda: is_slash(made, cheat, SlashPhase.OPEN))
        assert (await made.read("vault", "positionOf", ann.node))["stake"] == STAKE - SLASH

        # The chain changes its mind about the blocks in which that happened.
        await made.chain.reorganise(2)
        await until("the slash before the court again", lambda: is_slash(made, cheat, SlashPhase.OPEN))

        # An appeal that fails: others find the same.
        before = await tokens(made, ann)
        rewrite_url(made, "ann")
        assert await made.command("ann", "appeal", str(cheat), "--reason", "it was the cat") == 0
        assert await tokens(made, ann) == before - BOND
        await judge(made, cheat, Outcome.FRAUDULENT)
        await until("the slash executed", lambda: is_slash(made, cheat, SlashPhase.EXECUTED))

        # More stake, and a verdict that is wrong; the chain restarts, and the appeal succeeds.
        assert await made.command("ann", "stake", "add", str(SLASH // 10**9)) == 0
        wronged = await work(made, ann, Outcome.FRAUDULENT)
        is_up.clear()
        await asyncio.sleep(0.3)
        made.chain.stop()
        await until_logged(made, "SlashProposed", wronged)
        await made.chain.start()
        is_up.set()
        await until("the wrong slash before the court", lambda: is_slash(made, wronged, SlashPhase.OPEN))
        assert await made.command("ann", "appeal", str(wronged)) == 0
        await made.process.kill()
        await made.process.start()
        await judge(made, wronged, Outcome.ACCEPT)
        await until("the slash overturned", lambda: is_slash(made, wronged, SlashPhase.REFUNDED))
        assert (await made.read("vault", "positionOf", ann.node))["stake"] == STAKE
        assert await tokens(made, ann) == before - BOND - SLASH, "the second bond came back"

        # The step is paid, and what was paid is claimed.
        await publish(trainer, 1)
        await until("a payout root", lambda: is_promised(made))
        before = await tokens(made, ann)
        rewrite_url(made, "ann")
        with monkeypatch.context() as cut:
            cut.setattr("prime_node.cli.chain.send_entry", cut_off)
            with pytest.raises(PowerCut):
                await made.command("ann", "claim")
        assert await tokens(made, ann) > before
        assert not await list_withdrawn(made, ann), "the command was stopped before the log heard of it"
        paid = await tokens(made, ann)
        for _ in range(2):
            assert await made.command("ann", "claim") == 0
            assert await tokens(made, ann) == paid, "a second claim pays nothing"
            assert await list_withdrawn(made, ann) == [paid - before], "and the log hears of the first once"

        # And out: ask back, wait, withdraw. Who cannot pay the gas is told so, and types the same again.
        await made.chain.give(ann.node, 0)
        assert await made.command("ann", "unstake", str(STAKE // 10**9)) == 1
        await made.chain.give(ann.node)
        assert await made.command("ann", "unstake", str(STAKE // 10**9)) == 0
        assert await made.command("ann", "withdraw") == 1, "not before the delay is over"
        await made.chain.pass_time(UNBONDING_S)
        assert await made.command("ann", "withdraw") == 0
        assert await tokens(made, ann) == paid + STAKE
        assert await made.operate("chain", "anchor") == 0
        assert await made.operate("chain", "status") == 0
        assert await made.operate("deposit", "coordinator", "5", "--reference", "out of nothing") == 1


def rewrite_url(made: Network, name: str) -> None:
    """A coordinator that was started again listens on another port."""
    folder = made.folder / name
    for file in ("config.toml", "run.json"):
        path = folder / file
        text = path.read_text()
        old = text.split("http://127.0.0.1:")[1].split('"')[0]
        path.write_text(text.replace(f"http://127.0.0.1:{old}", made.process.server.url))


async def is_promised(made: Network) -> bool:
    return int((await made.pool())["promised"]) > 0


async def until_logged(made: Network, kind: str, subject: Digest) -> None:
    async with open_json_client(made.process.server.url) as client:

        async def is_logged() -> bool:
            return bool((await client.get("/log", kind=kind, about=str(subject)))["entries"]["rows"])

        await until(f"{kind} in the log", is_logged)
