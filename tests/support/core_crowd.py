"""A crowd around a coordinator's core: workers, validators, trainer, owners and operator, drawn from one seed.

Some cheat, some are silent, some send everything twice, and now and then the coordinator dies and is started again.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import NodeActivity
from support.core_network import SECOND_MS, Scene
from support.ledger_network import BOND, DAY_MS, HOUR_MS, MINUTE_MS, RUN, STAKE, TERMS, digest, make_commitment

WORKERS = ("ann", "bob", "cat", "dan", "eve")
SPANS_MS = (0, 1, *[SECOND_MS] * 12, *[10 * SECOND_MS] * 6, MINUTE_MS, MINUTE_MS, TERMS.verdict_ms, HOUR_MS)


class CoreMob:
    """Chooses what happens next."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        pick = self.dice.choice
        self.scene = Scene.started(
            workers=WORKERS,
            quorum=pick([1, 3]),
            slots_per_step=pick([2, 8, 64]),
            lag_max=pick([0, 1, 2]),
            audit_probation=pick([0, 0, 3, 1000]),
        )
        self.scene.world.register("inspector", Role.RELAY)
        self.cheaters = {name for name in WORKERS if self.dice.random() < 0.3}
        self.liars = {name for name in self.scene.world.keys if name.startswith("val") and self.dice.random() < 0.2}
        self.silent = {name for name in self.scene.world.keys if name.startswith("val") and self.dice.random() < 0.2}
        self.bad: set[Digest] = set()
        self.verdicts: dict[tuple[str, Digest], e.VerdictGiven] = {}
        """Committed and not given."""
        self.sent: list[tuple[str, Any]] = []
        self.restarts = 0

    # --- One event --------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Raises RemoteError where it was refused, and nothing else."""
        acts: list[tuple[int, Callable[[], object]]] = [
            (30, self.move_clock),
            (14, self.ask),
            (16, self.submit),
            (16, self.judge),
            (6, self.beat),
            (3, self.publish),
            (2, self.repeat),
            (2, self.restart),
            (2, self.refuse_file),
            (2, self.end_lease),
            (5, self.appeal),
            (2, self.inspect),
            (2, self.rule),
            (4, self.find),
            (2, self.manage_node),
            (1, self.manage_run),
            (2, self.manage_stake),
        ]
        weights = [weight for weight, _ in acts]
        self.dice.choices([act for _, act in acts], weights)[0]()

    def send(self, name: str, entry: Any) -> None:
        self.sent.append((name, entry))
        self.scene.send(name, entry)

    def move_clock(self) -> None:
        self.scene.tick(self.dice.choice(SPANS_MS))

    def restart(self) -> None:
        self.restarts += 1
        self.scene.restart()

    def ask(self) -> None:
        step = max(0, self.scene.run.latest - self.dice.choice([0, 0, 0, 1]))
        name, tokens_per_s = self.dice.choice(WORKERS), self.dice.choice([0, 1, 50, 10**6])
        self.scene.ask(name, tokens_per_s, step, rows_at_once={1: 16, 50: 2**40}.get(tokens_per_s, 0))

    def beat(self) -> None:
        self.scene.beat(self.dice.choice([*self.scene.world.names.values()]), self.dice.choice(list(NodeActivity)))

    def submit(self) -> None:
        scene = self.scene
        if not scene.run.leases:
            return
        number = self.dice.choice(list(scene.run.leases))
        lease = scene.run.leases[number]
        name = scene.world.names[lease.node]
        terms = scene.run.steps[lease.step].terms
        rollouts = lease.slots * terms.samples_per_slot
        tokens = rollouts * self.dice.randrange(1, terms.output_tokens_max + 1)
        entry = scene.world.answer(number, tokens, file_digest=digest(f"file {number} {self.dice.random()}"))
        self.send(name, entry)
        if name in self.cheaters:
            self.bad.add(next(reversed(scene.run.submissions)))

    def judge(self) -> None:
        """Somebody who was drawn speaks, or is silent."""
        scene = self.scene
        asked = [name for name in scene.world.names.values() if scene.core.audits.tasks(scene.node(name))]
        bound = sorted({name for name, _ in self.verdicts})
        if not asked + bound or (name := self.dice.choice(asked + bound)) in self.silent:
            return
        for submission in scene.core.audits.list_reveals(scene.node(name), RUN, scene.world.now_ms):
            self.send(name, self.verdicts[(name, submission)])  # kept: a kill may lose it
        for task in scene.core.audits.tasks(scene.node(name)):
            truth = Outcome.FRAUDULENT if task.submission in self.bad else Outcome.ACCEPT
            found = self.dice.choice(list(Outcome)) if name in self.liars else truth
            verdict = scene.world.opinion(name, task.submission, found)
            if task.commit:
                self.verdicts[(name, task.submission)] = verdict
                self.send(name, make_commitment(verdict))
            else:
                self.send(name, verdict)

    def publish(self) -> None:
        accepted = [
            name
            for name, submission in self.scene.run.submissions.items()
            if submission.outcome is Outcome.ACCEPT and submission.trained_into is None
        ]
        self.scene.publish(*self.dice.sample(accepted, min(2, len(accepted))))
        numbers = (e.Metric(name="held_out", value=0.5),)
        self.send("trainer", e.StepMeasured(step=Step(self.scene.run.latest), metrics=numbers))

    def repeat(self) -> None:
        """The same entry again, in another envelope."""
        if self.sent:
            self.scene.send(*self.dice.choice(self.sent[-10:]))

    def refuse_file(self) -> None:
        if self.scene.run.leases:
            number, lease = self.dice.choice(list(self.scene.run.leases.items()))
            self.scene.core.record_refused_file(lease.node, RUN, number, self.scene.world.now_ms)

    def end_lease(self) -> None:
        if self.scene.run.leases:
            number, lease = self.dice.choice(list(self.scene.run.leases.items()))
            self.send(self.scene.world.names[lease.node], e.LeaseEnded(lease=number, reason="no power"))

    def appeal(self) -> None:
        for name, slash in list(self.scene.run.slashes.items())[:1]:
            self.send(self.scene.world.names[slash.owner], e.Appealed(submission=name, reason="look again"))

    def inspect(self) -> None:
        """Somebody's verdict on a settled file is looked at, and may be found unread."""
        world, dice = self.scene.world, self.dice
        settled = [name for name, made in self.scene.run.submissions.items() if made.outcome is not None]
        if settled and (readers := world.readers(name := dice.choice(settled))):
            reader = dice.choice(readers)
            looks = dice.choice([world.looks(reader, name), digest("other looks")])
            self.send("inspector", world.inspection(name, {reader: looks}))

    def rule(self) -> None:
        """The inspector decides what validators could not."""
        for task in self.scene.core.inspections.list_rulings(self.scene.node("inspector")):
            outcome, evidence = self.dice.choice(list(Outcome)), digest("what the inspector saw")
            self.send(
                "inspector", e.RulingGiven(submission=task.submission, outcome=outcome, evidence=evidence, reason="")
            )

    def find(self) -> None:
        """Somebody doubts a file, mostly a forged one that was accepted; the log takes it if its bond can be paid."""
        submissions, dice = self.scene.run.submissions, self.dice
        spared = [name for name in submissions if name in self.bad and submissions[name].outcome is Outcome.ACCEPT]
        if names := spared or list(submissions):
            name = dice.choice(names)
            self.send(
                dice.choice(WORKERS), e.FindingFiled(submission=name, evidence=digest(f"found {name}"), reason="")
            )

    def manage_node(self) -> None:
        name = self.dice.choice([*WORKERS, *(f"val-{number}" for number in range(7))])
        status = self.dice.choice([NodeStatus.ACTIVE, NodeStatus.ACTIVE, NodeStatus.DRAINED, NodeStatus.BANNED])
        self.scene.order(e.NodeStatusSet(node=self.scene.node(name), status=status, reason="chance"), None)

    def manage_run(self) -> None:
        pick = self.dice.choice
        if pick([True, False]):
            changes = {"quorum": pick([1, 3]), "samples_per_slot": pick([1, 2]), "slots_per_step": pick([4, 8])}
            self.scene.order(e.RunUpdated(terms=self.scene.world.terms(**changes)))
        else:
            self.scene.order(e.RunStatusSet(status=pick([RunStatus.ACTIVE, RunStatus.PAUSED]), reason=""))

    def manage_stake(self) -> None:
        name, kind = self.dice.choice([*WORKERS, "val-0"]), self.dice.randrange(5)
        scene = self.scene
        acts: list[Callable[[], object]] = [
            partial(self.send, name, e.Unbonded(node=scene.node(name), amount_nano=self.dice.choice([1, STAKE]))),
            partial(self.send, name, scene.world.delegation("owner", name, life_ms=HOUR_MS)),
            partial(self.send, "owner", e.DelegationRevoked(node=scene.node(name))),
            partial(self.restore, name),
            partial(self.restore, name),
        ]
        acts[kind]()

    def restore(self, name: str) -> None:
        """Give a node what it needs to work again."""
        scene = self.scene
        owner = scene.world.names[scene.state.owners[scene.node(name)]]
        reference = digest(f"gift {scene.state.size}")
        scene.order(e.Deposited(account=scene.node(owner), amount_nano=STAKE + BOND, reference=reference), None)
        scene.send(owner, e.Staked(node=scene.node(name), amount_nano=STAKE))

    # --- The end ----------------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """The run is closed, validators answer or do not, and time passes until nothing is open."""
        scene = self.scene
        if scene.run.status is not RunStatus.CLOSED:
            scene.order(e.RunStatusSet(status=RunStatus.CLOSED, reason="the end"))
        for _ in range(40):
            for _ in range(20):
                try_event(self.judge)
            scene.tick(HOUR_MS)
        scene.tick(DAY_MS)
        scene.tick(DAY_MS)
        scene.drain()


def try_event(act: Callable[[], object]) -> RemoteError | None:
    """What was refused, if it was."""
    try:
        act()
    except RemoteError as error:
        return error
    return None
