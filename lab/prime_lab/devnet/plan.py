"""A devnet before anything runs: its parties, their folders, and the command line that starts each of them. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prime_coordinator.quickstart.plan import make_flags
from prime_lab.cheats.registry import FALSE_WITNESS, LAZY
from prime_lab.devnet import recipe
from prime_lab.devnet.recipe import SLOTS
from prime_protocol.wire.ids import NodeId

RUN = "demo"
PASSWORD_NAME = "password"
RECURRENT = "recurrent"
"""What `--model` takes for the tiny model without attention."""


class DevnetRole(StrEnum):
    """The role of a party in the devnet."""

    COORDINATOR = "coordinator"
    TRAINER = "trainer"
    RELAY = "relay"
    WORKER = "worker"
    VALIDATOR = "validator"
    CHEATER = "cheater"
    FALSE_WITNESS = "false-witness"
    """A validator that sometimes rejects honest files."""
    IDLER = "idler"
    """A validator that judges without reading."""


NODE_ROLES = (
    DevnetRole.RELAY,
    DevnetRole.WORKER,
    DevnetRole.VALIDATOR,
    DevnetRole.CHEATER,
    DevnetRole.FALSE_WITNESS,
    DevnetRole.IDLER,
)
CLAIMED_ROLES = {
    DevnetRole.CHEATER: DevnetRole.WORKER,
    DevnetRole.FALSE_WITNESS: DevnetRole.VALIDATOR,
    DevnetRole.IDLER: DevnetRole.VALIDATOR,
}
"""The role that a dishonest party claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetPlan:
    """The options of a devnet."""

    folder: Path
    seed: int = 0
    workers: int = 3
    validators: int = 2
    relays: int = 1
    cheaters: int = 1
    attacks: tuple[str, ...] = ("answer-sheet",)
    """How cheaters cheat, in turn."""
    steps: int = 60
    slots: int = SLOTS
    model: Path | None = None
    """A model folder to start from instead of the tiny model."""
    is_recurrent: bool = False
    """Whether the tiny one is the recurrent one."""
    false_witnesses: int = 0
    idlers: int = 0
    settles_on_chain: bool = False
    """Stake and pay are held by contracts on a chain of this machine."""
    limit_s: int = 900
    """Time limit of the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetProcess:
    """One process."""

    name: str
    part: DevnetRole
    words: tuple[str, ...]
    """The command as a user types it."""
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"


def get_password_file(plan: DevnetPlan) -> Path:
    return plan.folder / PASSWORD_NAME


def get_coordinator_folder(plan: DevnetPlan) -> Path:
    return plan.folder / "coordinator"


def list_nodes(plan: DevnetPlan, url: str) -> list[DevnetProcess]:
    """The relay first, so that the others fetch weights from it."""
    wanted = (
        (DevnetRole.RELAY, plan.relays),
        (DevnetRole.VALIDATOR, plan.validators),
        (DevnetRole.WORKER, plan.workers),
        (DevnetRole.CHEATER, plan.cheaters),
        (DevnetRole.FALSE_WITNESS, plan.false_witnesses),
        (DevnetRole.IDLER, plan.idlers),
    )
    return [make_node(plan, url, part, number) for part, count in wanted for number in range(1, count + 1)]


def make_node(plan: DevnetPlan, url: str, part: DevnetRole, number: int) -> DevnetProcess:
    name = f"{part}-{number}"
    folder = plan.folder / name
    role = CLAIMED_ROLES.get(part, part)
    words = ["prime-node", "start", "--folder", str(folder), "--coordinator", url, "--role", role]
    words += ["--announce", "http://127.0.0.1:0", "--weights-allow-private", "--no-page-enabled"]
    words += ["--p2p-listen", LOOPBACK_MULTIADDR]
    if part in CLAIMED_ROLES:
        words += ["--engine-python", str(get_interpreter_path(plan, name))]
    return DevnetProcess(name=name, part=part, words=tuple(words), folder=folder)


def get_attack(plan: DevnetPlan, name: str) -> str:
    """How the cheater of this name cheats."""
    if name.startswith(DevnetRole.FALSE_WITNESS):
        return FALSE_WITNESS
    if name.startswith(DevnetRole.IDLER):
        return LAZY
    number = int(name.rpartition("-")[2])
    return plan.attacks[(number - 1) % len(plan.attacks)]


def get_interpreter_path(plan: DevnetPlan, name: str) -> Path:
    """What a cheater has swapped in for its engine's interpreter."""
    return plan.folder / f"{name}.engine"


NETWORK = "devnet"
LOOPBACK_MULTIADDR = "/ip4/127.0.0.1/tcp/0"
SHARD_BYTES = 65_536
"""Tiny weights in several shards, so that the broadcast tree is exercised."""


def make_coordinator_argv(plan: DevnetPlan) -> tuple[str, ...]:
    settings = {
        "network": NETWORK,
        "listen.port": 0,
        "faucet.amount_nano": 0 if plan.settles_on_chain else recipe.FAUCET,
        "intervals.heartbeat_ms": recipe.HEARTBEAT_MS,
        "intervals.head_ms": recipe.HEAD_MS,
        "intervals.tick_ms": recipe.TICK_MS,
        "log_writer.head_ms": recipe.HEAD_MS,
        "randomness_period_s": recipe.RANDOMNESS_PERIOD_S,
        "draw_margin_ms": recipe.DRAW_MARGIN_MS,
        "p2p.listen": LOOPBACK_MULTIADDR,
        "limits.address_rate": 5_000,
        "limits.address_burst": 10_000,
        "read_api.per_second": 1_000,
        "read_api.burst": 1_000,
    }
    words = ["prime-coordinator", "init", "--folder", str(get_coordinator_folder(plan))]
    return (*words, "--password-file", str(get_password_file(plan)), *make_flags(settings))


def make_run_argv(plan: DevnetPlan, model: Path, trainer: str) -> tuple[str, ...]:
    terms = {
        "trainer": trainer,
        "model": model.name,
        "model_config": model,
        "task_set": recipe.TASK_SET,
        "slots_per_step": plan.slots,
        "samples_per_slot": recipe.SAMPLES,
        "prompt_tokens_max": recipe.PROMPT_TOKENS,
        "output_tokens_max": recipe.OUTPUT_TOKENS,
        "lag_max": recipe.LAG_MAX,
        "stake_min_nano": recipe.STAKE,
        "slash_nano": recipe.SLASH,
        "appeal_bond_nano": 0 if plan.settles_on_chain else recipe.BOND,
        "step_budget_nano": recipe.BUDGET,
        "verdict_ms": recipe.VERDICT_MS,
        "appeal_ms": recipe.CHAIN_APPEAL_MS if plan.settles_on_chain else recipe.APPEAL_MS,
        "judgement_ms": recipe.JUDGEMENT_MS,
        "long_stop_ms": recipe.LONG_STOP_MS,
        "validator_slash_nano": recipe.VALIDATOR_SLASH,
        "tolerance.precision": "float32",
        **{f"tolerance.{name}": value for name, value in recipe.TOLERANCE.items()},
    }
    folder = get_coordinator_folder(plan)
    return ("prime-coordinator", "run", "create", RUN, "--folder", str(folder), *make_flags(terms))


def make_inspector_argv(plan: DevnetPlan, inspector: NodeId) -> tuple[str, ...]:
    """One of the validators belongs to the operator."""
    terms = make_flags({"inspectors": inspector})
    return ("prime-coordinator", "run", "update", RUN, "--folder", str(get_coordinator_folder(plan)), *terms)


def make_trainer_argv(plan: DevnetPlan, url: str, coordinator: str, model: Path) -> tuple[str, ...]:
    settings = {
        **_list_trainer_settings(plan, url, coordinator),
        "folder": plan.folder / "trainer",
        "model": model,
        "steps": plan.steps,
        "poll_ms": 100,
        "shard_bytes": SHARD_BYTES,
        "optimizer.decay_steps": plan.steps,
        **recipe.TRAINER,
        "batch.groups": plan.slots,
    }
    return ("prime-trainer", "start", *make_flags(settings))


def make_origin_argv(plan: DevnetPlan, url: str, coordinator: str) -> tuple[str, ...]:
    settings = {**_list_trainer_settings(plan, url, coordinator), "p2p.listen": LOOPBACK_MULTIADDR}
    return ("prime-trainer", "origin", *make_flags(settings))


def _list_trainer_settings(plan: DevnetPlan, url: str, coordinator: str) -> dict[str, object]:
    return {
        "store": plan.folder / "store",
        "coordinator": url,
        "coordinator_id": coordinator,
        "run": RUN,
        "network": NETWORK,
        "key": plan.folder / "trainer.key",
        "password_file": get_password_file(plan),
    }
