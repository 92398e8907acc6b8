"""A finding over a real chain: a forged file that a validator accepted costs the worker its stake and the validator a
penalty, and the finder claims a bounty. Coordinator and commands are the real programs.
"""

import asyncio
import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from prime_coordinator.settlement.actions import SlashPhase
from prime_node.cli.main import main as node_main
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.entries import FindingFiled, Outcome, Role
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UploadPurpose
from prime_runtime.chain.abi import compute_penalty_name
from prime_runtime.http.coordinator_api import open_json_client
from support.ledger_network import HOUR_MS, PENALTY, SLASH, STAKE, TERMS
from support.processes.anvil import needs_anvil
from support.processes.chain_network import FUND, JUDGES, Network, judge, network, until, work
from support.processes.coordinator import Party, publish

pytestmark = needs_anvil
WINDOW_S = 600


async def find(made: Network, finder: Party, name: Digest) -> None:
    """File a finding about an accepted file, which other judges confirm."""

    async def is_credited() -> bool:
        async with open_json_client(made.process.server.url) as client:
            await client.wait_for_index()
            return bool((await client.get("/log", kind="Settled", about=str(name)))["entries"]["rows"])

    await until("the credit", is_credited)
    bundle = b"what eve saw"
    await finder.upload(bundle, UploadPurpose.EVIDENCE, submission=name)
    evidence = Digest(sha256(bundle).digest())
    await finder.write(FindingFiled(submission=name, evidence=evidence, reason="not the run's model"))
    await judge(made, name, Outcome.FRAUDULENT)


async def list_accepting(made: Network, name: Digest) -> list[Party]:
    """The judges whose verdict accepted it."""
    async with open_json_client(made.process.server.url) as client:
        await client.wait_for_index()
        rows = (await client.get("/log", kind="VerdictGiven", about=str(name)))["entries"]["rows"]
        bodies = {row["author"]: (await client.get(f"/log/{row['idx']}"))["body"] for row in rows}
    accepting = {author for author, body in bodies.items() if body["outcome"] == "accept"}
    return [made.people[each] for each in JUDGES if str(made.people[each].node) in accepting]


def liar_name(made: Network, liar: Party) -> str:
    return next(name for name, party in made.people.items() if party is liar)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes a minute: SLOW_TESTS=1")
async def test_a_forged_file_costs_worker_and_validator_stake_and_pays_its_finder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"validator_slash_nano": PENALTY, "finding_bond_nano": 0, "vesting_ms": HOUR_MS}
    async with network(tmp_path, slash_to=SlashDestination.POOL, **changes) as (made, _):
        ann = await made.join("ann", Role.WORKER)
        eve = await made.join("eve", Role.WORKER)
        for name in JUDGES:
            await made.join(name, Role.VALIDATOR)
        await publish(await made.meet("trainer"), 0)
        forged = await work(made, ann, Outcome.ACCEPT)
        await find(made, eve, forged)

        async def is_slash(name: Digest, phase: SlashPhase) -> bool:
            return await made.slash_status(name) == phase

        await until("the slash before the court", lambda: is_slash(forged, SlashPhase.OPEN))
        assert await made.command("ann", "appeal", str(forged)) == 0
        await judge(made, forged, Outcome.FRAUDULENT)
        await until("the slash executed", lambda: is_slash(forged, SlashPhase.EXECUTED))

        # The finder's share is at the court, and `prime-node findings` says so.
        capsys.readouterr()
        findings = ["findings", "--folder", str(tmp_path / "eve")]
        assert await asyncio.to_thread(node_main, [*findings, "--json"]) == 0
        (finding,) = json.loads(capsys.readouterr().out)
        assert (finding["state"], finding["bounty_to"]) == ("executed", str(eve.node))
        assert await asyncio.to_thread(node_main, findings) == 0
        assert "prime-node claim --bounty" in capsys.readouterr().out
        before = int(await made.read("token", "balanceOf", eve.node))
        bounty = SLASH * TERMS.bounty_share // BASIS_POINTS
        assert await made.command("eve", "claim", "--bounty") == 0
        assert int(await made.read("token", "balanceOf", eve.node)) == before + bounty
        assert await made.command("eve", "claim", "--bounty") == 1, "there is nothing more"

        # The validator that accepted the file pays, once the window for its appeal is over; its owner sees why.
        (liar,) = await list_accepting(made, forged)
        penalty = compute_penalty_name(forged, liar.node)
        await until("the penalty before the court", lambda: is_slash(penalty, SlashPhase.OPEN))
        capsys.readouterr()
        assert await made.command(liar_name(made, liar), "stake", "--json") == 0
        (shown,) = json.loads(capsys.readouterr().out)["penalties"]
        assert (shown["submission"], shown["penalty_nano"]) == (str(forged), PENALTY)
        await made.process.kill()
        await made.process.start()
        await made.chain.pass_time(WINDOW_S)
        await until("the penalty executed", lambda: is_slash(penalty, SlashPhase.EXECUTED))
        assert (await made.read("vault", "positionOf", liar.node))["stake"] == STAKE - PENALTY
        assert (await made.pool())["held"] == FUND + SLASH + 10**9 - bounty + PENALTY, "with the bond of the appeal"

        async def is_booked() -> bool:
            async with open_json_client(made.process.server.url) as client:
                return int((await client.get("/status"))["runs"][0]["pool_nano"]) == (await made.pool())["held"]

        await until("both books agree", is_booked)
