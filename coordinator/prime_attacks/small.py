"""The whole gallery in a small setting: every attack once, on a tiny model, with honest work beside it."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

from prime_attacks.gallery import Attack, Outcome
from prime_attacks.grinding import attack_draws
from prime_attacks.histories import attack_histories
from prime_attacks.networks import attack_networks
from prime_attacks.programs import attack_graders
from prime_attacks.relays import attack_weights
from prime_attacks.scene import Setting, open_scene
from prime_attacks.table import Tally
from prime_attacks.workers import attack_with_engines, attack_with_files, calibrate, open_honest, work_honestly
from prime_devnet.tiny_model import make_checkpoint
from prime_protocol.tolerance import Precision, Tolerance

VOCABULARY, TOKENS_MAX = 64, 128
LEASES, SLOTS = 9, 8
"""Honest work to calibrate with, and as much again to judge."""

Say = Callable[[str], None]


async def run_small(folder: Path, say: Say) -> Tally:
    tally = Tally()
    await show_workers(folder, tally, say)
    say("workers: programs against the sandbox")
    async for attack, outcome in attack_graders():
        note(tally, attack, outcome)
    say("relays: lying about weights")
    async for attack, outcome in attack_weights(folder / "relays"):
        note(tally, attack, outcome)
    say("books, validators and coordinators: in the simulator")
    for attack, outcome in chain(attack_networks(), attack_histories(), attack_draws()):
        note(tally, attack, outcome)
    return tally


async def show_workers(folder: Path, tally: Tally, say: Say) -> None:
    checkpoint = make_checkpoint(folder / "tiny", vocabulary=VOCABULARY)
    setting = Setting(
        checkpoint=checkpoint,
        folder=folder / "workers",
        tokens_max=TOKENS_MAX,
        tolerance=Tolerance(precision=Precision.FLOAT32),
    )
    async with open_scene(setting) as scene:
        engines = open_honest(scene)
        say("workers: calibrating with honest work")
        say(f"  {await calibrate(scene, engines, LEASES, SLOTS)}")
        honest = await work_honestly(scene, engines, LEASES, SLOTS)
        tally.honest_chunks, tally.honest_rows = honest.chunks, honest.rows
        tally.refused += honest.refused
        say(f"workers: {honest.files} honest files judged, {len(honest.refused)} refused; now the attacks")
        async for attack, outcome in attack_with_engines(scene, 1):
            note(tally, attack, outcome)
        async for attack, outcome in attack_with_files(scene, engines[-1], 1):
            note(tally, attack, outcome)


def note(tally: Tally, attack: Attack, outcome: Outcome) -> None:
    tally.tries.append((attack, outcome))
