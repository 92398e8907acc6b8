"""Strangers that read accepted files and file findings: about the forged ones, or, if they are false, about honest
ones, to keep their workers from being paid.
"""

from random import Random

from prime_lab.simulator.coordinator_host import HONEST
from prime_lab.simulator.log_history import LoggedSubmission
from prime_lab.simulator.world import COIN_NANO, RUN, World, get_wallet, hash_text, ignore
from prime_protocol.ledger.entries import FindingFiled, Outcome
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey

FINDER_BALANCE = 8 * COIN_NANO
"""Bonds of eight findings."""
READ_MS = 5_000
"""A finder reads one file in this time."""
FALSE_SHARE = 0.1
"""Part of the honest files that a false finder has read about which it files a finding."""
BLIND_SHARE = 0.25
"""How often a false finder files a finding about any submission, whatever became of it."""


class SimulatedFinder:
    """A key with a balance, which is no node. It stops with the last step."""

    def __init__(self, world: World, number: int, *, is_honest: bool) -> None:
        self._world = world
        self._number = number
        self._is_honest = is_honest
        self.key = get_finder_key(number, is_honest=is_honest)
        self._rng = Random(f"finder {world.plan.seed} {number} {is_honest}")
        self._read: set[Digest] = set()

    def act(self) -> None:
        """Once now, and every few seconds from then on."""
        history = self._world.host.history
        if history.latest >= self._world.plan.steps:
            return
        self._world.after(READ_MS, self.act)
        open_names = [name for name, logged in history.submissions.items() if self._is_open(name, logged)]
        if not self._is_honest and history.submissions and self._rng.random() < BLIND_SHARE:
            self._file(self._rng.choice(list(history.submissions)))
        elif open_names:
            name = self._rng.choice(open_names)
            self._read.add(name)
            if self._wants_to_file(history.submissions[name]):
                self._file(name)

    def _is_open(self, name: Digest, logged: LoggedSubmission) -> bool:
        if name in self._read or logged.outcome is not Outcome.ACCEPT or not logged.credited:
            return False
        is_paid = self._world.host.history.paid[logged.receipt.step] > 0
        return not (is_paid or logged.proposed or logged.upheld)

    def _wants_to_file(self, logged: LoggedSubmission) -> bool:
        file = self._world.files.get(logged.receipt.file_digest)
        is_forged = file is not None and file.forgery != HONEST
        return is_forged if self._is_honest else not is_forged and self._rng.random() < FALSE_SHARE

    def _file(self, name: Digest) -> None:
        evidence = hash_text(f"evidence of finder {self._number} {name}")
        entry = FindingFiled(submission=name, evidence=evidence, reason="")
        packet = self._world.seal(self.key, entry, RUN, self._world.now_ms)
        self._world.post(self._number, 0, packet, ignore)


def get_finder_key(number: int, *, is_honest: bool) -> WalletKey:
    return get_wallet(f"finder {number}" if is_honest else f"false finder {number}")


def make_finders(world: World) -> list[SimulatedFinder]:
    """Those that the plan names. Numbers below zero belong to no node."""
    plan = world.plan
    honest = [SimulatedFinder(world, -2 - number, is_honest=True) for number in range(plan.finders)]
    first = -2 - plan.finders
    return honest + [SimulatedFinder(world, first - number, is_honest=False) for number in range(plan.false_finders)]
