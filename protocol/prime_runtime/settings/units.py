"""Sizes and durations as people write them, into the unit that a setting's name ends with. Pure."""

import re

AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
MS: dict[str, float] = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
BYTES = {"b": 1} | {
    f"{prefix}{suffix}".lower(): base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
SCALES: dict[str, dict[str, float]] = {
    "ms": MS,
    "bytes": BYTES,
    "mb": {name: size / 2**20 for name, size in BYTES.items()},
}


def parse_amount(text: str, unit: str) -> str | int:
    """`40GB` as a number of the unit; text without a unit comes back as it is. ValueError names the known units."""
    match = AMOUNT.fullmatch(text.strip())
    if match is None:
        return text
    scale = SCALES[unit].get(match[2].lower())
    if scale is None:
        known = "ms, s, min, h, d" if unit == "ms" else "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        raise ValueError(f"is {text!r}; the units are {known}")
    return round(float(match[1].replace("_", "")) * scale)
