"""What to send to the chain next, decided from what the log and the chain say about a run. Pure.

The decision is made afresh each time. A coordinator that was killed between two transactions, or a chain that dropped
some, needs no repair: whatever is missing is found and sent. All times are seconds of the chain's clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from enum import IntEnum
from typing import Any

from prime_coordinator.settlement.config import SettlementConfig
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.wire.ids import Digest, NodeId, RunId


@dataclass(frozen=True, slots=True)
class ChainTerms:
    """IRunRegistry.Terms, field by field. Amounts in the token's smallest unit, times in seconds."""

    stakeMin: int
    slashAmount: int
    slashPerDay: int
    validatorSlash: int
    appealBond: int
    epochBudget: int
    epochTime: int
    payoutDelay: int
    slashWindow: int
    appealWindow: int
    judgementWindow: int
    judgeAge: int
    quorum: int
    slashToPool: bool
    bountyShare: int

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ChainTerms":
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def words(self) -> tuple[Any, ...]:
        return astuple(self)

    @property
    def windows_s(self) -> int:
        """Longest time from an anchor to the end of a slash."""
        return self.slashWindow + self.appealWindow + self.judgementWindow


def make_chain_terms(terms: RunTerms, config: SettlementConfig, scale: int) -> ChainTerms:
    """From a run's terms and the settings. The chain gives an appeal more time: its decision must be anchored first."""
    epoch_s = round_up_seconds(config.epoch_ms)
    return ChainTerms(
        stakeMin=terms.stake_min_nano * scale,
        slashAmount=terms.slash_nano * scale,
        slashPerDay=max(terms.slash_nano, terms.validator_slash_nano) * scale * config.slashes_per_day,
        validatorSlash=terms.validator_slash_nano * scale,
        appealBond=config.appeal_bond_nano * scale,
        epochBudget=terms.step_budget_nano * scale * config.epoch_steps_max,
        epochTime=epoch_s,
        payoutDelay=config.payout_delay_ms // 1000,
        slashWindow=round_up_seconds(config.slash_window_ms),
        appealWindow=round_up_seconds(terms.appeal_ms),
        judgementWindow=round_up_seconds(terms.appeal_ms + terms.long_stop_ms) + 3 * epoch_s,
        judgeAge=config.judge_age_ms // 1000,
        quorum=terms.quorum,
        slashToPool=terms.slash_to is SlashDestination.POOL,
        bountyShare=terms.bounty_share,
    )


def round_up_seconds(duration_ms: int) -> int:
    """Rounded up, at least one."""
    return max(1, -(-duration_ms // 1000))


class RunPhase(IntEnum):
    """IRunRegistry.RunStatus."""

    NONE = 0
    ACTIVE = 1
    PAUSED = 2
    CLOSED = 3


class SlashPhase(IntEnum):
    """ICourt.SlashStatus."""

    NONE = 0
    OPEN = 1
    APPEALED = 2
    EXECUTED = 3
    REFUNDED = 4


@dataclass(frozen=True, slots=True)
class Payable:
    """Total paid to each account of a run, after this many entries."""

    size: int
    paid: Mapping[NodeId, int]

    @property
    def total(self) -> int:
        return sum(self.paid.values())


@dataclass(frozen=True, slots=True)
class SlashInLog:
    """A slash in the log."""

    submission: Digest
    proposed: int
    """Index of its SlashProposed entry."""
    ended: int | None = None
    is_executed: bool = False
    can_judge: bool = False
    """Whether a quorum of the appeal's validators signed the outcome."""


@dataclass(frozen=True, slots=True)
class PenaltyInLog:
    """A penalty of a validator. The log has ended it: nothing that follows there changes it."""

    name: Digest
    """Of submission and validator, as the court names it."""
    scored: int
    """Index of its ValidatorScored entry."""
    can_judge: bool = False
    """Whether a quorum of others signed the opposite of the refuted verdict."""


@dataclass(frozen=True, slots=True)
class SlashOnChain:
    phase: SlashPhase = SlashPhase.NONE
    appeal_until: int = 0
    judge_until: int = 0


@dataclass(frozen=True, slots=True)
class PoolOnChain:
    held: int = 0
    claimed: int = 0
    promised: int = 0
    epoch: int = 0
    since: int = 0
    """Time of the newest root, void or not; of the run's creation before the first."""
    matured: int = 0
    """Total of the newest root that has matured: no challenge can void it any more."""
    is_abandoned: bool = False
    """A funder reclaimed its money because no root came for too long: no further root is accepted."""


@dataclass(frozen=True, slots=True)
class RunOnChain:
    """A run on the chain."""

    phase: RunPhase = RunPhase.NONE
    terms: ChainTerms | None = None
    """The newest announced terms."""
    size: int = 0
    """Of the newest anchored head."""
    anchored_at: int = 0
    is_frozen: bool = False
    pool: PoolOnChain = field(default_factory=PoolOnChain)
    slashes: Mapping[Digest, SlashOnChain] = field(default_factory=dict)
    """Slashes of workers by submission, and penalties by their names."""


@dataclass(frozen=True, slots=True)
class RunInLog:
    name: RunId
    terms: ChainTerms
    size: int
    """Entries of the whole log."""
    is_closed: bool
    payable: Payable | None
    """At the size of the newest anchored head; None if unknown here."""
    paid_total: int
    slashes: tuple[SlashInLog, ...]
    penalties: tuple[PenaltyInLog, ...] = ()


# --- Actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateRun:
    run: RunId
    terms: ChainTerms


@dataclass(frozen=True, slots=True)
class SetTerms:
    run: RunId
    terms: ChainTerms


@dataclass(frozen=True, slots=True)
class CloseRun:
    run: RunId


@dataclass(frozen=True, slots=True)
class AnchorHead:
    run: RunId


@dataclass(frozen=True, slots=True)
class PostPayoutRoot:
    run: RunId
    epoch: int


@dataclass(frozen=True, slots=True)
class SlashAction:
    """One call of the court about a slash."""

    run: RunId
    submission: Digest


class ProposeSlash(SlashAction):
    pass


class JudgeAppeal(SlashAction):
    pass


class ExecuteSlash(SlashAction):
    pass


class OverturnSlash(SlashAction):
    pass


class RefundSlash(SlashAction):
    pass


class ProposePenalty(SlashAction):
    """The actions of a penalty carry its name."""


class JudgePenalty(SlashAction):
    pass


class ExecutePenalty(SlashAction):
    pass


ChainAction = (
    CreateRun
    | SetTerms
    | CloseRun
    | AnchorHead
    | PostPayoutRoot
    | ProposeSlash
    | JudgeAppeal
    | ExecuteSlash
    | OverturnSlash
    | RefundSlash
    | ProposePenalty
    | JudgePenalty
    | ExecutePenalty
)


def list_actions(log: RunInLog, chain: RunOnChain, now: int, *, is_hastened: bool = False) -> Iterator[ChainAction]:
    """Every action due for a run, most urgent first: slashes come before everything else."""
    if chain.phase is RunPhase.NONE:
        if not log.is_closed:
            yield CreateRun(log.name, log.terms)
        return
    assert chain.terms is not None
    for slash in log.slashes:
        action = get_slash_action(log.name, slash, chain, now)
        if action is not None:
            yield action
    for penalty in log.penalties:
        action = get_penalty_action(log.name, penalty, chain, now)
        if action is not None:
            yield action
    if chain.is_frozen or chain.pool.is_abandoned or chain.phase is RunPhase.CLOSED:
        return
    if log.size > chain.size and (is_hastened or now - chain.anchored_at >= chain.terms.epochTime):
        yield AnchorHead(log.name)
    if can_post_root(log, chain, now):
        yield PostPayoutRoot(log.name, chain.pool.epoch + 1)
    if chain.terms != log.terms:
        yield SetTerms(log.name, log.terms)
    if log.is_closed and not has_unsettled(log, chain):
        yield CloseRun(log.name)


def get_slash_action(run: RunId, slash: SlashInLog, chain: RunOnChain, now: int) -> ChainAction | None:
    seen = chain.slashes.get(slash.submission, SlashOnChain())
    if chain.is_frozen:
        is_open = seen.phase in (SlashPhase.OPEN, SlashPhase.APPEALED)
        return RefundSlash(run, slash.submission) if is_open else None
    if seen.phase is SlashPhase.NONE:
        return ProposeSlash(run, slash.submission) if slash.proposed < chain.size else None
    if seen.phase not in (SlashPhase.OPEN, SlashPhase.APPEALED):
        return None
    if now >= seen.judge_until:
        return RefundSlash(run, slash.submission)
    if slash.ended is None or slash.ended >= chain.size:
        return None
    if seen.phase is SlashPhase.APPEALED:
        return JudgeAppeal(run, slash.submission) if slash.can_judge else None
    if not slash.is_executed:
        return OverturnSlash(run, slash.submission)
    return ExecuteSlash(run, slash.submission) if now >= seen.appeal_until else None


def get_penalty_action(run: RunId, penalty: PenaltyInLog, chain: RunOnChain, now: int) -> ChainAction | None:
    """An appeal without a quorum against the validator is left to its refund."""
    seen = chain.slashes.get(penalty.name, SlashOnChain())
    is_open = seen.phase in (SlashPhase.OPEN, SlashPhase.APPEALED)
    if seen.phase is SlashPhase.NONE:
        return ProposePenalty(run, penalty.name) if penalty.scored < chain.size and not chain.is_frozen else None
    if is_open and (chain.is_frozen or now >= seen.judge_until):
        return RefundSlash(run, penalty.name)
    if seen.phase is SlashPhase.APPEALED:
        return JudgePenalty(run, penalty.name) if penalty.can_judge else None
    return ExecutePenalty(run, penalty.name) if is_open and now >= seen.appeal_until else None


def is_appealable(log: RunInLog, slash: SlashInLog, chain: RunOnChain, now: int) -> bool:
    """Whether the court has, or may still get, an appeal that the log does not know.

    Then the log must not end the slash yet, or no validator would judge that appeal. `now` is the time of a confirmed
    block.
    """
    if chain.is_frozen or (chain.phase is RunPhase.NONE and log.is_closed):
        return False
    seen = chain.slashes.get(slash.submission, SlashOnChain())
    is_open = seen.phase is SlashPhase.OPEN and now < seen.appeal_until
    return is_open or seen.phase in (SlashPhase.NONE, SlashPhase.APPEALED)


def can_post_root(log: RunInLog, chain: RunOnChain, now: int) -> bool:
    """The limits that the pool enforces too: one root an epoch, inside its budget, never more than it holds.

    If nothing was paid for long, posting the same root again shows that the operator is alive: a run without a root for
    four unbonding delays, each at least as long as all windows, counts as abandoned.
    """
    pool, terms = chain.pool, chain.terms
    assert terms is not None
    if log.payable is None or log.payable.size != chain.size:
        return False
    is_silent = 0 < log.payable.total == pool.promised and now - pool.since >= terms.windows_s
    if log.payable.total <= pool.promised and not is_silent:
        return False
    epochs = (now - pool.since) // terms.epochTime
    is_in_budget = log.payable.total - pool.promised <= epochs * terms.epochBudget
    return epochs > 0 and is_in_budget and log.payable.total - pool.claimed <= pool.held


def has_unsettled(log: RunInLog, chain: RunOnChain) -> bool:
    """Whether a payout root or the end of a slash is still missing on the chain.

    A root counts once it has matured: one that is voided after the run is over could not be posted again.
    """
    ended = (SlashPhase.EXECUTED, SlashPhase.REFUNDED)
    names = [*(slash.submission for slash in log.slashes), *(penalty.name for penalty in log.penalties)]
    is_judging = any(chain.slashes.get(name, SlashOnChain()).phase not in ended for name in names)
    return log.paid_total > chain.pool.matured or is_judging


def is_slash_over(name: Digest, chain: RunOnChain) -> bool:
    """Whether a slash or penalty has ended on the chain."""
    phase = chain.slashes.get(name, SlashOnChain()).phase
    return phase in (SlashPhase.EXECUTED, SlashPhase.REFUNDED)
