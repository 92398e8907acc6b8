"""What one run of the simulator is made of. The seed decides what the caller does not: faults, adversaries, speeds."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from prime_coordinator.constants import INSPECT_SHARE

MINUTE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class SimulationPlan:
    """One world. Shares are of 1."""

    seed: int
    nodes: int = 40
    steps: int = 3
    """Checkpoints to train, after the first."""
    malicious: float = 0.2
    """Share of workers, and of validators, that lie."""
    adversaries: tuple[str, ...] = ()
    """Kinds of adversaries to draw from; empty for all."""
    loss: float = 0.0
    duplicate: float = 0.0
    partitions: int = 0
    """Times that a part of the nodes is cut off."""
    host_crashes: int = 0
    """Crashes of the coordinator."""
    node_crashes: int = 0
    audit_crash: float = 0.0
    """Chance that an audit breaks off without a result."""
    skew_ms: int = 0
    """Largest error of a node's clock, either way."""
    flood: int = 0
    """Keys that one attacker registers from one network."""
    batch: float = 0.75
    """Part of a step's slots that the trainer waits for."""
    inspectors: int = 0
    """Honest validators of the operator's, which read judged files again."""
    finders: int = 0
    """Strangers that read accepted files and file findings about the forged ones."""
    false_finders: int = 0
    """Strangers that file findings about honest files."""
    inspect_share: int = INSPECT_SHARE
    """Of judged files, in basis points."""
    starve_ms: int = 12 * MINUTE_MS
    """Longest time between two checkpoints; more counts as starvation."""
    quorum: int = 3
    every_signature: bool = False
    """Sign and open heartbeats and requests too, and open entries at the coordinator. Changes nothing but the time."""


def draw_plan(seed: int, **chosen: Any) -> SimulationPlan:
    """A plan with everything that was not chosen drawn from the seed."""
    rng = Random(f"plan {seed}")
    drawn = {
        "loss": rng.choice([0.0, 0.01, 0.05, 0.15]),
        "duplicate": rng.choice([0.0, 0.02, 0.1]),
        "partitions": rng.choice([0, 0, 1, 3]),
        "host_crashes": rng.choice([0, 0, 1, 3]),
        "node_crashes": rng.choice([0, 2, 10]),
        "audit_crash": rng.choice([0.0, 0.02, 0.1]),
        "skew_ms": rng.choice([0, 500, 15_000]),
        "flood": rng.choice([0, 0, 100]),
        "inspectors": rng.choice([0, 1, 2]),
        "finders": rng.choice([0, 1, 2]),
        "false_finders": rng.choice([0, 0, 1]),
    }
    return replace(
        SimulationPlan(seed=seed), **drawn | {name: value for name, value in chosen.items() if value is not None}
    )
