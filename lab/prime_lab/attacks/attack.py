"""What an attack is: its author, the verdict that it must have, and the result of one attempt. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Attacker(StrEnum):
    """The role that attacks."""

    WORKER = "worker"
    VALIDATOR = "validator"
    RELAY = "relay"
    TRAINER = "trainer"
    COORDINATOR = "coordinator"
    STRANGER = "stranger"


class AttackVerdict(StrEnum):
    """The result that an attack must have."""

    REFUSED = "refused"
    """Refused at intake or by the ledger's rules, and not used. Of a coordinator: validators stop working for it."""
    FRAUDULENT = "fraudulent"
    """Found by an audit: no credit, and the stake is slashed."""
    PROVEN = "proven"
    """Two signed statements contradict each other, or an independent replay of the log fails: anyone can verify it."""
    OVERRULED = "overruled"
    """The verdict or the finding does not stand, and counts against its author."""
    HARMLESS = "harmless"
    """It harms no one and gains the attacker nothing; it may stay unattributed."""
    UNDETECTED = "undetected"
    """No check finds it. The suite runs it and measures what it gains; docs/verification.md lists it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack and what is expected of it."""

    name: str
    party: Attacker
    does: str
    """In one sentence."""
    verdict: AttackVerdict
    caught_by: tuple[str, ...]
    """At least one of these checks must name it: fields of an intake refusal, flaws of an audit, rules."""
    saves: float = 0.0
    """The share of honest work, of a submission or an audit, that the attacker saves."""
    gains: str = ""
    """What else the attacker would gain, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The result of one attempt."""

    verdict: AttackVerdict | None
    """None: the attack succeeded."""
    checks: tuple[str, ...]
    """The checks that named it."""
    reason: str
    tokens: int = 0
    """Tokens that the model read, second readings included, before the result was clear; 0 if none were needed."""

    def is_as_listed(self, attack: Attack) -> bool:
        """Whether the verdict is the listed one and a listed check named it; no check, if none is listed."""
        is_named = bool(set(self.checks) & set(attack.caught_by)) if attack.caught_by else not self.checks
        return self.verdict is attack.verdict and is_named
