"""Runs the attacks of workers against the real checks, and honest work beside them.

Bounds are calibrated first, from honest work of this model on this machine, by the code of `prime-node calibrate`.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from prime_attacks.bent_files import MAKERS, Sent
from prime_attacks.gallery import ENGINES, FILES, ROWS, Attack, Outcome
from prime_attacks.scene import Scene
from prime_devnet.cheats import open_cheat
from prime_node.calibration import Target, collect, fit_tolerance
from prime_node.engine.measuring import RowNumbers
from prime_node.engine.seam import Engine
from prime_node.engine.torch_engine import TorchEngine
from prime_protocol.rollout_file import write_rollouts
from prime_protocol.tolerance import Tolerance

BATCHES = (5, 16, 64)
"""Sequences that honest workers write at once: what makes them differ from a validator, who reads whole texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestTally:
    """What became of honest work."""

    files: int
    rows: int
    chunks: int
    refused: tuple[str, ...]
    """Reasons."""


def open_engine(scene: Scene, batch: int | None = None) -> TorchEngine:
    precision = scene.setting.tolerance.precision.value
    return TorchEngine(device="cpu", precision=precision, threads=1, batch_max=batch)


def open_honest(scene: Scene) -> list[Engine]:
    engines: list[Engine] = []
    for batch in BATCHES:
        engine = open_engine(scene, batch)
        engine.load(scene.setting.checkpoint)
        engines.append(engine)
    return engines


async def calibrate(scene: Scene, engines: Sequence[Engine], leases: int, slots: int) -> Tolerance:
    """Bounds from honest work, which the scene holds everybody to from here on."""
    rows: list[RowNumbers] = []
    for number in range(leases):
        lease = scene.lease(slots)
        data = write_rollouts(scene.header(lease), scene.make_rows(engines[number % len(engines)], lease))
        rows += (await scene.audit(data, lease)).numbers
    tolerance = fit_tolerance(
        [collect("torch → torch", rows)],
        Target(),
        precision=scene.setting.tolerance.precision,
        hidden=scene.model.hidden,
    )
    scene.hold_to(tolerance)
    return tolerance


async def work_honestly(scene: Scene, engines: Sequence[Engine], leases: int, slots: int) -> HonestTally:
    """Honest files through intake and audit."""
    files = rows = chunks = 0
    refused: list[str] = []
    for number in range(leases):
        lease = scene.lease(slots)
        made = scene.make_rows(engines[number % len(engines)], lease)
        outcome = await scene.submit(Sent(data=write_rollouts(scene.header(lease), made)), lease)
        files += 1
        rows += len(made)
        chunks += sum(-(-len(row.output_tokens) // 32) for row in made)
        if outcome.verdict is not None:
            refused.append(outcome.reason)
    return HonestTally(files=files, rows=rows, chunks=chunks, refused=tuple(refused))


async def attack_with_engines(scene: Scene, slots: int) -> AsyncIterator[tuple[Attack, Outcome]]:
    for attack in ENGINES:
        cheat = open_cheat(attack.name, open_engine(scene))
        cheat.load(scene.setting.checkpoint)
        lease = scene.lease(slots)
        data = write_rollouts(scene.header(lease), scene.make_rows(cheat, lease))
        yield attack, await scene.submit(Sent(data=data), lease)


async def attack_with_files(scene: Scene, honest: Engine, slots: int) -> AsyncIterator[tuple[Attack, Outcome]]:
    lease = scene.lease(slots)
    start = scene.gather(honest, lease)
    for attack in (*ROWS, *FILES):
        yield attack, await scene.submit(MAKERS[attack.name](start), lease)
