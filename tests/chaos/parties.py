"""Who takes part and which words start them: the commands a user types, with small numbers. Pure but for the model."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from chaos.hosts import Host, Site
from chaos.schedule import COORDINATOR, ORIGIN, TRAINER, Arena
from prime_coordinator.quickstart.plan import make_flags
from prime_lab.devnet import recipe

NETWORK, RUN = "devnet", "chaos"
PORT = 8440
SLOTS, SAMPLES = 16, 8
SHARD_BYTES = 16_384
MODEL = "model"
PASSWORD = "password"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everything is."""

    site: Site
    arena: Arena
    database: str | None = None
    bucket: str | None = None
    """URL of the S3 service."""

    @property
    def folder(self) -> Path:
        return self.site.folder

    @property
    def url(self) -> str:
        return f"http://{self.coordinator.address}:{PORT}"

    @property
    def coordinator(self) -> Host:
        return self.site.hosts[COORDINATOR]

    @property
    def password_file(self) -> Path:
        return self.folder / PASSWORD

    @property
    def home(self) -> Path:
        """The coordinator's folder: below its disk, so that the disk's own files are not in it."""
        return self.coordinator.folder / "home"


def make_hosts(site: Site, arena: Arena) -> None:
    for name in arena.parties("all"):
        site.add(name, shares=TRAINER if name == ORIGIN else None)


def port_of(stage: Stage, name: str) -> int:
    """On a machine without namespaces all parties share one address."""
    return PORT + stage.arena.parties("all").index(name)


def write_password(stage: Stage) -> None:
    stage.password_file.write_text(secrets.token_urlsafe(24) + "\n")
    stage.password_file.chmod(0o600)


def init_words(stage: Stage) -> tuple[str, ...]:
    settings: dict[str, object] = {
        "folder": stage.home,
        "network": NETWORK,
        "password_file": stage.password_file,
        "listen.host": stage.coordinator.address,
        "listen.port": PORT,
        "faucet.amount_nano": recipe.FAUCET,
        "intervals.heartbeat_ms": recipe.HEARTBEAT_MS,
        "intervals.head_ms": recipe.HEAD_MS,
        "intervals.tick_ms": recipe.TICK_MS,
        "log_writer.head_ms": recipe.HEAD_MS,
        "randomness_period_s": recipe.RANDOMNESS_PERIOD_S,
        "draw_margin_ms": recipe.DRAW_MARGIN_MS,
        "limits.address_rate": 5_000,
        "limits.address_burst": 10_000,
        "read_api.per_second": 1_000,
        "read_api.burst": 1_000,
    }
    if stage.database:
        settings["database"] = stage.database
    words = ["prime-coordinator", "init", *make_flags(settings)]
    if stage.bucket:
        words += make_flags({"objects": "s3://chaos/files", "s3.endpoint": stage.bucket, "s3.region": "us-east-1"})
        words += ["--s3-access-key-id", "id", "--s3-allow-http"]
    return tuple(words)


def run_words(stage: Stage, trainer: str) -> tuple[str, ...]:
    terms = {
        "trainer": trainer,
        "model": MODEL,
        "model_config": stage.folder / MODEL,
        "task_set": recipe.TASK_SET,
        "slots_per_step": SLOTS,
        "samples_per_slot": SAMPLES,
        "prompt_tokens_max": recipe.PROMPT_TOKENS,
        "output_tokens_max": recipe.OUTPUT_TOKENS,
        "lag_max": recipe.LAG_MAX,
        "stake_min_nano": recipe.STAKE,
        "slash_nano": recipe.SLASH,
        "appeal_bond_nano": recipe.BOND,
        "step_budget_nano": recipe.BUDGET,
        "verdict_ms": recipe.VERDICT_MS,
        "appeal_ms": recipe.APPEAL_MS,
        "judgement_ms": recipe.JUDGEMENT_MS,
        "long_stop_ms": recipe.LONG_STOP_MS,
        "tolerance.precision": "float32",
        **{f"tolerance.{name}": value for name, value in recipe.TOLERANCE.items()},
    }
    return ("prime-coordinator", "run", "create", RUN, "--folder", str(stage.home), *make_flags(terms))


def fund_words(stage: Stage) -> list[tuple[str, ...]]:
    """Value for a run whose coordinator keeps the books itself."""
    folder = ("--folder", str(stage.home))
    return [
        ("prime-coordinator", "deposit", "coordinator", "100000", "--reference", "chaos", *folder),
        ("prime-coordinator", "run", "fund", RUN, "100000", *folder),
    ]


def party_words(stage: Stage, name: str, coordinator_id: str) -> tuple[str, ...]:
    if name == COORDINATOR:
        return ("prime-coordinator", "start", "--folder", str(stage.home))
    if name in (TRAINER, ORIGIN):
        return trainer_words(stage, name, coordinator_id)
    host = stage.site.hosts[name]
    role, port = name.partition("-")[0], port_of(stage, name)
    settings = {
        "folder": host.folder / "home",
        "coordinator": stage.url,
        "role": role,
        "listen.host": host.address,
        "listen.port": port,
        "announce": f"http://{host.address}:{port}",
        # By default a node stops working long before its disk is full, and nothing would be hit.
        "policy.disk_free_bytes_min": 0,
    }
    return ("prime-node", "start", *make_flags(settings), "--weights-allow-private", "--no-page-enabled")


def trainer_words(stage: Stage, name: str, coordinator_id: str) -> tuple[str, ...]:
    host = stage.site.hosts[TRAINER]
    settings: dict[str, object] = {
        "store": host.folder / "store",
        "coordinator": stage.url,
        "coordinator_id": coordinator_id,
        "run": RUN,
        "network": NETWORK,
        "key": stage.folder / "trainer.key",
        "password_file": stage.password_file,
    }
    if name == ORIGIN:
        settings |= {"listen.host": host.address, "listen.port": port_of(stage, ORIGIN)}
        return ("prime-trainer", "origin", *make_flags(settings))
    settings |= {
        **recipe.TRAINER,
        "folder": host.folder / "home",
        "model": stage.folder / MODEL,
        "poll_ms": 100,
        "shard_bytes": SHARD_BYTES,
        "batch.groups": SLOTS,
        "save.keep": 3,
        "save.every_steps": 1,
    }
    return ("prime-trainer", "start", *make_flags(settings))
