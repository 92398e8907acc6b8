"""The section [policy]: when the owner of a machine lends it, and how much of it."""

import re
from dataclasses import dataclass
from typing import Annotated

from prime_runtime.settings_schema import Between, ConfigError

DAY_MIN = 24 * 60
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TIME = r"([01]?\d|2[0-4]):([0-5]\d)"
SPAN = re.compile(rf"(?:([a-z,-]+) +)?{TIME}-{TIME}")
DAY_RANGE = re.compile(r"([a-z]{3})(?:-([a-z]{3}))?")
GPU = re.compile(r"\d{1,3}|GPU-[0-9a-f-]{8,40}")
EXAMPLE = 'write "22:00-07:00", "sat,sun 00:00-24:00" or "mon-fri 18:30-08:00"'


@dataclass(frozen=True, slots=True)
class Span:
    """Some hours of some days. One that passes midnight belongs to the day on which it begins."""

    days: frozenset[int]
    """0 is Monday."""
    start_min: int
    end_min: int
    """Minutes after midnight; not above start_min where it ends on the next day."""

    def covers(self, day: int, minute: int) -> bool:
        if self.start_min < self.end_min:
            return day in self.days and self.start_min <= minute < self.end_min
        is_evening = day in self.days and minute >= self.start_min
        return is_evening or ((day - 1) % 7 in self.days and minute < self.end_min)


def parse_span(text: str) -> Span:
    """ConfigError where it is none."""
    match = SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"policy.hours has {text!r}; {EXAMPLE}")
    days, *numbers = match.groups()
    start_h, start_m, end_h, end_m = map(int, numbers)
    start, end = 60 * start_h + start_m, 60 * end_h + end_m
    if start >= DAY_MIN or end > DAY_MIN or start == end:
        raise ConfigError(f"policy.hours has {text!r}, which is no part of a day; {EXAMPLE}")
    return Span(_parse_days(days, text) if days else frozenset(range(7)), start, end)


def _parse_days(words: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for word in words.split(","):
        match = DAY_RANGE.fullmatch(word)
        first, last = (match[1], match[2] or match[1]) if match else ("", "")
        if first not in DAYS or last not in DAYS:
            raise ConfigError(f"policy.hours has {text!r}: {word!r} is no day; {EXAMPLE}")
        start = DAYS.index(first)
        found |= {(start + step) % 7 for step in range((DAYS.index(last) - start) % 7 + 1)}
    return frozenset(found)


def parse_time(text: str) -> int:
    """Minutes after midnight."""
    match = re.fullmatch(TIME, text.strip())
    minutes = 60 * int(match[1]) + int(match[2]) if match else DAY_MIN
    if minutes >= DAY_MIN:
        raise ConfigError(f'policy.stop_at is {text!r}; write a time of day such as "07:00"')
    return minutes


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The section [policy]: when this node works, and what it leaves to others."""

    hours: tuple[str, ...] = ()
    """When it takes work, in this machine's own time: "22:00-07:00", "sat,sun 00:00-24:00", "mon-fri 18:30-08:00".
    Nothing: always."""
    idle_only: bool = False
    """Take work only while nobody else uses the machine."""
    idle_cpu_max: Annotated[int, Between(1, 100)] = 25
    """With idle_only: percent of all cores that other programs may use."""
    idle_gpu_max: Annotated[int, Between(1, 100)] = 20
    """With idle_only: percent of a GPU that other programs may use."""
    idle_ms: Annotated[int, Between(0, 86_400_000)] = 60_000
    """With idle_only: how long the machine has to be idle before work is taken again."""
    paused_gpus: tuple[str, ...] = ()
    """GPUs that are left alone, by number or UUID as `prime-node doctor` shows them."""
    data_bytes_per_day: Annotated[int, Between(0, 10**15)] = 0
    """Bytes of weights and rollouts, sent and received, in a day of UTC; then no work is taken. 0 is no cap."""
    disk_free_bytes_min: Annotated[int, Between(0, 10**15)] = 500_000_000
    """Room that must stay free on the disk of the node's folder; with less no work is taken."""
    stop_at: str = ""
    """Time of day, such as "07:00", at which the node finishes what it has and stops. Empty: never."""
    stop_after_leases: Annotated[int, Between(0, 10**9)] = 0
    """Leases after which the node stops; 0 is never."""

    def __post_init__(self) -> None:
        for text in self.hours:
            parse_span(text)
        if self.stop_at:
            parse_time(self.stop_at)
        for text in self.paused_gpus:
            if not GPU.fullmatch(text):
                raise ConfigError(f"policy.paused_gpus has {text!r}; write the number or the UUID of a GPU")

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(map(parse_span, self.hours))
