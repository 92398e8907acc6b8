"""Carries out a quickstart plan: runs its commands, starts its programs, waits until others can join, stops them.

A second start in the same folder skips what is there: keys, model, network and run. If a program ends, the others are
stopped, and the end of its output is shown.
"""

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from prime_coordinator.constants import QUICKSTART_READY_S
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.quickstart.plan import (
    QuickstartPlan,
    QuickstartStep,
    list_orders,
    list_preparations,
    list_services,
    make_coordinator_step,
)
from prime_protocol.errors import LocalError
from prime_runtime.child_processes import RunningProcess, run_command
from prime_runtime.files import write_private_file
from prime_runtime.http.client import Unreachable
from prime_runtime.http.coordinator_api import NotFound, open_json_client
from prime_runtime.keys import read_key_address

POLL_S = 0.5
Say = Callable[[str], None]


class Quickstart:
    """One run of `prime-coordinator quickstart`."""

    def __init__(self, plan: QuickstartPlan, environ: Mapping[str, str], say: Say) -> None:
        self._plan = plan
        self._environ = {name: value for name, value in environ.items() if not name.startswith("PRIME_")}
        self._say = say
        self._running: list[RunningProcess[QuickstartStep]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._plan.port}"

    async def prepare(self) -> None:
        """Everything up to a network that others can join."""
        plan = self._plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        (plan.folder / "logs").mkdir(exist_ok=True)
        if not plan.password_file.exists():
            write_private_file(plan.password_file, secrets.token_urlsafe(24) + "\n")
        made = {
            "init": CoordinatorHome(plan.coordinator).config,
            "trainer-key": plan.trainer_key,
            "validator-key": plan.validator / "key.json",
            "model": plan.model_folder / "config.json",
        }
        for step in list_preparations(plan):
            if not made[step.name].exists():
                await self._do(step)
        await self._start(make_coordinator_step(plan))
        await self._until(self._answers, "the coordinator answers")
        model = self._find_model()
        known = await self._find_run()
        trainer, inspector = read_key_address(plan.trainer_key), read_key_address(plan.validator / "key.json")
        for step in list_orders(plan, trainer=trainer, inspector=inspector, model=model):
            # A start that was interrupted goes on where it was.
            if known is None or (step.name == "fund" and not known["pool_nano"]):
                await self._do(step)
        coordinator = read_key_address(CoordinatorHome(plan.coordinator).key)
        for step in list_services(plan, coordinator=coordinator, model=model):
            await self._start(step)
        await self._until(self._is_ready, "the first weights are served and the validator has joined")

    async def watch(self) -> None:
        """Return when a program has ended, with ProcessFailedError."""
        while True:
            self._check()
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """In the reverse order: nodes and trainer finish what they have in hand while the coordinator still answers."""
        for running in reversed(self._running):
            self._say(f"stopping {running.party.name}")
            await running.stop()

    def _find_model(self) -> Path:
        plan = self._plan
        if plan.is_tiny:
            return plan.model_folder
        folder = Path(plan.model).expanduser()
        if not (folder / "config.json").exists():
            raise LocalError(f"{folder} has no config.json: give the folder of a model, as transformers saves it")
        return folder

    # --- Processes --------------------------------------------------------------------------------------------------

    async def _do(self, step: QuickstartStep) -> None:
        self._show(step)
        await run_command(step, self._environ)

    async def _start(self, step: QuickstartStep) -> None:
        self._show(step)
        self._running.append(await RunningProcess.start(step, self._environ))

    def _show(self, step: QuickstartStep) -> None:
        self._say(f"# {step.why}")
        self._say(shlex.join(step.words))

    def _check(self) -> None:
        for running in self._running:
            running.check()

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(QUICKSTART_READY_S):
                while not await condition():
                    self._check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            logs = self._plan.folder / "logs"
            raise LocalError(
                f"after {QUICKSTART_READY_S} s still waiting until {what}; see the logs in {logs}"
            ) from None

    # --- Questions to the coordinator -------------------------------------------------------------------------------

    async def _answers(self) -> bool:
        try:
            async with open_json_client(self.url) as client:
                await client.get("/status")
        except (Unreachable, NotFound):
            return False
        return True

    async def _find_run(self) -> dict[str, Any] | None:
        async with open_json_client(self.url) as client:
            runs = (await client.get("/status"))["runs"]
        return next((run for run in runs if run["run"] == self._plan.run), None)

    async def _is_ready(self) -> bool:
        try:
            async with open_json_client(self.url) as client:
                status = await client.get("/status")
                (run,) = (row for row in status["runs"] if row["run"] == self._plan.run)
                network = await client.get("/network", run=self._plan.run)
        except (Unreachable, NotFound, ValueError):
            return False
        return run["latest_step"] >= 0 and run["validators"] > 0 and bool(network["serving"])
