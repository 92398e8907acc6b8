"""A whole network on one machine, before anything runs: who takes part, where each keeps its files, which words start
it. Pure.
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prime_devnet.cheats import FALSE_WITNESS, LAZY
from prime_devnet.recipe import SLOTS

RUN = "demo"
PASSWORD_NAME = "password"
RECURRENT = "recurrent"
"""What `--model` takes for the tiny model without attention."""


class Part(StrEnum):
    """What a party is to the network."""

    COORDINATOR = "coordinator"
    TRAINER = "trainer"
    RELAY = "relay"
    WORKER = "worker"
    VALIDATOR = "validator"
    CHEATER = "cheater"
    LIAR = "liar"
    """A validator that finds honest files dishonest now and then."""
    IDLER = "idler"
    """A validator that judges without reading."""


NODE_PARTS = (Part.RELAY, Part.WORKER, Part.VALIDATOR, Part.CHEATER, Part.LIAR, Part.IDLER)
ROLES = {Part.CHEATER: Part.WORKER, Part.LIAR: Part.VALIDATOR, Part.IDLER: Part.VALIDATOR}
"""What those who are dishonest pass for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the person at the keyboard wants."""

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
    """A model folder to begin with instead of the tiny one."""
    is_recurrent: bool = False
    """Whether the tiny one is the recurrent one."""
    liars: int = 0
    idlers: int = 0
    settles_on_chain: bool = False
    """Stake and pay are held by contracts on a chain of this machine."""
    limit_s: int = 900
    """When a network that does not get there is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One process."""

    name: str
    part: Part
    words: tuple[str, ...]
    """The command as a user types it."""
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        """The same command with this very interpreter, so that no PATH decides what runs."""
        program, *words = self.words
        return [sys.executable, "-m", f"{program.replace('-', '_')}.cli", *words]


def password_file(plan: Plan) -> Path:
    return plan.folder / PASSWORD_NAME


def coordinator_folder(plan: Plan) -> Path:
    return plan.folder / "coordinator"


def list_nodes(plan: Plan, url: str) -> list[Party]:
    """Relay first: the others find weights nearer."""
    wanted = (
        (Part.RELAY, plan.relays),
        (Part.VALIDATOR, plan.validators),
        (Part.WORKER, plan.workers),
        (Part.CHEATER, plan.cheaters),
        (Part.LIAR, plan.liars),
        (Part.IDLER, plan.idlers),
    )
    return [make_node(plan, url, part, number) for part, count in wanted for number in range(1, count + 1)]


def make_node(plan: Plan, url: str, part: Part, number: int) -> Party:
    name = f"{part}-{number}"
    folder = plan.folder / name
    role = ROLES.get(part, part)
    words = ["prime-node", "start", "--folder", str(folder), "--coordinator", url, "--role", role]
    words += ["--announce", "http://127.0.0.1:0", "--weights-allow-private", "--no-page-enabled"]
    words += ["--p2p-enabled", "--p2p-listen", "/ip4/127.0.0.1/tcp/0"]
    if part in ROLES:
        words += ["--engine-python", str(interpreter_path(plan, name))]
    return Party(name=name, part=part, words=tuple(words), folder=folder)


def attack_of(plan: Plan, name: str) -> str:
    """How the cheater of this name cheats."""
    if name.startswith(Part.LIAR):
        return FALSE_WITNESS
    if name.startswith(Part.IDLER):
        return LAZY
    number = int(name.rpartition("-")[2])
    return plan.attacks[(number - 1) % len(plan.attacks)]


def interpreter_path(plan: Plan, name: str) -> Path:
    """What a cheater has swapped in for its engine's interpreter."""
    return plan.folder / f"{name}.engine"
