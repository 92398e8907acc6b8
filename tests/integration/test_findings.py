"""A forged file that a lying validator accepted: another account reads it again with the real command and files a
finding; judges that are real processes decide it, the worker is slashed, and the finder is told.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp

from prime_node.jobs.evidence_bundle import decode_evidence
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.entries import Outcome, Role, RunFunded
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UploadPurpose
from prime_protocol.wire.typed_data import compute_receipt_id
from support.ledger_network import TOKEN, make_registration
from support.processes.coordinator import FUND, GIFT, NETWORK, RUN, Party, key_of, party, terms
from support.processes.nodes import TERMS, Network, alter_checkpoint, running_network
from support.processes.swarm import WAIT_S, run_command, until, write_key

BOND, SHARE = TOKEN, 2000
SLOTS: dict[str, Any] = {"slots_per_step": 2}
DAY_MS = 24 * 3_600_000


async def test_a_finding_about_a_forged_file_is_upheld_and_its_finder_is_paid_and_told(tmp_path: Path) -> None:
    windows: dict[str, Any] = {"appeal_ms": 2_000, "vesting_ms": DAY_MS}
    async with (
        running_network(tmp_path, finding_bond_nano=BOND, bounty_share=SHARE, **windows, **SLOTS) as network,
        lying_validator(network),
    ):
        forged, honest = await submit_forged(network), await submit_honest(network)
        finder = Finder(network, "eve")
        code, text = await finder.file(honest)
        assert (code, "no finding was filed: on this machine the file is accept" in text) == (1, True), text
        code, text = await finder.file(forged)
        assert (code, "no finding was filed" in text, "the balance of" in text) == (1, True, True), text
        assert await network.entries("FindingFiled") == []

        await finder.register()
        judge = await network.node("val", "validator")
        code, text = await finder.file(forged)
        assert (code, "is filed; drawn validators decide it" in text) == (0, True), text
        await until_logged(network, "FindingFiled")
        (filed,) = await network.entries("FindingFiled")
        await check_evidence(network, forged, filed["evidence"])

        await until_logged(network, "FindingUpheld", lambda: judge.command.tail)
        await until_logged(network, "SlashExecuted", lambda: judge.command.tail)
        code, text = await finder.type("findings")
        assert (code, "the worker is slashed: your bond is back" in text) == (0, True), text
        (slash,) = await network.entries("SlashProposed")
        assert await finder.read_balance() == GIFT + slash["amount_nano"] * SHARE // BASIS_POINTS
        assert await judge.command.stop() == 0, judge.command.tail


async def test_a_finding_after_the_pay_has_vested_is_refused(tmp_path: Path) -> None:
    async with running_network(tmp_path, finding_bond_nano=BOND, vesting_ms=0, lag_max=0, **SLOTS) as network:
        async with lying_validator(network), party(network.coordinator, "sponsor") as sponsor:
            await sponsor.write(RunFunded(amount_nano=FUND))
            forged = await submit_forged(network)
            await submit_honest(network)
            await network.publish(alter_checkpoint(network.checkpoint, tmp_path / "step-1", share=0.01), 1, "--delta")
            await until_logged(network, "PaidOut")
        finder = Finder(network, "eve")
        await finder.register()
        code, text = await finder.file(forged)
        assert (code, "its pay has vested" in text) == (1, True), text
        assert await network.entries("FindingFiled") == []


class Finder:
    """Another account, in a folder that names the network and where no node was ever started."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self._name = network, name
        self.folder = network.folder / name
        self.node = key_of(name).node
        write_key(self.folder / "key.json", name)

    async def type(self, *words: str) -> tuple[int, str]:
        server = self._network.coordinator.server
        return await run_command(
            *("prime-node", *words, "--folder", str(self.folder)),
            PRIME_COORDINATOR=server.url,
            PRIME_COORDINATOR_ID=str(server.node),
            PRIME_NETWORK=NETWORK,
            PRIME_RUN=RUN,
            PRIME_ENGINE_PYTHON=str(self._network.double),
        )

    async def file(self, name: Digest) -> tuple[int, str]:
        return await self.type("audit", str(name), "--file-finding", "--weights", str(self._network.checkpoint))

    async def register(self) -> None:
        """The faucet gives it a balance."""
        async with party(self._network.coordinator, self._name) as eve:
            await eve.write(make_registration(eve.key, Role.RELAY))

    async def read_balance(self) -> int:
        async with self._network.api() as api:
            await api.wait_for_index()
            return int((await api.get(f"/nodes/{self.node}"))["owner_balance_nano"])


@asynccontextmanager
async def lying_validator(network: Network) -> AsyncIterator[None]:
    """The first validator; it accepts whatever it is drawn for, and cosigns heads as honest ones do."""
    async with party(network.coordinator, "liar") as liar:
        await liar.join(Role.VALIDATOR)
        accepting = asyncio.create_task(accept_all(liar))
        yield
        accepting.cancel()


async def accept_all(liar: Party) -> None:
    while True:
        await liar.beat()
        for task in liar.audits:
            await liar.judge(task, Outcome.ACCEPT)
        await asyncio.sleep(0.1)


async def submit_forged(network: Network) -> Digest:
    """Of one slot, by a worker without a model."""
    async with party(network.coordinator, "cheat") as cheat, network.api() as api:
        await cheat.join(Role.WORKER)
        await api.wait_for_index()
        (row,) = (await api.get("/checkpoints"))["rows"]
        lease = await cheat.lease()
        wanted = terms(**{**TERMS, **SLOTS})
        data, entry = cheat.answer(
            lease, beacon=Digest.parse(row["beacon"]), root=Digest.parse(row["root"]), wanted=wanted
        )
        await cheat.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await cheat.write(entry)
    name = compute_receipt_id(entry.receipt)
    await until_credited(network, name)
    return name


async def submit_honest(network: Network) -> Digest:
    """By a worker that is a process of its own, for what is left of the step."""
    worker = await network.node("ann", "worker")
    await until(lambda: any(piece.submission for piece in worker.pieces()), "a file", lambda: worker.command.tail)
    name = next(piece.submission for piece in worker.pieces() if piece.submission)
    await until_credited(network, Digest.parse(str(name)))
    assert await worker.command.stop() == 0, worker.command.tail
    return Digest.parse(str(name))


async def until_credited(network: Network, name: Digest) -> None:
    async with asyncio.timeout(WAIT_S):
        while not any(
            {"submission": str(name), "outcome": "accept"} in each["settled"] and str(name) not in each["uncredited"]
            for each in await network.entries("Settled")
        ):
            await asyncio.sleep(0.05)


async def until_logged(network: Network, kind: str, explain: Any = lambda: "") -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not await network.entries(kind):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"no {kind} in the log\n{explain()}") from None


async def check_evidence(network: Network, forged: Digest, evidence: str) -> None:
    """Anyone can download it, run it again, and find it on the submission's page."""
    async with aiohttp.ClientSession(network.coordinator.server.url) as session, network.api() as api:
        async with session.get(f"/objects/{evidence}") as response:
            bundle = await response.read()
        await api.wait_for_index()
        view = await api.get(f"/submissions/{forged}")
        async with session.get(f"/submissions/{forged}", headers={"Accept": "text/html"}) as response:
            page = await response.text()
    assert str(Digest(sha256(bundle).digest())) == evidence
    found = decode_evidence(bundle)
    assert (found.task.submission, found.outcome, found.receipt is not None) == (forged, Outcome.FRAUDULENT, True)
    assert view["finding_evidence"] == evidence
    assert evidence in page
    url, weights = network.coordinator.server.url, str(network.checkpoint)
    code, text = await network.audit(evidence, "--coordinator", url, "--weights", weights)
    assert (code, "this machine agrees with the verdict" in text) == (0, True), text
