"""GPUs that `prime-node plan` knows by name, with the numbers of their data sheets. Pure.

A name matches if its words are in the name that the driver gives. Arithmetic is that of dense bfloat16 with sums in
float32. Memory is what the driver reports, which is less than the name says on some cards.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prime_protocol.errors import LocalError

MIB = 2**20
TERA = 10**12
GIGA = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """A card, as its maker's data sheet describes it."""

    name: str
    """As the flag --gpu takes it."""
    words: tuple[str, ...]
    """All of these are in the name that the driver gives, in lower case."""
    memory_bytes: int
    bytes_per_s: float
    """Of its memory."""
    flop_per_s: float
    link_bytes_per_s: float
    """To the other GPUs of the machine, one way: NVLink where the card has it, else its PCIe slot."""
    watts: int
    """Most that the board draws."""


def _card(
    name: str, words: str, *, mib: int, gb_per_s: float, tflop_per_s: float, link_gb_per_s: float, watts: int
) -> GpuCard:
    return GpuCard(
        name=name,
        words=tuple(words.split()),
        memory_bytes=mib * MIB,
        bytes_per_s=gb_per_s * GIGA,
        flop_per_s=tflop_per_s * TERA,
        link_bytes_per_s=link_gb_per_s * GIGA,
        watts=watts,
    )


CARDS = (
    _card("3090", "rtx 3090", mib=24_576, gb_per_s=936, tflop_per_s=71, link_gb_per_s=16, watts=350),
    _card("4090", "rtx 4090", mib=24_564, gb_per_s=1_008, tflop_per_s=165, link_gb_per_s=16, watts=450),
    _card("5090", "rtx 5090", mib=32_607, gb_per_s=1_792, tflop_per_s=209, link_gb_per_s=32, watts=575),
    _card("L4", "l4", mib=23_034, gb_per_s=300, tflop_per_s=121, link_gb_per_s=16, watts=72),
    _card("A10", "a10", mib=23_028, gb_per_s=600, tflop_per_s=125, link_gb_per_s=16, watts=150),
    _card("A6000", "rtx a6000", mib=49_140, gb_per_s=768, tflop_per_s=155, link_gb_per_s=16, watts=300),
    _card("L40S", "l40s", mib=46_068, gb_per_s=864, tflop_per_s=362, link_gb_per_s=16, watts=350),
    _card("A100-40", "a100 40gb", mib=40_960, gb_per_s=1_555, tflop_per_s=312, link_gb_per_s=300, watts=400),
    _card("A100-80", "a100 80gb", mib=81_920, gb_per_s=2_039, tflop_per_s=312, link_gb_per_s=300, watts=400),
    _card("H100", "h100 hbm3", mib=81_559, gb_per_s=3_350, tflop_per_s=989, link_gb_per_s=450, watts=700),
    _card("H100-PCIe", "h100 pcie", mib=81_559, gb_per_s=2_039, tflop_per_s=756, link_gb_per_s=32, watts=350),
    _card("H200", "h200", mib=143_771, gb_per_s=4_800, tflop_per_s=989, link_gb_per_s=450, watts=700),
    _card("B200", "b200", mib=183_359, gb_per_s=8_000, tflop_per_s=2_250, link_gb_per_s=900, watts=1_000),
    _card("MI300X", "mi300x", mib=196_592, gb_per_s=5_300, tflop_per_s=1_307, link_gb_per_s=64, watts=750),
)


def get_card(name: str) -> GpuCard:
    """By the name of the flag --gpu, or by the name that a driver gives. LocalError lists the known ones."""
    found = next((card for card in CARDS if card.name.lower() == name.strip().lower()), None) or find_card(name)
    if found is None:
        known = ", ".join(card.name for card in CARDS)
        raise LocalError(f"no card {name!r} is known; give its memory with --memory, or one of: {known}")
    return found


def find_card(driver_name: str) -> GpuCard | None:
    """The card that a driver's name is of; None where it is not known."""
    words = set(_split_words(driver_name))
    return next((card for card in CARDS if words.issuperset(card.words)), None)


def _split_words(driver_name: str) -> Iterator[str]:
    """NVIDIA A100-SXM4-80GB gives nvidia, a100, sxm4, 80gb."""
    yield from re.findall("[a-z0-9]+", driver_name.lower())
