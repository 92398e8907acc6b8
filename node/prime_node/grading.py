"""The rewards of a file's answers, found here and read from nobody. What needs it is run in the sandbox."""

import asyncio
from collections.abc import Sequence

from prime_node.briefing import Briefing
from prime_node.checks import Rewards
from prime_protocol.rollouts import Rollout
from prime_protocol.tasks.family import MACHINE_DEPENDENT, Grade
from prime_runtime.sandbox import Sandbox


async def grade_rows(rows: Sequence[Rollout], briefing: Briefing, sandbox: Sandbox) -> Rewards:
    """LocalError where this machine cannot run what a grade needs: that says nothing about the answers."""
    grades = await asyncio.gather(*(grade_row(row, briefing, sandbox) for row in rows))
    return Rewards(
        mean=sum(grade.reward for grade in grades) / len(grades),
        right=sum(grade.reward == 1.0 for grade in grades),
        machine_dependent=sum(grade.reason in MACHINE_DEPENDENT for grade in grades),
    )


async def grade_row(row: Rollout, briefing: Briefing, sandbox: Sandbox) -> Grade:
    task = briefing.family.make(row.task)
    text = briefing.model.decode(row.output_tokens.tolist())
    found = await asyncio.to_thread(briefing.family.grade, task, text)
    if isinstance(found, Grade):
        return found
    return briefing.family.conclude(task, await sandbox.run(found))
