"""The terms of a run as the chain holds it to them: from the log's terms and the settings of settlement. Pure."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from prime_coordinator.settlement.config import SettlementConfig
from prime_protocol.terms import RunTerms, SlashTo


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


def chain_terms(terms: RunTerms, config: SettlementConfig, scale: int) -> ChainTerms:
    """An appeal is decided in the log first, and the decision has to be anchored: the chain waits longer."""
    epoch_s = seconds(config.epoch_ms)
    return ChainTerms(
        stakeMin=terms.stake_min_nano * scale,
        slashAmount=terms.slash_nano * scale,
        slashPerDay=terms.slash_nano * scale * config.slashes_per_day,
        appealBond=config.appeal_bond_nano * scale,
        epochBudget=terms.step_budget_nano * scale * config.epoch_steps_max,
        epochTime=epoch_s,
        payoutDelay=config.payout_delay_ms // 1000,
        slashWindow=seconds(config.slash_window_ms),
        appealWindow=seconds(terms.appeal_ms),
        judgementWindow=seconds(terms.appeal_ms + terms.judgement_ms) + 3 * epoch_s,
        judgeAge=config.judge_age_ms // 1000,
        quorum=terms.quorum,
        slashToPool=terms.slash_to is SlashTo.POOL,
    )


def seconds(duration_ms: int) -> int:
    """Rounded up, at least one."""
    return max(1, -(-duration_ms // 1000))
