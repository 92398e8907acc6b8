"""The commands that make and start a test network on one machine, in order. Pure.

Each step is a command as an operator would type it: quickstart shows them, and docs/operating/first-run.md explains
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_coordinator.constants import QUICKSTART_DEPOSIT, QUICKSTART_FAUCET_NANO, QUICKSTART_POOL
from prime_protocol.wire.ids import NodeId

TINY = "tiny"
"""What `--model` takes for a tiny model that is made here."""
TINY_TERMS: Mapping[str, Any] = {"slots_per_step": 16, "samples_per_slot": 8, "output_tokens_max": 16}
TINY_TRAINER: Mapping[str, Any] = {"batch.groups": 12, "optimizer.learning_rate": 1e-3}
TINY_TASKS = "sort-digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartPlan:
    """The answers of the operator."""

    folder: Path
    network: str = "devnet"
    run: str = "demo"
    model: str = TINY
    """`tiny`, or a model folder."""
    task_set: str = TINY_TASKS
    host: str = ""
    """Name or address by which other machines reach this one; empty: this machine only."""
    port: int
    """Of the coordinator; the next one serves weights."""

    @property
    def is_tiny(self) -> bool:
        return self.model == TINY

    @property
    def coordinator(self) -> Path:
        return self.folder / "coordinator"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"

    @property
    def trainer_key(self) -> Path:
        return self.folder / "trainer.json"

    @property
    def validator(self) -> Path:
        return self.folder / "validator"

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def url(self) -> str:
        return f"http://{self.host or '127.0.0.1'}:{self.port}"


@dataclass(frozen=True, slots=True)
class QuickstartStep:
    """One command."""

    name: str
    words: tuple[str, ...]
    folder: Path
    why: str

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


def make_flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Each setting as its flag."""
    return tuple(
        word
        for name, value in settings.items()
        for word in ("--" + name.replace(".", "-").replace("_", "-"), str(value))
    )


def _step(plan: QuickstartPlan, name: str, why: str, *words: object, **settings: Any) -> QuickstartStep:
    return QuickstartStep(name, (*map(str, words), *make_flags(settings)), plan.folder / "logs", why)


def list_preparations(plan: QuickstartPlan) -> list[QuickstartStep]:
    """What is made before anything runs."""
    listen: dict[str, Any] = {"listen_port": plan.port}
    if plan.host:
        listen |= {"listen_host": "0.0.0.0", "public_url": plan.url}
    steps = [
        _step(
            plan, "init", "the network: its keys and an empty log", "prime-coordinator", "init",
            folder=plan.coordinator, network=plan.network, password_file=plan.password_file,
            faucet_amount_nano=QUICKSTART_FAUCET_NANO, **listen,
        ),
        _step(
            plan, "trainer-key", "the key that publishes checkpoints", "prime-trainer", "keys", "new",
            key=plan.trainer_key, password_file=plan.password_file,
        ),
        _step(
            plan, "validator-key", "the key of your own validator, which is also the run's inspector",
            "prime-node", "keys", "new", folder=plan.validator,
        ),
    ]  # fmt: skip
    if plan.is_tiny:
        made = _step(plan, "model", "a tiny model", "prime-trainer", "model", "tiny", out=plan.model_folder)
        steps.append(made)
    return steps


def make_coordinator_step(plan: QuickstartPlan) -> QuickstartStep:
    """What runs first, and as long as the network does."""
    return _step(plan, "coordinator", "the coordinator", "prime-coordinator", "start", folder=plan.coordinator)


def list_orders(plan: QuickstartPlan, *, trainer: NodeId, inspector: NodeId, model: Path) -> list[QuickstartStep]:
    """What the running coordinator is told once: money, and the run. `model` is a folder by now."""
    terms = {
        "model_config": model,
        # The name is public: not the path that was typed.
        "model": TINY if plan.is_tiny else model.name,
        "task_set": plan.task_set,
        "trainer": trainer,
        "inspectors": inspector,
        **(TINY_TERMS if plan.is_tiny else {}),
    }
    order = ("--folder", plan.coordinator)
    return [
        _step(
            plan, "deposit", "money of the test network", "prime-coordinator", "deposit", "coordinator",
            QUICKSTART_DEPOSIT, "--reference", "quickstart", *order,
        ),
        _step(plan, "run", "the run", "prime-coordinator", "run", "create", plan.run, *order, **terms),
        _step(plan, "fund", "what it pays", "prime-coordinator", "run", "fund", plan.run, QUICKSTART_POOL, *order),
    ]  # fmt: skip


def list_services(plan: QuickstartPlan, *, coordinator: NodeId, model: Path) -> list[QuickstartStep]:
    """What runs beside the coordinator."""
    url = f"http://127.0.0.1:{plan.port}"
    common = {
        "store": plan.folder / "weights",
        "coordinator": url,
        "coordinator_id": coordinator,
        "network": plan.network,
        "run": plan.run,
        "key": plan.trainer_key,
        "password_file": plan.password_file,
    }
    serve: dict[str, Any] = {}
    if plan.host:
        port = plan.port + 1
        serve = {"listen_host": "0.0.0.0", "listen_port": port, "announce": f"http://{plan.host}:{port}"}
    learn = TINY_TRAINER if plan.is_tiny else {}
    return [
        _step(
            plan, "trainer", "learns from accepted work", "prime-trainer", "start", folder=plan.folder / "trainer",
            model=model, **common, **learn,
        ),
        _step(plan, "origin", "serves the weights", "prime-trainer", "origin", **common, **serve),
        _step(
            plan, "validator", "your validator", "prime-node", "start", "--role", "validator",
            folder=plan.validator, coordinator=url, run=plan.run,
        ),
    ]  # fmt: skip


def list_invites(plan: QuickstartPlan) -> list[str]:
    """What contributors type, on this machine or on others."""
    return [
        f"prime-node start --coordinator {plan.url}",
        f"prime-node start --role validator --coordinator {plan.url}",
    ]
