"""The owner's policy: the section [policy] of the settings, and the decision whether the node may take work now. Pure.

The enforcer measures the machine every few seconds and asks for a decision. A node on hold finishes its current jobs:
that takes minutes, and cancelled work would have used the machine for nothing.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from prime_runtime.formatting import format_bytes, format_duration
from prime_runtime.settings.schema import Between, ConfigError, settings_class

DAY_MIN = 24 * 60
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TIME = r"([01]?\d|2[0-4]):([0-5]\d)"
WINDOW = re.compile(rf"(?:([a-z,-]+) +)?{TIME}-{TIME}")
DAY_RANGE = re.compile(r"([a-z]{3})(?:-([a-z]{3}))?")
GPU = re.compile(r"\d{1,3}|GPU-[0-9a-f-]{8,40}")
EXAMPLE = 'write "22:00-07:00", "sat,sun 00:00-24:00" or "mon-fri 18:30-08:00"'


@dataclass(frozen=True, slots=True)
class WorkHours:
    """Some hours of some days. A window that passes midnight belongs to the day on which it starts."""

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


def parse_window(text: str) -> WorkHours:
    """ConfigError: it is not a time window."""
    match = WINDOW.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"policy.hours has {text!r}; {EXAMPLE}")
    days, *numbers = match.groups()
    start_h, start_m, end_h, end_m = map(int, numbers)
    start, end = 60 * start_h + start_m, 60 * end_h + end_m
    if start >= DAY_MIN or end > DAY_MIN or start == end:
        raise ConfigError(f"policy.hours has {text!r}, which is no part of a day; {EXAMPLE}")
    return WorkHours(_parse_days(days, text) if days else frozenset(range(7)), start, end)


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


@settings_class
class PolicyConfig:
    """The section [policy]: when this node works, and how much of the machine it uses."""

    hours: tuple[str, ...] = ()
    """When it takes work, in this machine's own time: "22:00-07:00", "sat,sun 00:00-24:00", "mon-fri 18:30-08:00".
    Default: always."""
    idle_only: bool = False
    """Take work only while no other program uses the machine."""
    idle_cpu_max: Annotated[int, Between(1, 100)] = 25
    """With idle_only: percent of all cores that other programs may use."""
    idle_gpu_max: Annotated[int, Between(1, 100)] = 20
    """With idle_only: percent of a GPU that other programs may use."""
    idle_ms: Annotated[int, Between(0, 86_400_000)] = 60_000
    """With idle_only: how long the machine has to be idle before the node takes work again."""
    paused_gpus: tuple[str, ...] = ()
    """GPUs that the node does not use, by number or UUID as `prime-node doctor` shows them."""
    data_bytes_per_day: Annotated[int, Between(0, 10**15)] = 0
    """Limit of weights and rollouts, sent and received, per UTC day; beyond it the node takes no work. 0: no limit."""
    disk_free_bytes_min: Annotated[int, Between(0, 10**15)] = 500_000_000
    """Free space to leave on the disk of the node's folder; with less the node takes no work."""
    stop_at: str = ""
    """Time of day, such as "07:00", at which the node finishes its jobs and stops. Default: never."""
    stop_after_leases: Annotated[int, Between(0, 10**9)] = 0
    """Leases after which the node stops; 0: never."""

    def __post_init__(self) -> None:
        for text in self.hours:
            parse_window(text)
        if self.stop_at:
            parse_time(self.stop_at)
        for text in self.paused_gpus:
            if not GPU.fullmatch(text):
                raise ConfigError(f"policy.paused_gpus has {text!r}; write the number or the UUID of a GPU")

    @property
    def windows(self) -> tuple[WorkHours, ...]:
        return tuple(map(parse_window, self.hours))


MINUTE_MS = 60_000
DAY_MS = DAY_MIN * MINUTE_MS
THURSDAY = 3
"""The day of 1970-01-01."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """One GPU and its use by other programs."""

    number: int
    uuid: str
    others_percent: float | None
    """None where the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """The machine at one moment."""

    local_ms: int
    """The wall clock of this machine's time zone, as if it were UTC."""
    monotonic_ms: int
    cpu_others_percent: float | None
    """Of all cores; None: not known."""
    gpus: tuple[GpuUsage, ...]
    engine_gpus: tuple[int, ...]
    """Numbers of the GPUs that the engine uses; empty: it uses the CPU."""
    data_bytes_today: int
    disk_free_bytes: int
    leases_done: int
    """Since the process began."""
    is_paused: bool
    """`prime-node pause`."""
    paused_gpus: frozenset[str]
    """`prime-node pause --gpu`, numbers or UUIDs, beside those of the settings."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Reasons for the owner to read. Both empty: work."""

    hold: str = ""
    """Why no work is taken."""
    stop: str = ""
    """Why the node finishes its jobs and stops."""


class OwnerPolicy:
    """Decides by the settings, and remembers what two measurements have to be compared by."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._windows = config.windows
        self._stop_ms: int | None = None
        self._idle_since_ms: int | None = None
        """When other programs last stopped using the machine; None while they use it."""
        self._is_new = True

    def decide(self, machine: MachineState) -> PolicyDecision:
        self._update_idle(machine)
        stop = self._find_stop(machine)
        return PolicyDecision(hold=stop or self._find_hold(machine), stop=stop)

    def _find_stop(self, machine: MachineState) -> str:
        config = self._config
        if config.stop_at and self._stop_ms is None:
            self._stop_ms = next_time_ms(parse_time(config.stop_at), machine.local_ms)
        if self._stop_ms is not None and machine.local_ms >= self._stop_ms:
            return f"it is {config.stop_at} (policy.stop_at)"
        if 0 < config.stop_after_leases <= machine.leases_done:
            return f"{machine.leases_done} leases are done (policy.stop_after_leases)"
        return ""

    def _find_hold(self, machine: MachineState) -> str:
        if machine.is_paused:
            return "paused by the owner; prime-node resume"
        return (
            self._check_hours(machine)
            or self._check_gpus(machine)
            or self._check_data(machine)
            or self._check_disk(machine)
            or self._check_idle(machine)
        )

    def _check_hours(self, machine: MachineState) -> str:
        day, minute = split_local_time(machine.local_ms)
        if not self._windows or any(span.covers(day, minute) for span in self._windows):
            return ""
        return f"outside policy.hours; work starts again {describe_next_start(self._windows, day, minute)}"

    def _check_gpus(self, machine: MachineState) -> str:
        paused = machine.paused_gpus | set(self._config.paused_gpus)
        names = {gpu.number: {str(gpu.number), gpu.uuid} for gpu in machine.gpus}
        held = [number for number in machine.engine_gpus if names.get(number, {str(number)}) & paused]
        if not held:
            return ""
        return f"GPU {', '.join(map(str, held))} is paused by the owner; prime-node resume --gpu {held[0]}"

    def _check_data(self, machine: MachineState) -> str:
        cap = self._config.data_bytes_per_day
        if not cap or machine.data_bytes_today < cap:
            return ""
        used = format_bytes(machine.data_bytes_today)
        return f"{used} were transferred today; the limit policy.data_bytes_per_day is reached"

    def _check_disk(self, machine: MachineState) -> str:
        least = self._config.disk_free_bytes_min
        if machine.disk_free_bytes >= least:
            return ""
        free = format_bytes(machine.disk_free_bytes)
        return f"{free} are free on the disk, policy.disk_free_bytes_min is {format_bytes(least)}; make room"

    def _check_idle(self, machine: MachineState) -> str:
        if not self._config.idle_only:
            return ""
        if machine.cpu_others_percent is None:
            return "policy.idle_only is set, and the use by other programs is not known yet"
        if self._idle_since_ms is None:
            return f"other programs use the machine: {self._describe_use(machine)}"
        left_ms = self._idle_since_ms + self._config.idle_ms - machine.monotonic_ms
        return (
            f"other programs used the machine until a moment ago; work starts in {format_duration(left_ms)}"
            if left_ms > 0
            else ""
        )

    def _update_idle(self, machine: MachineState) -> None:
        if self._describe_use(machine):
            self._idle_since_ms, self._is_new = None, False
        elif self._idle_since_ms is None:
            # A machine that is idle when the node starts need not be idle for idle_ms first.
            self._idle_since_ms = machine.monotonic_ms - (self._config.idle_ms if self._is_new else 0)

    def _describe_use(self, machine: MachineState) -> str:
        """What other programs use above the limits; empty: nothing."""
        uses = []
        if (machine.cpu_others_percent or 0) > self._config.idle_cpu_max:
            uses.append(f"{machine.cpu_others_percent:.0f} % of the cores")
        for gpu in machine.gpus:
            if (gpu.others_percent or 0) > self._config.idle_gpu_max:
                uses.append(f"{gpu.others_percent:.0f} % of GPU {gpu.number}")
        return ", ".join(uses)


def split_local_time(local_ms: int) -> tuple[int, int]:
    """Day of the week, 0 is Monday, and minute of the day."""
    return (local_ms // DAY_MS + THURSDAY) % 7, local_ms // MINUTE_MS % DAY_MIN


def next_time_ms(minute: int, local_ms: int) -> int:
    """When the clock next shows this minute."""
    today = local_ms // DAY_MS * DAY_MS + minute * MINUTE_MS
    return today if today > local_ms else today + DAY_MS


def describe_next_start(spans: tuple[WorkHours, ...], day: int, minute: int) -> str:
    """For people: at 22:00, or on sat at 00:00."""
    here = day * DAY_MIN + minute
    starts = [(each * DAY_MIN + span.start_min - here) % (7 * DAY_MIN) for span in spans for each in span.days]
    then = here + min(starts)
    time = f"at {then % DAY_MIN // 60:02}:{then % 60:02}"
    return time if then // DAY_MIN == day else f"on {DAYS[then // DAY_MIN % 7]} {time}"
