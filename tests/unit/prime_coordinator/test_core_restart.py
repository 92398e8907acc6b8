"""A coordinator that dies after every single event tells the same story in the end as one that never did."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, RunStatus
from prime_protocol.wire.ids import Digest, Step
from support.core_network import SECOND_MS, Scene
from support.ledger_network import TERMS, make_commitment

ACCEPT, FRAUDULENT = Outcome.ACCEPT, Outcome.FRAUDULENT


class Story:
    """Two steps: honest work, an expired lease, a cheater, a wronged worker who appeals, an invalid file, the end."""

    def __init__(self) -> None:
        self.scene = Scene.started(workers=("ann", "bob", "cat", "eve"), slots_per_step=16)
        self.names: dict[str, Digest] = {}
        self.leases: dict[str, e.LeaseGranted] = {}

    def events(self) -> list[Callable[[], object]]:
        scene = self.scene
        workers = ("ann", "bob", "cat", "eve")
        return [
            *(lambda name=name: self.lease(name) for name in workers),
            lambda: scene.world.wait(10 * SECOND_MS),
            *(lambda name=name: self.submit(name) for name in workers),
            lambda: scene.tick(SECOND_MS),
            *self.verdicts("ann", ACCEPT),
            *self.verdicts("bob", FRAUDULENT),
            *self.verdicts("cat", FRAUDULENT),
            *self.verdicts("eve", Outcome.INVALID),
            lambda: scene.tick(2 * SECOND_MS),
            *self.verdicts("ann", ACCEPT),
            *self.verdicts("eve", Outcome.INVALID),
            lambda: scene.tick(SECOND_MS),
            lambda: self.lease("ann"),
            lambda: scene.publish(self.names["ann"]),
            lambda: scene.tick(SECOND_MS),
            lambda: scene.send("cat", e.Appealed(submission=self.names["cat"], reason="look again")),
            lambda: scene.tick(SECOND_MS),
            *self.verdicts("cat", ACCEPT),
            lambda: scene.tick(2 * SECOND_MS),
            *self.verdicts("cat", ACCEPT),
            lambda: scene.tick(SECOND_MS),
            lambda: scene.tick(scene.run.leases[self.leases["ann"].lease].deadline_ms - scene.world.now_ms + 1),
            lambda: self.lease("cat"),
            lambda: scene.world.wait(SECOND_MS),
            lambda: self.submit("cat"),
            lambda: scene.tick(SECOND_MS),
            *self.verdicts("cat", ACCEPT),
            lambda: scene.tick(2 * SECOND_MS),
            *self.verdicts("cat", ACCEPT),
            lambda: scene.tick(SECOND_MS),
            lambda: scene.order(e.RunStatusSet(status=RunStatus.CLOSED, reason="")),
            lambda: scene.tick(TERMS.appeal_ms),
            lambda: scene.tick(SECOND_MS),
        ]

    def lease(self, name: str) -> None:
        self.leases[name] = self.scene.lease(name)

    def submit(self, name: str) -> None:
        self.names[name] = self.scene.submit(self.leases[name])

    def verdicts(self, worker: str, outcome: Outcome) -> list[Callable[[], object]]:
        """What each of three drawn validators commits to, and then says."""

        def speak(place: int, is_given: bool) -> None:
            name = self.names[worker]
            validator = self.scene.drawn(name)[place]
            verdict = self.scene.world.opinion(validator, name, outcome)
            self.scene.send(validator, verdict if is_given else make_commitment(verdict))

        return [partial(speak, place, is_given) for is_given in (False, True) for place in range(3)]

    def summary(self) -> dict[str, Any]:
        """What the story came to, but for its times."""
        state, run = self.scene.state, self.scene.run
        books = state.funds
        return {
            "balances": +books.balances,
            "stakes": +books.stakes,
            "burned": books.burned_nano,
            "pool": books.pools,
            "nodes": {node: (known.status, +known.settled) for node, known in state.nodes.items()},
            "faults": sum(known.faults for known in state.nodes.values()),
            "credited": {number: step.credited for number, step in run.steps.items()},
            "paid": {number: step.paid for number, step in run.steps.items()},
            "outcomes": sorted(str(each.outcome) for each in run.submissions.values()),
            "open": (len(run.leases), len(run.slashes)),
        }


def tell(restart_after: Callable[[int], bool]) -> Story:
    story = Story()
    for number, event in enumerate(story.events()):
        event()
        if restart_after(number):
            story.scene.restart()
    return story


@pytest.fixture(scope="module")
def told() -> Story:
    return tell(lambda number: False)


def without_draws(summary: dict[str, Any]) -> dict[str, Any]:
    """Who was drawn hangs on the log's bytes, and with it which validator earned or erred."""
    workers = set(list(summary["nodes"])[:4])
    kept = dict(summary)
    for key in ("balances", "stakes", "nodes"):
        kept[key] = {
            name: value for name, value in summary[key].items() if (name if key != "stakes" else name[1]) in workers
        }
    return kept


def test_the_scenario_ends_as_expected(told: Story) -> None:
    summary = told.summary()
    assert summary["open"] == (0, 0)
    assert summary["paid"] == {Step(0): True, Step(1): True}
    assert summary["burned"] == TERMS.slash_nano, "only the cheater's"
    assert summary["outcomes"].count("accept") == 3
    assert told.scene.submission(told.names["eve"]).outcome is Outcome.INVALID


def test_a_restart_after_every_event_changes_nothing(told: Story) -> None:
    again = tell(lambda number: True)
    assert without_draws(again.summary()) == without_draws(told.summary())


@pytest.mark.parametrize("cut", range(len(Story().events())))
def test_a_restart_after_any_one_event_changes_nothing(told: Story, cut: int) -> None:
    again = tell(lambda number: number == cut)
    assert without_draws(again.summary()) == without_draws(told.summary())
