"""The words that start those parties of a devnet that are no nodes, on one machine in a hurry. Pure."""

from pathlib import Path

from prime_devnet import recipe
from prime_devnet.plan import RUN, Plan, coordinator_folder, password_file
from prime_protocol.ids import NodeId

NETWORK = "devnet"
HERE = "/ip4/127.0.0.1/tcp/0"
SHARD_BYTES = 65_536
"""Tiny weights in several shards, so that the tree has something to spread."""


def coordinator_words(plan: Plan) -> tuple[str, ...]:
    settings = {
        "network": NETWORK,
        "listen.port": 0,
        "faucet.amount_nano": 0 if plan.settles_on_chain else recipe.FAUCET,
        "tempo.beat_ms": recipe.BEAT_MS,
        "tempo.head_ms": recipe.HEAD_MS,
        "tempo.tick_ms": recipe.TICK_MS,
        "books.head_ms": recipe.HEAD_MS,
        "p2p.listen": HERE,
        "limits.address_rate": 5_000,
        "limits.address_burst": 10_000,
        "reading.per_second": 1_000,
        "reading.burst": 1_000,
    }
    words = ["prime-coordinator", "init", "--folder", str(coordinator_folder(plan)), "--p2p-enabled"]
    return (*words, "--password-file", str(password_file(plan)), *flags(settings))


def run_words(plan: Plan, model: Path, trainer: str) -> tuple[str, ...]:
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
        "tolerance.precision": "float32",
        **{f"tolerance.{name}": value for name, value in recipe.TOLERANCE.items()},
    }
    folder = coordinator_folder(plan)
    return ("prime-coordinator", "run", "create", RUN, "--folder", str(folder), *flags(terms))


def inspector_words(plan: Plan, inspector: NodeId) -> tuple[str, ...]:
    """One of the validators belongs to the operator."""
    terms = flags({"inspectors": inspector})
    return ("prime-coordinator", "run", "update", RUN, "--folder", str(coordinator_folder(plan)), *terms)


def trainer_words(plan: Plan, url: str, coordinator: str, model: Path) -> tuple[str, ...]:
    settings = {
        **_trainer_identity(plan, url, coordinator),
        "folder": plan.folder / "trainer",
        "model": model,
        "steps": plan.steps,
        "poll_ms": 100,
        "shard_bytes": SHARD_BYTES,
        "optimizer.decay_steps": plan.steps,
        **recipe.TRAINER,
        "batch.groups": plan.slots,
    }
    return ("prime-trainer", "start", *flags(settings))


def origin_words(plan: Plan, url: str, coordinator: str) -> tuple[str, ...]:
    settings = {**_trainer_identity(plan, url, coordinator), "p2p.listen": HERE}
    return ("prime-trainer", "origin", *flags(settings), "--p2p-enabled")


def _trainer_identity(plan: Plan, url: str, coordinator: str) -> dict[str, object]:
    return {
        "store": plan.folder / "store",
        "coordinator": url,
        "coordinator_id": coordinator,
        "run": RUN,
        "network": NETWORK,
        "key": plan.folder / "trainer.key",
        "password_file": password_file(plan),
    }


def flags(settings: dict[str, object]) -> list[str]:
    """Each setting as its flag."""
    return [
        word
        for name, value in settings.items()
        for word in ("--" + name.replace(".", "-").replace("_", "-"), str(value))
    ]
