"""Amounts, times, durations and sizes as people read and write them. Pure."""

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from prime_protocol.constants import AMOUNT_NANO_MAX
from prime_protocol.errors import LocalError

NANO = 10**9
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def format_amount(nano: int) -> str:
    """Nano units as whole units of the network's money, with every digit."""
    whole, part = divmod(nano, NANO)
    return f"{whole:,}" + (f".{part:09}".rstrip("0") if part else "")


def parse_amount(text: str) -> int:
    """Parse an amount of the network's money to nano units, exactly."""
    try:
        nano = Decimal(text) * NANO
    except InvalidOperation:
        raise LocalError(f"{text!r} is not an amount; write a number such as 100 or 0.5") from None
    if not nano.is_finite() or not 0 < nano <= AMOUNT_NANO_MAX or nano != int(nano):
        raise LocalError(
            f"{text} is not a valid amount: above 0, at most nine decimals, at most {AMOUNT_NANO_MAX // NANO:,}"
        )
    return int(nano)


def format_time(at_ms: int | None) -> str:
    """In UTC, like the logs."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_relative_time(at_ms: int | None, now_ms: int) -> str:
    """Time since or until a moment."""
    if at_ms is None:
        return "-"
    seconds = abs(now_ms - at_ms) // 1000
    for unit, size in DURATION_UNITS:
        if seconds >= 2 * size:
            distance = f"{seconds // size} {unit}"
            break
    else:
        distance = f"{seconds} s"
    return f"in {distance}" if at_ms > now_ms else f"{distance} ago"


def format_duration(duration_ms: int | None) -> str:
    """A duration in its two largest units."""
    if duration_ms is None:
        return "unknown"
    seconds = duration_ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def format_bytes(count: float) -> str:
    for unit in BYTE_UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {BYTE_UNITS[-1]}"
