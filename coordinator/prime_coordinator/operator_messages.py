"""The operator's requests, as the command line sends them and the coordinator serves them. Pure.

Apart from the endpoints in admin/operator_api.py, so that a command does not import the coordinator that it calls.
"""

from dataclasses import dataclass
from typing import Any

from prime_protocol.ledger.entries import (
    Deposited,
    NodeStatusSet,
    RulesChanged,
    RunCreated,
    RunFunded,
    RunStatusSet,
    RunUpdated,
)
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.rpc import Endpoint

PREFIX = "operator."
OPERATOR_ENTRIES = (Deposited, NodeStatusSet, RulesChanged, RunCreated, RunFunded, RunStatusSet, RunUpdated)
"""Entries that the operator requests. The coordinator appends all its other entries by itself, when they are due. A run
is funded from the coordinator's own balance, as any account may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorNow:
    """Operator to coordinator: anchor the log's head on the chain now, not at the end of its epoch."""

    size: Uint = 0
    """Least number of entries that the head must cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorScheduled:
    """The head is anchored at the next poll of the chain."""

    size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class CountValidators:
    """Operator to coordinator: how many owners could judge the work of a run with these terms? The envelope names the
    run, which need not exist yet."""

    terms: RunTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorCount:
    """Owners with an active validator of the version and stake that the terms require."""

    registered: Uint
    """With one that is registered for the run."""
    eligible: Uint
    """With one in any run. It can be registered for the run once that exists."""


OPERATOR_ENTRY_ENDPOINTS: dict[type, Endpoint[Any, EntryReply]] = {
    kind: Endpoint(PREFIX + kind.__name__, kind, EntryReply) for kind in OPERATOR_ENTRIES
}
"""The message is the entry to append; the envelope names the run."""
ANCHOR_NOW = Endpoint(PREFIX + "anchor", AnchorNow, AnchorScheduled, is_idempotent=True)
COUNT_VALIDATORS = Endpoint(PREFIX + "validators", CountValidators, ValidatorCount, is_idempotent=True)
OPERATOR_ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (ANCHOR_NOW, COUNT_VALIDATORS, *OPERATOR_ENTRY_ENDPOINTS.values())
