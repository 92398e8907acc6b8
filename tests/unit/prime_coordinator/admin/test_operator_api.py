"""The operator's endpoints over real sockets: only the coordinator's own key is heard; what it orders is on disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prime_coordinator.admin.operator_api import add_operator_routes
from prime_coordinator.operator_messages import (
    ANCHOR_NOW,
    COUNT_VALIDATORS,
    OPERATOR_ENDPOINTS,
    OPERATOR_ENTRIES,
    OPERATOR_ENTRY_ENDPOINTS,
    AnchorNow,
    CountValidators,
)
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.ledger.entries import (
    Deposited,
    NodeStatus,
    NodeStatusSet,
    Role,
    RunCreated,
    RunStatus,
    RunStatusSet,
)
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.http.client import CallRefused, HttpClient, open_client
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress, ServerLimits
from prime_runtime.http.server import HttpServer
from support.app_context import FakeAppContext
from support.ledger_network import DAY_MS, NETWORK, RUN, STAKE, VALIDATORS, World, digest
from support.processes.signed_http import TestClock


@asynccontextmanager
async def called_by(
    name: str, world: World, folder: Path
) -> AsyncIterator[tuple[HttpClient, ServerAddress, FakeAppContext]]:
    """A client with this party's key, and a server with the operator's routes."""
    context, clock, key = await FakeAppContext.open(world, folder), TestClock(), world.key("coordinator")
    http = HttpServer(key, NETWORK, clock=clock, limits=ServerLimits(drain_ms=100))
    add_operator_routes(http, context)
    port = await http.start(ListenConfig())
    limits = ClientLimits(attempts_max=1)
    async with open_client(key=world.key(name), network=NETWORK, clock=clock, limits=limits) as client:
        yield client, ServerAddress(f"http://127.0.0.1:{port}", key.node), context
    await http.stop()
    context.log.close()


def test_every_operator_entry_has_its_endpoint() -> None:
    assert set(OPERATOR_ENTRY_ENDPOINTS) == set(OPERATOR_ENTRIES)
    assert len({endpoint.path for endpoint in OPERATOR_ENDPOINTS}) == len(OPERATOR_ENTRIES) + 2


async def test_an_operator_entry_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    world = World.started()
    async with called_by("coordinator", world, tmp_path) as (client, server, context):
        entry = NodeStatusSet(node=world.id("bob"), status=NodeStatus.DRAINED, reason="the disk is full")
        answer = await client.call(server, OPERATOR_ENTRY_ENDPOINTS[NodeStatusSet], entry)
        stored = await context.log.list_entries(limit=1)
        paused = RunStatusSet(status=RunStatus.PAUSED, reason="")
        await client.call(server, OPERATOR_ENTRY_ENDPOINTS[RunStatusSet], paused, run=RUN)
    assert stored[0].index == answer.message.index
    assert stored[0].kind == "NodeStatusSet"
    assert world.state.nodes[world.id("bob")].status is NodeStatus.DRAINED
    assert world.run.status is RunStatus.PAUSED


@pytest.mark.parametrize("stranger", ["ann", "trainer", "nobody"])
async def test_only_the_operator_may_append(tmp_path: Path, stranger: str) -> None:
    world = World.started()
    before = world.snapshot()
    async with called_by(stranger, world, tmp_path) as (client, server, context):
        for entry, run in (
            (Deposited(account=world.id(stranger), amount_nano=1, reference=digest("x")), None),
            (NodeStatusSet(node=world.id("bob"), status=NodeStatus.BANNED, reason=""), None),
            (RunStatusSet(status=RunStatus.CLOSED, reason=""), RUN),
        ):
            with pytest.raises(CallRefused) as refused:
                await client.call(server, OPERATOR_ENTRY_ENDPOINTS[type(entry)], entry, run=run)
            assert refused.value.refusal.code is RefusalCode.FORBIDDEN
        assert context.commits == 0
    assert world.snapshot() == before


async def test_a_refused_operator_entry_changes_nothing_and_says_why(tmp_path: Path) -> None:
    world = World.started()
    size = len(world.leaves)
    async with called_by("coordinator", world, tmp_path) as (client, server, _):
        create = OPERATOR_ENTRY_ENDPOINTS[RunCreated]
        for run, field in ((RUN, "run"), (None, "Payload.run")):
            with pytest.raises(CallRefused) as refused:
                await client.call(server, create, RunCreated(terms=world.terms()), run=run)
            assert refused.value.refusal.field == field
        with pytest.raises(CallRefused) as refused:
            deposit = Deposited(account=world.id("ann"), amount_nano=5, reference=digest("y"))
            await client.call(server, OPERATOR_ENTRY_ENDPOINTS[Deposited], deposit, run=RunId("run-2"))
        assert refused.value.refusal.field == "Payload.run"
        await client.call(server, create, RunCreated(terms=world.terms()), run=RunId("run-2"))
    assert len(world.leaves) == size + 1
    assert set(world.state.runs) == {RUN, "run-2"}


@pytest.mark.parametrize(("name", "is_heard"), [("coordinator", True), ("ann", False)])
async def test_only_the_operator_may_request_an_anchor(
    tmp_path: Path, name: str, is_heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.started()
    hastened: list[int] = []
    async with called_by(name, world, tmp_path) as (client, server, context):
        monkeypatch.setattr(context.settlement, "request_anchor", lambda: hastened.append(world.state.size))
        for size in (0, world.state.size + 1):
            try:
                answer = await client.call(server, ANCHOR_NOW, AnchorNow(size=size))
                assert answer.message.size == world.state.size
            except CallRefused as refused:
                expected = RefusalCode.MALFORMED if is_heard else RefusalCode.FORBIDDEN
                assert refused.refusal.code is expected
    assert hastened == ([world.state.size] if is_heard else [])


async def test_the_operator_is_told_how_many_owners_could_judge_a_run(tmp_path: Path) -> None:
    world = World.started(validators=4)
    world.join("twin", Role.VALIDATOR, owner=VALIDATORS[0])
    world.join("tenant", Role.VALIDATOR, owner="landlord")
    world.join("poor", Role.VALIDATOR, stake_nano=STAKE - 1)
    world.write("coordinator", NodeStatusSet(node=world.id(VALIDATORS[3]), status=NodeStatus.DRAINED, reason=""))
    terms = world.terms()
    async with called_by("coordinator", world, tmp_path) as (client, server, _):
        known = await client.call(server, COUNT_VALIDATORS, CountValidators(terms=terms), run=RUN)
        fresh = await client.call(server, COUNT_VALIDATORS, CountValidators(terms=terms), run=RunId("run-2"))
        newer = replace(terms, version_min=PROTOCOL_VERSION + 1)
        outdated = await client.call(server, COUNT_VALIDATORS, CountValidators(terms=newer), run=RUN)
        world.now_ms += 31 * DAY_MS
        expired = await client.call(server, COUNT_VALIDATORS, CountValidators(terms=terms), run=RUN)
        with pytest.raises(CallRefused) as refused:
            await client.call(server, COUNT_VALIDATORS, CountValidators(terms=terms))
        assert refused.value.refusal.field == "Payload.run"
    assert (known.message.registered, known.message.eligible) == (4, 4)
    assert (fresh.message.registered, fresh.message.eligible) == (0, 4)
    assert outdated.message.eligible == 0
    assert expired.message.eligible == 3, "the landlord's delegation has run out"


async def test_only_the_operator_may_count_validators(tmp_path: Path) -> None:
    world = World.started()
    async with called_by("ann", world, tmp_path) as (client, server, _):
        with pytest.raises(CallRefused) as refused:
            await client.call(server, COUNT_VALIDATORS, CountValidators(terms=world.terms()), run=RUN)
    assert refused.value.refusal.code is RefusalCode.FORBIDDEN
