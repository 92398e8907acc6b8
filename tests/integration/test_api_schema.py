"""The JSON API against its own description, by schemathesis: questions that fit it and questions that do not.

Each operation gets both. No answer may be a server's error, of a status or form that the description does not have, or
a yes to a question that breaks it.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from prime_coordinator.config import ReadApiConfig
from prime_explorer.routes import build_openapi
from prime_protocol.ledger.entries import Outcome
from support.app_context import FakeAppContext
from support.ledger_network import World
from support.read_model import reading

EXAMPLES = 12
SCHEMA = schemathesis.openapi.from_dict(build_openapi("0"))
OPERATIONS = {operation.label: operation for operation in (each.ok() for each in SCHEMA.get_all_operations())}

RELATIONS = {
    "GET /api/v1/log/consistency": [positive_data_acceptance],
    "GET /api/v1/log/heads": [positive_data_acceptance],
    "GET /api/v1/submissions": [positive_data_acceptance],
}
"""The older head must not be larger than the newer one, and a step needs its run, which no schema of single parameters
can say."""
PLAN = [
    (label, mode)
    for label, operation in OPERATIONS.items()
    for mode in GenerationMode
    # A question without parameters cannot be asked wrongly.
    if mode is GenerationMode.POSITIVE or operation.query or operation.path_parameters
]


async def serve(folder: Path, told: "Future[tuple[str, asyncio.Event]]") -> None:
    """In a loop of its own: schemathesis asks and waits."""
    world = World.started(lag_max=0)
    world.settled("ann", Outcome.ACCEPT, 0)
    world.convicted("bob", 1)
    context = await FakeAppContext.open(world, folder)
    context.config = replace(context.config, read_api=ReadApiConfig(per_second=1e6, burst=10**6))
    stop = asyncio.Event()
    async with reading(context) as client:
        told.set_result((str(client.make_url("/")).rstrip("/"), stop))
        await stop.wait()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    told: Future[tuple[str, asyncio.Event]] = Future()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(tmp_path_factory.mktemp("api"), told),))
    thread.start()
    address, stop = told.result(timeout=30)
    yield address
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize(("label", "mode"), PLAN)
def test_every_answer_is_as_described(label: str, mode: GenerationMode, url: str) -> None:
    strategy = OPERATIONS[label].as_strategy(generation_mode=mode)

    @given(case=strategy)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=url, excluded_checks=RELATIONS.get(label, []))

    ask()
