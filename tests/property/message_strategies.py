"""Hypothesis strategies for message types, built from their annotations as the codec reads them."""

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import reject
from hypothesis import strategies as st

from prime_protocol.constants import (
    DELEGATION_LIFE_MS_MAX,
    ED25519_KEY_BYTES,
    ENVELOPE_LIFE_MS_MAX,
    READ_PROOF_BYTES,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import RelayPollReply, RelayPublish
from prime_protocol.ledger.entries import (
    OUTCOME_NUMBER,
    Inspected,
    NodeRegistered,
    Outcome,
    RoundRecorded,
    StepMeasured,
    VerdictGiven,
)
from prime_protocol.ledger.entry_values import HeadCosignature, InspectedVerdict, Metric
from prime_protocol.ledger.randomness_chain import SCHEME, RandomnessChain
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.codec import UNPRINTABLE, Range, Size
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import FixedBytes, Name
from prime_protocol.wire.typed_data import Delegation

ITEMS_SHOWN = 4
CHARACTERS = st.characters(codec="utf-8").filter(lambda character: not UNPRINTABLE.match(character))
NAMES = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)


@cache  # a strategy that is made anew for each draw is checked anew for each draw
def values(annotation: Any, bound: Any = None) -> st.SearchStrategy[Any]:
    """Values that a field with this annotation may hold, with the bounds themselves among them."""
    if get_origin(annotation) is Annotated:
        return values(*get_args(annotation))
    if isinstance(annotation, NewType):
        return values(annotation.__supertype__, bound or Range(0, 2**63 - 1))
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = (option for option in get_args(annotation) if option is not type(None))
        return st.none() | values(inner, bound)
    if get_origin(annotation) is tuple:
        size = bound or Size(0, ITEMS_SHOWN)
        most = min(size.high, size.low + ITEMS_SHOWN)
        return st.lists(values(get_args(annotation)[0]), min_size=size.low, max_size=most).map(tuple)
    if is_dataclass(annotation):
        return messages(annotation)
    return scalars(annotation, bound)


def scalars(annotation: Any, bound: Any) -> st.SearchStrategy[Any]:
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        low, high = (bound.low, bound.high) if bound else (-(2**63), 2**64 - 1)
        return st.integers(low, high) | st.sampled_from([low, high])
    if annotation is float:
        low, high = (bound.low, bound.high) if bound else (None, None)
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    if annotation is str:
        size = bound or Size(0, 20)
        return st.text(CHARACTERS, min_size=size.low, max_size=min(size.high, 20))
    if annotation is bytes:
        size = bound or Size(0, 60)
        return st.binary(min_size=size.low, max_size=min(size.high, size.low + 60))
    if issubclass(annotation, FixedBytes):
        return st.binary(min_size=annotation.SIZE, max_size=annotation.SIZE).map(annotation)
    if issubclass(annotation, StrEnum):
        return st.sampled_from(list(annotation))
    assert issubclass(annotation, Name)
    if annotation.PATTERN is not Name.PATTERN:
        return st.from_regex(annotation.PATTERN, fullmatch=True).map(annotation)
    return NAMES.map(annotation)


@st.composite
def messages(draw: st.DrawFn, kind: Any) -> Any:
    """Messages of one type: rules that join fields are met by repair where a random draw would rarely meet them."""
    hints = get_type_hints(kind, include_extras=True)
    drawn = {field.name: draw(values(hints[field.name])) for field in fields(kind)}
    try:
        return kind(**REPAIRS.get(kind, lambda same: same)(drawn))
    except RemoteError:
        reject()


def shorten_life(life_ms_max: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def repair(drawn: dict[str, Any]) -> dict[str, Any]:
        issued_at_ms = min(drawn["issued_at_ms"], 2**63 - 1 - life_ms_max)
        life_ms = drawn["expires_at_ms"] % life_ms_max + 1
        return drawn | {"issued_at_ms": issued_at_ms, "expires_at_ms": issued_at_ms + life_ms}

    return repair


REPAIRS: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Payload: shorten_life(ENVELOPE_LIFE_MS_MAX),
    Delegation: shorten_life(DELEGATION_LIFE_MS_MAX),
    Inspected: lambda drawn: drawn | {"seen": sort_seen(drawn["seen"])},
    NodeRegistered: lambda drawn: (
        drawn
        | {
            "roles": tuple(sorted(set(drawn["roles"]))),
            "runs": tuple(sorted(set(drawn["runs"]))),
            "witness_key": drawn["witness_key"].ljust(ED25519_KEY_BYTES, b"\x00") if drawn["witness_key"] else b"",
        }
    ),
    RandomnessChain: lambda drawn: drawn | {"scheme": SCHEME},
    RoundRecorded: lambda drawn: drawn | {"cosignatures": sort_cosignatures(drawn["cosignatures"])},
    RelayPollReply: lambda drawn: drawn | {"peers": (), "frames": tuple(frame or b"\x00" for frame in drawn["frames"])},
    RelayPublish: lambda drawn: {"frame": drawn["frame"] or b"\x00"},
    RunTerms: lambda drawn: (
        drawn
        | {
            "slash_nano": min(drawn["slash_nano"], drawn["stake_min_nano"]),
            "inspectors": tuple(dict.fromkeys(drawn["inspectors"])),
            "context_tokens_max": max(
                drawn["context_tokens_max"], drawn["prompt_tokens_max"] + drawn["output_tokens_max"]
            ),
        }
    ),
    StepMeasured: lambda drawn: drawn | {"metrics": sort_metrics(drawn["metrics"])},
    VerdictGiven: lambda drawn: (
        drawn
        | {
            "outcome": (outcome := outcome_of(drawn["receipt"].outcome)),
            "read_proof": fill_read_proof(drawn["read_proof"]),
            "blocks_read": drawn["blocks_read"] if outcome is Outcome.FRAUDULENT else 0,
        }
    ),
}


def sort_metrics(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    return tuple(sorted({metric.name: metric for metric in metrics}.values(), key=lambda metric: metric.name))


def sort_cosignatures(found: tuple[HeadCosignature, ...]) -> tuple[HeadCosignature, ...]:
    return tuple(sorted({each.witness: each for each in found}.values(), key=lambda each: each.witness))


def sort_seen(seen: tuple[InspectedVerdict, ...]) -> tuple[InspectedVerdict, ...]:
    return tuple(sorted({each.reader: each for each in seen}.values(), key=lambda each: each.reader))


def fill_read_proof(drawn: bytes) -> bytes:
    """None, or all of them."""
    return drawn.ljust(READ_PROOF_BYTES, b"\x00")[:READ_PROOF_BYTES] if drawn else b""


def outcome_of(number: int) -> Outcome:
    return next(outcome for outcome, known in OUTCOME_NUMBER.items() if known == number)
