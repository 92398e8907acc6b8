"""Laws of the coordinator's core, whatever a crowd and a clock do to it, restarts included.

It raises nothing but RemoteError, the ledger takes everything it writes, and in the end nothing is left open.
"""

from collections import Counter

import pytest

from prime_protocol.constants import LEASES_OPEN_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.replay import ENTRY_TYPES, Ledger, decode_entry, replay
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest
from support.core_crowd import CoreMob, try_event
from support.core_network import SECOND_MS
from support.ledger_network import NETWORK

SEEDS = 16
EVENTS = 400


class Watch:
    """An account of leases, submissions and credits from the leaves alone."""

    def __init__(self) -> None:
        self.ledger = Ledger(NETWORK)
        self.open: dict[int, e.LeaseGranted] = {}
        self.slots: dict[Digest, set[tuple[int, int]]] = {}
        self.unsettled: set[Digest] = set()
        self.credited: set[tuple[int, int]] = set()
        self.slashes: set[Digest] = set()
        self.findings: set[Digest] = set()
        """Open ones."""
        self.kinds: Counter[str] = Counter()

    def read(self, leaf: bytes) -> None:
        letter = open_envelope(decode(LogRecord, leaf).frame, network=NETWORK).payload
        entry = decode_entry(letter)
        self.kinds[letter.kind] += 1
        self.ledger.apply(leaf)
        match entry:
            case e.LeaseGranted():
                self.open[entry.lease] = entry
                assert Counter(lease.node for lease in self.open.values())[entry.node] <= LEASES_OPEN_MAX
            case e.LeaseEnded():
                del self.open[entry.lease]
            case e.Submitted():
                lease = self.open.pop(entry.receipt.lease)
                name = next(reversed(self.ledger.state.runs[letter.run or ""].submissions))  # type: ignore[index]
                first = lease.first_slot
                self.slots[name] = {(lease.step, slot) for slot in range(first, first + lease.slots)}
                self.unsettled.add(name)
            case e.AcceptedUnaudited():
                self.unsettled -= set(entry.submissions)
                for name in entry.list_credited():
                    self.credit(name)
            case e.Settled():
                self.unsettled -= {each.submission for each in entry.settled}
                for name in entry.list_credited():
                    self.credit(name)
            case e.Credited():
                self.credit(entry.submission)
            case e.FindingFiled():
                self.findings.add(entry.submission)
            case e.FindingDismissed():
                self.findings.remove(entry.submission)
            case e.FindingUpheld():
                self.findings.remove(entry.submission)
                self.credited -= self.slots[entry.submission]
            case e.SlashProposed():
                self.slashes.add(entry.submission)
            case e.SlashExecuted() | e.SlashOverturned():
                self.slashes.remove(entry.submission)

    def credit(self, name: Digest) -> None:
        slots = self.slots[name]
        assert self.credited.isdisjoint(slots), "a slot was credited twice"
        self.credited |= slots


def run_mob(seed: int) -> tuple[CoreMob, Watch]:
    mob = CoreMob(seed)
    for _ in range(EVENTS):
        try_event(mob.act)
    mob.wind_down()
    watch = Watch()
    for leaf in mob.scene.world.leaves:
        watch.read(leaf)
    return mob, watch


def test_whatever_the_crowd_does_everything_ends_and_nothing_is_credited_twice() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            mob, watch = run_mob(seed)
            assert watch.ledger.state == mob.scene.state, "what is on disk is not what was decided"
            assert not watch.open, "a lease never ended"
            assert not watch.unsettled, "a submission was never settled"
            assert not watch.slashes, "a slash never ended"
            assert not watch.findings, "a finding was never decided"
            run = mob.scene.run
            assert all(step.paid for step in run.steps.values()), "a step was never paid"
            assert mob.scene.state.funds.is_conserved()
        except Exception as error:  # boundary: the seed belongs in the story of every failure
            raise AssertionError(f"seed {seed}") from error
        kinds += watch.kinds
    # These have their own stories: unit tests of the ledger, the simulator, frozen logs.
    elsewhere = {"Withdrawn", "Released", "PoolReturned", "SnapshotNoted", "LogRestored"}
    elsewhere |= {"RulesChanged", "SubmissionsListed"}
    # A coordinator's keys are rotated while it is stopped.
    elsewhere |= {"LogKeyRotated", "CoordinatorKeyRotated"}
    missing = set(ENTRY_TYPES) - set(kinds) - elsewhere
    assert not missing, f"the crowd never came to {missing}"


def resume(mob: CoreMob, seed: int, size: int) -> CoreMob:
    """The same crowd around a coordinator that was killed when this much was on disk."""
    cut = CoreMob(seed)
    cut.liars, cut.silent, cut.bad = mob.liars, mob.silent, mob.bad
    cut.verdicts = dict(mob.verdicts)  # on the validators' disks
    world = cut.scene.world
    world.leaves = mob.scene.world.leaves[:size]
    world.ledger = replay(NETWORK, world.leaves)
    world.now_ms = world.state.at_ms
    cut.scene.restart()
    return cut


@pytest.mark.parametrize("seed", range(4))
def test_a_coordinator_killed_between_any_two_writes_finds_its_way_from_what_was_written(seed: int) -> None:
    mob, _ = run_mob(seed)
    first = len(CoreMob(seed).scene.world.leaves)
    for size in sorted(mob.dice.sample(range(first, len(mob.scene.world.leaves)), 8)):
        cut = resume(mob, seed, size)
        cut.scene.tick(SECOND_MS)
        cut.wind_down()
        run = cut.scene.run
        assert not run.leases, size
        assert not run.slashes, size
        assert not run.findings, size
        assert all(each.outcome for each in run.submissions.values()), size
        assert all(step.paid for step in run.steps.values()), size
