"""The words that entries use for what somebody offers, may do, or has found."""

from enum import StrEnum
from typing import Annotated

from prime_protocol.codec import Size
from prime_protocol.constants import REASON_CHARS_MAX

Reason = Annotated[str, Size(0, REASON_CHARS_MAX)]
"""Why, for people."""


class Role(StrEnum):
    """What a node offers to do."""

    WORKER = "worker"
    VALIDATOR = "validator"
    RELAY = "relay"


class NodeStatus(StrEnum):
    """Whether a node may be given work."""

    ACTIVE = "active"
    DRAINED = "drained"
    BANNED = "banned"


class RunStatus(StrEnum):
    """Whether a run gives out work."""

    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"


class Outcome(StrEnum):
    """What a validator found, or what was settled. Soft is an honest failure, hard is provable dishonesty."""

    ACCEPT = "accept"
    SOFT = "soft"
    HARD = "hard"


OUTCOME_NUMBER = {Outcome.ACCEPT: 0, Outcome.SOFT: 1, Outcome.HARD: 2}
"""How a VerdictReceipt writes an outcome, for contracts."""
