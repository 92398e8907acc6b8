"""The terms of a run as the chain holds it to them: from the log's terms and the settings of settlement. Pure.

What to bring to the chain next: from what the log says and what the chain says, nothing else. Pure.

It is decided anew each time, so a coordinator that was killed between two transactions, or a chain that took some back,
needs no repair: what is missing is found and sent. All times are seconds of the chain's clock.
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
    """IRunRegistry.Terms, field by field. Amounts in units of the token, times in seconds."""

    stakeMin: int
    slashAmount: int
    slashPerDay: int
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

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "ChainTerms":
        return cls(**{field.name: answer[field.name] for field in fields(cls)})

    def words(self) -> tuple[Any, ...]:
        return astuple(self)

    @property
    def windows_s(self) -> int:
        """From an anchor to the end of a slash, at the latest."""
        return self.slashWindow + self.appealWindow + self.judgementWindow


def make_chain_terms(terms: RunTerms, config: SettlementConfig, scale: int) -> ChainTerms:
    """An appeal is decided in the log first, and the decision has to be anchored: the chain waits longer."""
    epoch_s = round_up_seconds(config.epoch_ms)
    return ChainTerms(
        stakeMin=terms.stake_min_nano * scale,
        slashAmount=terms.slash_nano * scale,
        slashPerDay=terms.slash_nano * scale * config.slashes_per_day,
        appealBond=config.appeal_bond_nano * scale,
        epochBudget=terms.step_budget_nano * scale * config.epoch_steps_max,
        epochTime=epoch_s,
        payoutDelay=config.payout_delay_ms // 1000,
        slashWindow=round_up_seconds(config.slash_window_ms),
        appealWindow=round_up_seconds(terms.appeal_ms),
        judgementWindow=round_up_seconds(terms.appeal_ms + terms.judgement_ms) + 3 * epoch_s,
        judgeAge=config.judge_age_ms // 1000,
        quorum=terms.quorum,
        slashToPool=terms.slash_to is SlashDestination.POOL,
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
    """What the accounts of a run were paid in all, after so many entries."""

    size: int
    paid: Mapping[NodeId, int]

    @property
    def total(self) -> int:
        return sum(self.paid.values())


@dataclass(frozen=True, slots=True)
class SlashInLog:
    """A slash, as the log tells it."""

    submission: Digest
    proposed: int
    """Index of its SlashProposed entry."""
    ended: int | None = None
    is_executed: bool = False
    can_judge: bool = False
    """Others of the appeal's rounds have signed what was found, as many as the quorum."""


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
    """When the newest root came; the run's creation before the first."""
    is_abandoned: bool = False
    """A funder has left because no root came for so long: nothing more is promised."""


@dataclass(frozen=True, slots=True)
class RunOnChain:
    """What the chain says of a run."""

    phase: RunPhase = RunPhase.NONE
    terms: ChainTerms | None = None
    """The last that were announced."""
    size: int = 0
    """Of the newest anchored head."""
    anchored_at: int = 0
    is_frozen: bool = False
    pool: PoolOnChain = field(default_factory=PoolOnChain)
    slashes: Mapping[Digest, SlashOnChain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunInLog:
    name: RunId
    terms: ChainTerms
    size: int
    """Entries of the whole log."""
    is_closed: bool
    payable: Payable | None
    """At the size of the newest anchored head; None where that is not known here."""
    paid_total: int
    slashes: tuple[SlashInLog, ...]


# --- What can be done -------------------------------------------------------------------------------------------------


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
class ProposeSlash:
    run: RunId
    submission: Digest


@dataclass(frozen=True, slots=True)
class JudgeAppeal:
    run: RunId
    submission: Digest


@dataclass(frozen=True, slots=True)
class ExecuteSlash:
    run: RunId
    submission: Digest


@dataclass(frozen=True, slots=True)
class OverturnSlash:
    run: RunId
    submission: Digest


@dataclass(frozen=True, slots=True)
class RefundSlash:
    run: RunId
    submission: Digest


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
)


def list_actions(log: RunInLog, chain: RunOnChain, now: int, *, is_hastened: bool = False) -> Iterator[ChainAction]:
    """Everything that is due for a run, most urgent first: who is accused waits the least."""
    if chain.phase is RunPhase.NONE:
        if not log.is_closed:
            yield CreateRun(log.name, log.terms)
        return
    assert chain.terms is not None
    for slash in log.slashes:
        action = get_slash_action(log.name, slash, chain, now)
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


def is_appealable(log: RunInLog, slash: SlashInLog, chain: RunOnChain, now: int) -> bool:
    """Whether the court has heard, or may still hear, an appeal unknown to the log: then the log must not end the
    slash yet, or nobody would judge that appeal. `now` is the time of a block that lies deep enough.
    """
    if chain.is_frozen or (chain.phase is RunPhase.NONE and log.is_closed):
        return False
    seen = chain.slashes.get(slash.submission, SlashOnChain())
    is_open = seen.phase is SlashPhase.OPEN and now < seen.appeal_until
    return is_open or seen.phase in (SlashPhase.NONE, SlashPhase.APPEALED)


def can_post_root(log: RunInLog, chain: RunOnChain, now: int) -> bool:
    """The bounds that the pool checks too: one root an epoch, inside its budget, never more than it holds.

    Where nothing was paid for long, the same root again says that the operator is there: a run without one for four
    unbonding delays, each at least as long as all windows, would count as abandoned.
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
    """Whether something of the run has still to be promised, or a slash to be ended."""
    ended = (SlashPhase.EXECUTED, SlashPhase.REFUNDED)
    is_judging = any(chain.slashes.get(slash.submission, SlashOnChain()).phase not in ended for slash in log.slashes)
    return log.paid_total > chain.pool.promised or is_judging


def is_slash_over(slash: SlashInLog, chain: RunOnChain) -> bool:
    """Whether a slash needs no more looking after."""
    phase = chain.slashes.get(slash.submission, SlashOnChain()).phase
    return phase in (SlashPhase.EXECUTED, SlashPhase.REFUNDED)
