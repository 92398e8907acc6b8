"""Bounds of noise by pair of engine classes: the one that generated a file, and the one that judges it. Pure.

Engines of one class run the same code on the same kind of device: device, engine and its version, attention backend,
precision and tensor parallel size. Two classes that were measured against each other have bounds of their own. For any
other pair the run's default holds.

No pair may have a wider bound than the default, number by number. So a node that names a wrong class never gets more
room than one that names none. What else a false class can do is in docs/verification/engine-classes.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any

from prime_protocol.constants import CLASS_CHARS_MAX, CLASSES_MAX, TOLERANCE_NUMBER_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.ids import Name

BOUNDED_NUMBERS = tuple(each.name for each in fields(Tolerance) if each.name != "precision")
"""The numbers of a pair, in this order. With a larger one more noise passes; the precision is the run's."""
COUNTS = frozenset(each.name for each in fields(Tolerance) if isinstance(each.default, int))
"""Those of them that are whole."""


class EngineClass(Name):
    """A way to run the model whose noise is known, such as nvidia-h100/vllm-0.33/flash-attn/bfloat16/tp1."""

    __slots__ = ()
    PATTERN = re.compile(rf"(?=.{{1,{CLASS_CHARS_MAX}}}$)[a-z0-9][a-z0-9._+-]*(?:/[a-z0-9][a-z0-9._+-]*)*")
    FORM = f"1 to {CLASS_CHARS_MAX} characters of a-z, 0-9 and . _ + - in parts with / between them"


NUMBER_FORM = re.compile(r"[0-9]{1,17}(\.[0-9]{1,20})?(e[-+]?[0-9]{1,3})?")

ClassNumber = Annotated[int, Range(0, CLASSES_MAX - 1)]
"""Place of a class in ClassBounds.classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBounds:
    """What counts as noise where one class generated and one judges."""

    generating: ClassNumber
    judging: ClassNumber
    numbers: Annotated[
        tuple[Annotated[float, Range(0.0, TOLERANCE_NUMBER_MAX)], ...], Size(len(BOUNDED_NUMBERS), len(BOUNDED_NUMBERS))
    ]
    """As BOUNDED_NUMBERS names them."""

    @classmethod
    def of(cls, generating: int, judging: int, tolerance: Tolerance) -> "PairBounds":
        numbers = tuple(float(getattr(tolerance, name)) for name in BOUNDED_NUMBERS)
        return cls(generating=generating, judging=judging, numbers=numbers)

    def to_tolerance(self, default: Tolerance) -> Tolerance:
        """RemoteError: a number is not allowed, or wider than the default's."""
        named = dict(zip(BOUNDED_NUMBERS, self.numbers, strict=True))
        for name, number in named.items():
            if number > getattr(default, name):
                raise RemoteError(name, f"is {number:g}, wider than the default {getattr(default, name):g}")
            if name in COUNTS and number != int(number):
                raise RemoteError(name, f"is {number:g}, it must be whole")
        whole: dict[str, Any] = {name: int(number) if name in COUNTS else number for name, number in named.items()}
        # Read again, so that a pair passes the same limits as the default.
        return decode(Tolerance, encode(Tolerance(precision=default.precision, **whole)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBounds:
    """The table of a run. Empty where engines were not told apart."""

    classes: Annotated[tuple[EngineClass, ...], Size(0, CLASSES_MAX)] = ()
    """Sorted. A pair names them by their places."""
    pairs: Annotated[tuple[PairBounds, ...], Size(0, CLASSES_MAX**2)] = ()
    """Sorted by generating and judging class. The default holds for those that are not here."""
    is_closed: bool = False
    """Whether only these classes may generate. A file that names none of them is invalid."""

    def __post_init__(self) -> None:
        if list(self.classes) != sorted(set(self.classes)):
            raise RemoteError("classes", "must be sorted, each once")
        places = [(pair.generating, pair.judging) for pair in self.pairs]
        if places != sorted(set(places)):
            raise RemoteError("pairs", "must be sorted by class, each once")
        for place, pair in enumerate(self.pairs):
            if max(pair.generating, pair.judging) >= len(self.classes):
                raise RemoteError(f"pairs[{place}]", f"names a class beyond the {len(self.classes)} of the table")
        if self.is_closed and not self.classes:
            raise RemoteError("is_closed", "is set in a table without classes")

    def check(self, default: Tolerance) -> None:
        """RemoteError: a pair has a number that is not allowed, or wider than the default's."""
        for place, pair in enumerate(self.pairs):
            try:
                pair.to_tolerance(default)
            except RemoteError as error:
                raise RemoteError(f"pairs[{place}].{error.field}", error.problem) from None

    def get_number(self, name: EngineClass | None) -> int:
        """1 for the first class, as verdicts state it; 0 for one that the table does not have."""
        return self.classes.index(name) + 1 if name in self.classes else 0

    def find(self, generating: EngineClass | None, judging: EngineClass | None, *, default: Tolerance) -> Tolerance:
        """What counts as noise between these two; the default for a pair that the table does not have."""
        wanted = self.get_number(generating) - 1, self.get_number(judging) - 1
        for pair in self.pairs:
            if (pair.generating, pair.judging) == wanted:
                return pair.to_tolerance(default)
        return default


NO_CLASS_BOUNDS = ClassBounds()


# --- As text ----------------------------------------------------------------------------------------------------------


def format_class_bounds(bounds: ClassBounds, default: Tolerance) -> list[str]:
    """A line for each pair, with the numbers that differ from the default; then one for each class without a pair."""
    lines, seen = [], set()
    for pair in bounds.pairs:
        named = zip(BOUNDED_NUMBERS, pair.numbers, strict=True)
        changed = [f"{name}={number:.17g}" for name, number in named if number != getattr(default, name)]
        lines.append(
            f"{bounds.classes[pair.generating]} > {bounds.classes[pair.judging]}: {' '.join(changed)}".rstrip()
        )
        seen |= {pair.generating, pair.judging}
    return lines + [name for place, name in enumerate(bounds.classes) if place not in seen]


def parse_class_bounds(lines: Iterable[str], default: Tolerance, *, is_closed: bool = False) -> ClassBounds:
    """The table of such lines. RemoteError names the line that is wrong."""
    found: dict[tuple[EngineClass, EngineClass], dict[str, float]] = {}
    alone: set[EngineClass] = set()
    for place, line in enumerate(lines):
        try:
            heading, colon, rest = line.partition(":")
            names = [EngineClass(name.strip()) for name in heading.split(">")]
            if colon and len(names) == 2 and (names[0], names[1]) not in found:
                found[names[0], names[1]] = _parse_numbers(rest)
            elif not colon and len(names) == 1:
                alone.add(names[0])
            else:
                raise RemoteError("pair", "expected CLASS > CLASS: NAME=NUMBER ..., once for each pair, or a class")
        except RemoteError as error:
            raise RemoteError(f"class_bounds[{place}]", f"{error.field} {error.problem}") from None
    classes = tuple(sorted(alone.union(*found)))
    if len(classes) > CLASSES_MAX:
        raise RemoteError("class_bounds", f"names {len(classes)} classes, allowed are {CLASSES_MAX}")
    pairs = tuple(
        PairBounds(
            generating=classes.index(generating),
            judging=classes.index(judging),
            numbers=tuple(numbers.get(name, float(getattr(default, name))) for name in BOUNDED_NUMBERS),
        )
        for (generating, judging), numbers in sorted(found.items())
    )
    return ClassBounds(classes=classes, pairs=pairs, is_closed=is_closed)


def _parse_numbers(text: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for part in text.split():
        name, _, number = part.partition("=")
        if name not in BOUNDED_NUMBERS or name in numbers or not NUMBER_FORM.fullmatch(number):
            raise RemoteError("number", f"{part!r} is none, or is there twice")
        numbers[name] = float(number)
    return numbers
