"""What the owner allows just now: may the node take work, and if not, why; should it finish and stop. Pure.

The shell looks at the machine every few seconds and tells what it sees. A held node finishes what it has begun, since
that is minutes, and what is thrown away has used the machine all the same.
"""

from dataclasses import dataclass

from prime_node.policy_config import DAY_MIN, DAYS, PolicyConfig, Span, parse_time
from prime_runtime.wording import show_bytes, show_span

MINUTE_MS = 60_000
DAY_MS = DAY_MIN * MINUTE_MS
THURSDAY = 3
"""The day of 1970-01-01."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """One GPU, and what others do on it."""

    number: int
    uuid: str
    others_percent: float | None
    """None where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The machine at one moment."""

    local_ms: int
    """The wall clock of this machine's time zone, as if it were UTC."""
    monotonic_ms: int
    cpu_others_percent: float | None
    """Of all cores; None where it cannot be told."""
    gpus: tuple[GpuSeen, ...]
    engine_gpus: tuple[int, ...]
    """Numbers of the GPUs that the engine works on; none: it works on the CPU."""
    data_bytes_today: int
    disk_free_bytes: int
    leases_done: int
    """Since the process began."""
    is_paused: bool
    """`prime-node pause`."""
    paused_gpus: frozenset[str]
    """`prime-node pause --gpu`, numbers or UUIDs, beside those of the settings."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Texts for the owner; both empty: work."""

    hold: str = ""
    """Why no work is taken."""
    stop: str = ""
    """Why the node finishes what it has and stops."""


class Policy:
    """One owner's wishes, with what has to be remembered between two looks."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._spans = config.spans
        self._stop_ms: int | None = None
        self._idle_since_ms: int | None = None
        """When others last left the machine alone; None while they do not."""
        self._is_new = True

    def decide(self, seen: Seen) -> Decision:
        self._note_idle(seen)
        stop = self._find_stop(seen)
        return Decision(hold=stop or self._find_hold(seen), stop=stop)

    def _find_stop(self, seen: Seen) -> str:
        config = self._config
        if config.stop_at and self._stop_ms is None:
            self._stop_ms = next_time_ms(parse_time(config.stop_at), seen.local_ms)
        if self._stop_ms is not None and seen.local_ms >= self._stop_ms:
            return f"it is {config.stop_at} (policy.stop_at)"
        if 0 < config.stop_after_leases <= seen.leases_done:
            return f"{seen.leases_done} leases are done (policy.stop_after_leases)"
        return ""

    def _find_hold(self, seen: Seen) -> str:
        if seen.is_paused:
            return "paused by its owner; prime-node resume"
        return (
            self._judge_hours(seen)
            or self._judge_gpus(seen)
            or self._judge_data(seen)
            or self._judge_disk(seen)
            or self._judge_idle(seen)
        )

    def _judge_hours(self, seen: Seen) -> str:
        day, minute = clock_of(seen.local_ms)
        if not self._spans or any(span.covers(day, minute) for span in self._spans):
            return ""
        return f"outside the hours of policy.hours; the next begin {next_start(self._spans, day, minute)}"

    def _judge_gpus(self, seen: Seen) -> str:
        paused = seen.paused_gpus | set(self._config.paused_gpus)
        names = {gpu.number: {str(gpu.number), gpu.uuid} for gpu in seen.gpus}
        held = [number for number in seen.engine_gpus if names.get(number, {str(number)}) & paused]
        if not held:
            return ""
        return f"GPU {', '.join(map(str, held))} is paused by its owner; prime-node resume --gpu {held[0]}"

    def _judge_data(self, seen: Seen) -> str:
        cap = self._config.data_bytes_per_day
        if not cap or seen.data_bytes_today < cap:
            return ""
        return f"{show_bytes(seen.data_bytes_today)} went over the line today, policy.data_bytes_per_day is used up"

    def _judge_disk(self, seen: Seen) -> str:
        least = self._config.disk_free_bytes_min
        if seen.disk_free_bytes >= least:
            return ""
        free = show_bytes(seen.disk_free_bytes)
        return f"{free} are free on the disk, policy.disk_free_bytes_min is {show_bytes(least)}; make room"

    def _judge_idle(self, seen: Seen) -> str:
        if not self._config.idle_only:
            return ""
        if seen.cpu_others_percent is None:
            return "policy.idle_only is set, and what others use is not known yet"
        if self._idle_since_ms is None:
            return f"others use the machine: {self._describe_use(seen)}"
        left_ms = self._idle_since_ms + self._config.idle_ms - seen.monotonic_ms
        return f"others used the machine until a moment ago; work begins in {show_span(left_ms)}" if left_ms > 0 else ""

    def _note_idle(self, seen: Seen) -> None:
        if self._describe_use(seen):
            self._idle_since_ms, self._is_new = None, False
        elif self._idle_since_ms is None:
            # A machine that was idle when the node began needs no more proof of it.
            self._idle_since_ms = seen.monotonic_ms - (self._config.idle_ms if self._is_new else 0)

    def _describe_use(self, seen: Seen) -> str:
        """What others use above the bounds; empty where that is nothing."""
        uses = []
        if (seen.cpu_others_percent or 0) > self._config.idle_cpu_max:
            uses.append(f"{seen.cpu_others_percent:.0f} % of the cores")
        for gpu in seen.gpus:
            if (gpu.others_percent or 0) > self._config.idle_gpu_max:
                uses.append(f"{gpu.others_percent:.0f} % of GPU {gpu.number}")
        return ", ".join(uses)


def clock_of(local_ms: int) -> tuple[int, int]:
    """Day of the week, 0 is Monday, and minute of the day."""
    return (local_ms // DAY_MS + THURSDAY) % 7, local_ms // MINUTE_MS % DAY_MIN


def next_time_ms(minute: int, local_ms: int) -> int:
    """When the clock next shows this minute."""
    today = local_ms // DAY_MS * DAY_MS + minute * MINUTE_MS
    return today if today > local_ms else today + DAY_MS


def next_start(spans: tuple[Span, ...], day: int, minute: int) -> str:
    """In words: at 22:00, or on sat at 00:00."""
    here = day * DAY_MIN + minute
    starts = [(each * DAY_MIN + span.start_min - here) % (7 * DAY_MIN) for span in spans for each in span.days]
    then = here + min(starts)
    time = f"at {then % DAY_MIN // 60:02}:{then % 60:02}"
    return time if then // DAY_MIN == day else f"on {DAYS[then // DAY_MIN % 7]} {time}"
