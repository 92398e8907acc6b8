"""A rollout file read again, row by row, by the public rules: the one way for a validator's audit, for a worker's look
at its own file before it is sent, and for whoever runs an audit again from its evidence.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prime_node.briefing import Briefing
from prime_node.checks import Flaw, Judgement, Rewards, find_token_flaws, judge_disorder, judge_file, weigh_rows
from prime_node.engine.keeper import EngineKeeper, Seat
from prime_node.engine.measuring import Claim, RowNumbers
from prime_node.engine.seam import EngineFacts, Text
from prime_protocol.beacon import sample_seed
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.looks import NOBODY, Onlookers
from prime_protocol.rollout_file import read_rollouts
from prime_protocol.rollouts import Rollout, RolloutFile, RolloutHeader, RolloutLimits, verify_derived, verify_header
from prime_protocol.weighing import Weighed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examination:
    """What is known of a file."""

    file: RolloutFile | None
    """None where it could not be read."""
    numbers: Sequence[RowNumbers] = ()
    """Empty where the model was not needed to see that it is bad."""
    flaws: Sequence[Flaw] = ()
    """What convicts it."""
    weighed: Weighed | None = None
    """What its numbers come to; None where there are none."""
    disorder: RemoteError | None = None
    looks: Mapping[NodeId, bytes] = field(default_factory=dict)
    """Of everybody whose looks were asked for; empty where the model was not needed."""
    facts: EngineFacts | None = None
    """Of the engine that read it."""
    software: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.disorder is None and not self.flaws

    def judge(self, rewards: Rewards | None = None) -> Judgement:
        if self.file is None:
            assert self.disorder is not None
            return judge_disorder(self.disorder)
        return judge_file(self.file, self.numbers, self.flaws, rewards, self.weighed)


def open_file(data: bytes, briefing: Briefing, header: RolloutHeader, limits: RolloutLimits) -> Examination:
    """What can be said without a model. Slow for a large file: use a thread."""
    try:
        file = read_rollouts(data, limits)
        verify_header(file.header, header)
        verify_derived(
            file,
            briefing.beacon,
            tasks_total=briefing.family.size,
            target_lengths=(),
            temperature=briefing.terms.temperature,
        )
    except RemoteError as error:
        return Examination(file=None, disorder=error)
    return Examination(file=file, flaws=find_token_flaws(file, briefing.rules(file)))


async def read_again(
    opened: Examination, briefing: Briefing, seat: Seat, seed: Digest, onlookers: Onlookers = NOBODY
) -> Examination:
    """The whole of it, with the engine. A file that is bad already stays as it is."""
    if opened.file is None or opened.flaws:
        return opened
    rows = opened.file.rows
    longest = max(len(row.prompt_tokens) + len(row.output_tokens) for row in rows)
    if longest > seat.facts.context_max:
        raise LocalError(f"a row of {longest} tokens does not fit the engine, which reads {seat.facts.context_max}")
    claims = list_claims(rows, briefing.beacon)
    numbers, looks = await seat.process.look(claims, briefing.sampling, seed, onlookers)
    weighed, flaws = weigh_rows(numbers, briefing.terms.tolerance)
    return Examination(
        file=opened.file,
        numbers=numbers,
        flaws=flaws,
        weighed=weighed,
        looks=looks,
        facts=seat.facts,
        software=seat.software,
    )


def list_claims(rows: Sequence[Rollout], beacon: Digest) -> list[Claim]:
    """What each row says of itself, numbered as in the file."""
    return [
        Claim(
            text=Text(
                number=number,
                prompt=row.prompt_tokens,
                output=row.output_tokens,
                seed=sample_seed(beacon, row.slot, row.sample),
            ),
            logprobs=row.output_logprobs,
            proofs=row.proofs,
        )
        for number, row in enumerate(rows)
    ]


async def examine(
    data: bytes,
    briefing: Briefing,
    header: RolloutHeader,
    limits: RolloutLimits,
    keeper: EngineKeeper,
    seed: Digest,
    onlookers: Onlookers = NOBODY,
) -> Examination:
    """From bytes to flaws. The engine is only asked where the file is in order."""
    opened = await asyncio.to_thread(open_file, data, briefing, header, limits)
    if not opened.is_good:
        return opened
    async with keeper.turn(briefing.root, briefing.folder, briefing.terms.tolerance.precision) as seat:
        return await read_again(opened, briefing, seat, seed, onlookers)
